"""The runs below the given folders, and one line about each: state, progress, time left, scores, a sparkline.

A line has a cheap part (state, step) and a part that reads more (scores, sparkline). The second is computed for a
limited time per request and kept until a file changes, so hundreds of runs are listed at once and filled in after.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ascent.feedback.win_rate import wilson
from ascent.metrics import EVAL
from ascent.runs import seek
from ascent.runs.curves import MAIN, best_point
from ascent.runs.folder import (
    ANSWERS,
    CHANGES,
    CONFIG,
    INPUTS,
    METRICS,
    OUTCOME,
    find_runs,
    state_of,
)
from ascent.runs.jsonl import numbers
from ascent.runs.lock import NAME as LOCK
from ascent.view.files import WARNINGS, RunFiles
from ascent.view.metric_log import MetricLog

SECONDS_BETWEEN_WALKS = 2.0
SPARK_POINTS, PACE_LINES = 40, 10
NORMAL = 1.959964  # 95% lie within so many standard errors
_ORIGIN = re.compile(r"# Resolved by ascent \S+ from (.+?); itself a recipe")


class RunReader:
    """What the page knows about one run; it is read again where a file has changed."""

    def __init__(self, name: str, path: Path, *, with_output: bool = False) -> None:
        self.name, self.files = name, RunFiles(path, with_output=with_output)
        self.metrics = MetricLog(self.files)
        self.lock = threading.Lock()
        self._line: dict[str, Any] = {}
        self._line_of: object = None
        self._details: dict[str, Any] = {}
        self._details_of: object = None
        self._eval_offset, self._evals, self._eval_inode = 0, list[dict[str, float]](), 0
        self._recipe: dict[str, Any] = {}
        self._recipe_of: object = None
        self._state, self._state_of = "", object()

    def recipe(self) -> dict[str, Any]:
        """Every key of the recipe with its value, dotted, with later changes; empty where no inputs were recorded."""
        signature = self.files.signature(INPUTS, CHANGES)
        if signature != self._recipe_of:
            content = self.files.json(INPUTS)
            found = content.get("recipe") if isinstance(content, dict) else None
            self._recipe, self._recipe_of = (
                dict(found) if isinstance(found, dict) else {},
                signature,
            )
            for change in self.files.records(CHANGES):
                if not change.get("input") and "key" in change:
                    self._recipe.pop(change["key"], None)
                    self._recipe |= {change["key"]: change["now"]} if "now" in change else {}
        return self._recipe

    def state(self) -> str:
        """running, finished, stopped, failed or killed; damaged where that cannot be read.

        Only the end of a running process may change no file: every start writes the lock, every outcome its file.
        """
        signature = self.files.signature(LOCK, OUTCOME)
        if signature != self._state_of or self._state == "running":
            self._state, self._state_of = self._read_state(), signature
        return self._state

    def _read_state(self) -> str:
        if any((self.files.path / name).is_symlink() for name in (LOCK, OUTCOME)):
            return "damaged"
        try:
            return state_of(self.files.path)
        except (ValueError, OSError, KeyError, TypeError):
            return "damaged"

    def line(self) -> dict[str, Any]:
        """The cheap part."""
        signature = self.files.signature(METRICS, INPUTS, CHANGES, CONFIG, WARNINGS)
        if signature != self._line_of:
            self._line, self._line_of = self._read_line(), signature
        state = self.state()
        left = self._line["time_left"] if state == "running" else None
        return {**self._line, "state": state, "time_left": left}

    def _read_line(self) -> dict[str, Any]:
        recipe, (last, earlier) = self.recipe(), self._recent()
        origin = _ORIGIN.match(self.files.text(CONFIG, 200))
        steps = recipe.get("run.steps")
        total = int(steps) if isinstance(steps, int | float) else None
        return {
            "id": self.name,
            "recipe": origin[1] if origin and origin[1] != "Python" else "",
            "algorithm": str(recipe.get("algorithm", "")),
            "model": str(recipe.get("model.policy", "")),
            "seed": recipe.get("seed"),
            "step": int(last.get("step", 0)),
            "steps": total,
            "updated": last.get("timestamp"),
            "time_left": _time_left(last, earlier, total),
            "warnings": len(self.files.records(WARNINGS)),
        }

    def _recent(self) -> tuple[dict[str, float], dict[str, float]]:
        """The last line of metrics, and one some lines before it."""
        with self.files.open(METRICS) as file:
            lines = (
                seek.read_backwards(file, seek.last_line_end(file))
                if file is not None
                else iter(())
            )
            records = (
                numbers(seek.parse(line) or {})
                for place, (_, line) in enumerate(lines)
                if not place % PACE_LINES
            )
            found = (record for record in records if "step" in record)
            return next(found, {}), next(found, {})

    def details(self) -> dict[str, Any] | None:
        """The part that reads more, if it is up to date."""
        return self._details if self._details_of == self._details_signature() else None

    def _details_signature(self) -> object:
        return self.files.signature(METRICS, ANSWERS, INPUTS, CHANGES)

    def scores(self) -> dict[str, Any]:
        """The same, read now."""
        if self.details() is None:
            self.update_details()
        return self._details

    def update_details(self) -> None:
        signature = self._details_signature()
        self._read_evaluations()
        name = next(
            (
                each
                for each in MAIN
                if each.startswith(EVAL) and any(each in row for row in self._evals)
            ),
            None,
        )
        self._details, self._details_of = {"metric": name, **self._spark()}, signature
        if name is not None:
            scored = [
                (int(row["step"]), row[name])
                for row in self._evals
                if math.isfinite(row.get(name, math.nan))
            ]
            records = self.files.records(CHANGES)
            changes = [
                each for each in records if "key" in each and isinstance(each.get("step"), int)
            ]
            step, value = best_point(name, scored, changes, self.recipe())
            self._details |= {
                "last": self.score(name, *scored[-1]),
                "best": self.score(name, int(step), value),
            }

    def _spark(self) -> dict[str, Any]:
        with self.files.open(METRICS) as file:
            lines = seek.spread_lines(file, SPARK_POINTS) if file is not None else []
        for name in MAIN:
            # Of a few numbers in many lines: not worth parsing them.
            pattern = re.compile(rb'"%s":\s*(-?[0-9.eE+-]+)' % re.escape(name.encode()))
            values = [
                float(f"{float(found[1]):.4g}") for line in lines if (found := pattern.search(line))
            ]
            if len(values) > 1:
                return {"spark": values, "spark_metric": name}
        return {"spark": [], "spark_metric": None}

    def _read_evaluations(self) -> None:
        """Lines with a held-out number are few: the others are passed over without being parsed."""
        with self.files.open(METRICS) as file:
            inode = 0 if file is None else self.files.signature(METRICS)[0][0]
            if inode != self._eval_inode or (
                file is not None and seek.size_of(file) < self._eval_offset
            ):
                self._eval_inode, self._eval_offset, self._evals = inode, 0, []
            while file is not None:
                lines, end = seek.read_lines_with(file, self._eval_offset, b'"eval/', 8 << 20)
                if end == self._eval_offset:
                    return
                records = [numbers(seek.parse(line) or {}) for line in lines]
                self._evals += [record for record in records if "step" in record]
                self._eval_offset = end

    def score(self, name: str, step: int, value: float) -> dict[str, Any]:
        """A held-out value with its 95% interval over prompts, where answers were logged."""
        low, high = answer_interval(self.answers(step), name, value) or (None, None)
        return {"value": value, "low": low, "high": high, "step": step}

    def answers(self, step: int) -> list[dict[str, Any]]:
        with self.files.open(ANSWERS) as file:
            found = seek.read_step(file, step) if file is not None else iter(())
            return [record for record in found if record is not None]


class Library:
    """All runs below some folders, by name: the path relative to the folder that was given."""

    def __init__(self, folders: Sequence[Path]) -> None:
        missing = [str(each) for each in folders if not each.is_dir()]
        if missing:
            raise ValueError(
                f"{', '.join(missing)}: no such folder; give folders that hold runs, such as runs"
            )
        self._roots = [each.resolve() for each in folders]
        self._runs: dict[str, RunReader] = {}
        self._walked = -math.inf
        self._lock = threading.Lock()

    def runs(self) -> dict[str, RunReader]:
        with self._lock:
            if time.monotonic() - self._walked > SECONDS_BETWEEN_WALKS:
                known = {run.files.path: run for run in self._runs.values()}
                names = self._names()
                self._runs = {
                    name: known.get(path) or self._reader(name, path)
                    for name, path in names.items()
                }
                self._walked = time.monotonic()
            return self._runs

    def _reader(self, name: str, path: Path) -> RunReader:
        """What lies beside a run folder is read only where that is below a given folder, too."""
        return RunReader(name, path, with_output=any(root in path.parents for root in self._roots))

    def _names(self) -> dict[str, Path]:
        found: dict[str, Path] = {}
        for root in self._roots:
            for path in find_runs(root):
                inside = root.name if path == root else str(path.relative_to(root))
                name = (
                    inside
                    if len(self._roots) == 1
                    else str(Path(root.name) / path.relative_to(root))
                )
                while found.get(name, path) != path:  # two folders of one name
                    name += "'"
                found.setdefault(name, path)
        return found

    def run(self, name: str) -> RunReader:
        run = self.runs().get(name)
        if run is None:
            raise FileNotFoundError(
                f"there is no run {name!r} here; it may have been moved or deleted"
            )
        return run

    def lines(self, seconds: float) -> tuple[list[dict[str, Any]], int]:
        """One line about every run, and how many of them will have more to say next time."""
        deadline, pending, found = time.monotonic() + seconds, 0, []
        for run in self.runs().values():
            with run.lock:
                line = run.line()
                if run.details() is None and time.monotonic() < deadline:
                    run.update_details()
                details = run.details()
            pending += details is None
            found.append({**line, **(details or {})})
        return found, pending


def answer_interval(
    answers: Sequence[dict[str, Any]], name: str, value: float
) -> tuple[float, float] | None:
    """The 95% interval of a held-out mean over prompts: Wilson's for right and wrong, else by its standard error."""
    field = name.removeprefix(f"{EVAL}reward/")
    if not answers or not name.startswith(f"{EVAL}reward/"):
        return None
    values = [
        {"correct": each.get("correct"), "mean": each.get("reward")}.get(
            field, (each.get("parts") or {}).get(field)
        )
        for each in answers
    ]
    scored = [float(each) for each in values if isinstance(each, int | float)]
    if not scored:
        return None
    if set(scored) <= {0.0, 1.0} and 0 <= value <= 1:
        count = len(scored) if len(scored) < len(values) else int(answers[0].get("of", len(scored)))
        return wilson(value * count, count)[1:3]
    mean = math.fsum(scored) / len(scored)
    spread = math.sqrt(
        math.fsum((each - mean) ** 2 for each in scored) / max(len(scored) - 1, 1) / len(scored)
    )
    complete = len(answers) == answers[0].get("of") and len(scored) > 1
    return (value - NORMAL * spread, value + NORMAL * spread) if complete else None


def _time_left(
    last: dict[str, float], earlier: dict[str, float], total: int | None
) -> float | None:
    """Seconds, by the pace between two lines."""
    steps, seconds = (
        last.get(key, math.nan) - earlier.get(key, math.nan) for key in ("step", "timestamp")
    )
    known = total is not None and steps > 0 and math.isfinite(seconds)
    return max((total or 0) - last["step"], 0) * seconds / steps if known else None
