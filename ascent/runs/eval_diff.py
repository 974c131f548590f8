"""Completions of held-out prompts before and after training: which became right, which became wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

MAX_ROWS = 5  # of each kind in the terminal
MAX_WIDTH = 60  # characters of an answer there


class Change(NamedTuple):
    """One prompt with its two greedy answers; the score is None where the reward failed."""

    prompt: str
    before: str
    after: str
    score_before: float | None
    score_after: float | None

    @property
    def gain(self) -> float:
        if self.score_before is None or self.score_after is None:
            return 0.0
        return self.score_after - self.score_before


class Changes(NamedTuple):
    """Largest gain first, then largest loss, then the unchanged ones."""

    first: int
    last: int
    changes: list[Change]

    def better(self) -> list[Change]:
        return [each for each in self.changes if each.gain > 0]

    def worse(self) -> list[Change]:
        return [each for each in self.changes if each.gain < 0]


def compare(records: Sequence[Mapping[str, Any]]) -> Changes | None:
    """The last evaluation compared with the first that asked any of its prompts (held-out data may have changed in
    between); None where there are fewer than two."""
    evaluations: dict[int, dict[tuple[int, str], Mapping[str, Any]]] = {}
    for record in records:
        evaluations.setdefault(record["step"], {})[record["place"], record["prompt"]] = record
    last = evaluations[max(evaluations)] if evaluations else {}
    steps = sorted(step for step, asked in evaluations.items() if asked.keys() & last.keys())
    if len(steps) < 2:
        return None
    first = evaluations[steps[0]]
    both = [_change(first[each], last[each]) for each in sorted(first.keys() & last.keys())]
    better = sorted((each for each in both if each.gain > 0), key=lambda each: -each.gain)
    worse = sorted((each for each in both if each.gain < 0), key=lambda each: each.gain)
    return Changes(
        steps[0], steps[-1], [*better, *worse, *(each for each in both if each.gain == 0)]
    )


def _change(before: Mapping[str, Any], after: Mapping[str, Any]) -> Change:
    return Change(
        before["prompt"],
        before["completion"],
        after["completion"],
        before["correct"],
        after["correct"],
    )


def gain_labels(found: Changes) -> tuple[str, str]:
    """Labels of a gain and a loss: right and wrong where every score is 1 or 0."""
    scores = {score for each in found.changes for score in (each.score_before, each.score_after)}
    return (
        ("wrong -> right", "right -> wrong") if scores <= {0.0, 1.0, None} else ("better", "worse")
    )


def summary(found: Changes) -> str:
    gained, lost = gain_labels(found)
    before = _mean([each.score_before for each in found.changes])
    after = _mean([each.score_after for each in found.changes])
    return (
        f"{len(found.changes)} held-out prompts, step {found.first} against step {found.last}: mean {before} before, "
        f"{after} after; {len(found.better())} {gained}, {len(found.worse())} {lost}"
    )


def table(found: Changes, *, max_rows: int = MAX_ROWS) -> list[str]:
    """The summary and a few rows of each kind, as lines of plain text."""
    lines = [summary(found)]
    for title, part in zip(gain_labels(found), (found.better(), found.worse()), strict=True):
        lines += [f"  {title}:"] if part else []
        for each in part[:max_rows]:
            lines.append(f"    {_short(each.prompt)}")
            lines.append(f"      before {_short(each.before)}  [{_score(each.score_before)}]")
            lines.append(f"      after  {_short(each.after)}  [{_score(each.score_after)}]")
        lines += (
            [f"    and {len(part) - max_rows} more in answers.md"] if len(part) > max_rows else []
        )
    return lines


def markdown(found: Changes) -> str:
    """All changes as a Markdown table."""
    gained, lost = gain_labels(found)
    kinds = [
        (each, gained if each.gain > 0 else lost if each.gain < 0 else "same")
        for each in found.changes
    ]
    rows = [
        f"| {kind} | {markdown_cell(each.prompt)} | {markdown_cell(each.before)} | {_score(each.score_before)} | "
        f"{markdown_cell(each.after)} | {_score(each.score_after)} |"
        for each, kind in kinds
    ]
    head = "| | prompt | before | score | after | score |\n|---|---|---|---|---|---|\n"
    return f"# Before and after\n\n{summary(found)}.\n\n{head}" + "".join(
        f"{row}\n" for row in rows
    )


def _mean(scores: Sequence[float | None]) -> str:
    known = [score for score in scores if score is not None]
    return f"{sum(known) / len(known):.3g}" if known else "unknown"


def _score(score: float | None) -> str:
    return "?" if score is None else f"{score:.3g}"


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= MAX_WIDTH else f"{flat[: MAX_WIDTH - 3]}..."


def markdown_cell(text: str) -> str:
    """A text as one cell of a Markdown table."""
    return " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|")
