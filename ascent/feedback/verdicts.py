"""Verdicts as rows of a dataset.

A choice is `prompt`, `chosen`, `rejected`; a ranking `prompt`, `responses`, `ranks`; ratings `prompt`, `responses`,
`ratings`. A row without a preference (tie, both bad, skipped), a repeated comparison, and one that was meant for a
single annotator and has a verdict already have a reason in the column `set_aside`: the data loader skips and counts
them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ascent.feedback.comparisons import Form, ShownComparison
from ascent.records import Message, Prompt

CHOICES = ("first", "second")
NO_PREFERENCE = {"tie": "tie", "both_bad": "both bad", "skip": "skipped"}
SET_ASIDE = "set_aside"
REPEATED, SECOND = "asked again", "judged by another annotator before"


@dataclass(frozen=True)
class Verdict:
    """`word` is first, second, tie, both_bad or skip; ranked or rated come with a number for every answer.

    both_bad refers to all answers. Rank 1 is the best, and equal ranks are ties. Higher ratings are better.
    """

    word: str
    numbers: tuple[float, ...] = ()
    comment: str = ""


@dataclass(frozen=True)
class NoVerdict:
    """A judge failed. This is not a tie: it is not written, and the comparison is repeated next time."""

    why: str


def ranks_of(numbers: Sequence[float], *, high_is_good: bool) -> tuple[float, ...]:
    """Ranks from 1; equal numbers share the rank of the first of them: 3, 9, 9 -> 3, 1, 1."""
    keys = [-each if high_is_good else each for each in numbers]
    return tuple(float(1 + sum(other < key for other in keys)) for key in keys)


def verdict_row(
    shown: ShownComparison,
    verdict: Verdict,
    *,
    form: Form,
    annotator: str,
    time: str,
    second: bool = False,
) -> dict[str, Any]:
    """One line of the file. It names the models, which the annotator does not see.

    second: another annotator has judged it, though it was meant for one.
    """
    texts = [answer.text for answer in shown.answers]
    row: dict[str, Any] = {"prompt": _prompt_value(shown.question.prompt)}
    reason = _set_aside_reason(shown, verdict) or (SECOND if second else None)
    if reason is not None:
        row |= {"answers": texts, SET_ASIDE: reason}
        if verdict.numbers:
            row["numbers"] = list(verdict.numbers)
    elif form == "pairs":
        won = CHOICES.index(verdict.word)
        row |= {"chosen": _answer(texts[won]), "rejected": _answer(texts[1 - won])}
    else:
        column = "ranks" if verdict.word == "ranked" else "ratings"
        row |= {"responses": texts, column: list(verdict.numbers)}
    row |= {
        "id": shown.question.id,
        "form": form,
        "annotator": annotator,
        "time": time,
        "verdict": verdict.word,
    }
    row |= {
        "shown": [answer.id for answer in shown.answers],
        "models": [answer.model for answer in shown.answers],
    }
    if shown.repeat:
        row["repeat"] = shown.repeat
    if verdict.comment:
        row["comment"] = verdict.comment
    return row


def numbers_in(row: Mapping[str, Any]) -> list[float]:
    """The ranks or ratings of a row, in the order in which its answers were shown."""
    return list(row.get("ranks") or row.get("ratings") or row.get("numbers") or [])


def texts_in(row: Mapping[str, Any]) -> list[str]:
    """The texts of the answers of a row, in no particular order."""
    found = row.get("responses") or row.get("answers") or [row["chosen"], row["rejected"]]
    return [each if isinstance(each, str) else each[0]["content"] for each in found]


def row_key(row: Mapping[str, Any]) -> tuple[str, int]:
    return row["id"], row.get("repeat", 0)


def _set_aside_reason(shown: ShownComparison, verdict: Verdict) -> str | None:
    if verdict.word in NO_PREFERENCE:
        return NO_PREFERENCE[verdict.word]
    if verdict.numbers and len(set(verdict.numbers)) == 1:
        return NO_PREFERENCE["tie"]
    return REPEATED if shown.repeat else None


def _prompt_value(prompt: Prompt) -> str | list[dict[str, str]]:
    only = prompt.messages[0] if len(prompt.messages) == 1 else None
    if only is not None and only.role == "user":
        return only.content
    return [_message(each) for each in prompt.messages]


def _answer(text: str) -> str | list[dict[str, str]]:
    """Text, or a message where the text would be read as a transcript."""
    return [_message(Message("assistant", text))] if text.startswith("\n\nHuman:") else text


def _message(message: Message) -> dict[str, str]:
    return {"role": message.role, "content": message.content}
