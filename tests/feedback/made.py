"""Questions and rows for tests."""

from __future__ import annotations

from typing import Any

from ascent.feedback.comparisons import Answer, Comparison, ShownComparison
from ascent.records import Message, Prompt


def prompt(name: str = "p", text: str = "Which?") -> Prompt:
    return Prompt(name, (Message("user", text),), "3 5 7", {"task": "style"})


def answers(*texts: str, model: str = "m", place: int = 0) -> list[Answer]:
    return [
        Answer(f"{place}.{number}", model, text, len(text)) for number, text in enumerate(texts)
    ]


def question(*texts: str, name: str = "p") -> Comparison:
    return Comparison(f"{name}#q", prompt(name), tuple(answers(*texts)))


def shown(*texts: str, name: str = "p", swapped: bool = False, repeat: int = 0) -> ShownComparison:
    order = tuple(range(len(texts)))
    return ShownComparison(question(*texts, name=name), order[::-1] if swapped else order, repeat)


def choice(
    name: str,
    annotator: str,
    verdict: str,
    *,
    swapped: bool = False,
    repeat: int = 0,
    numbers: Any = None,
) -> dict[str, Any]:
    """A row as the ledger holds it, of two answers 0.0 and 0.1."""
    ids = ["0.1", "0.0"] if swapped else ["0.0", "0.1"]
    row: dict[str, Any] = {
        "id": name,
        "annotator": annotator,
        "verdict": verdict,
        "shown": ids,
        "repeat": repeat,
    }
    return row | ({"ranks": numbers} if numbers else {})
