"""Tagged sums: three rewards that do not imply each other."""

from __future__ import annotations

import math

import pytest

from ascent.tasks.tagged import TAGGED, parts


@pytest.mark.parametrize(
    ("text", "correct", "shape", "brief"),
    [
        ("[26]", 1, 1, 1),
        ("26", 1, 0, 1),
        ("[25]", 0, 1, 1),
        ("so [ 26 ]", 1, 1, 4 / 6),
        ("so it is 26", 1, 0, 4 / 6),
        ("well so it must be now then [26]", 1, 1, 0),
        ("[26] I think", 1, 0, 5 / 6),
        ("[[26]]", 1, 0, 1),
        ("[026]", 0, 0, 1),
        ("25 26", 1, 0, 1),
        ("26 25", 0, 0, 1),
        ("so", 0, 0, 0),
        ("so-well-then-it-must-be-now-so [26]", 1, 1, 4 / 6),
        ("9" * 100 + "[26]", 1, 1, 0),
        ("", 0, 0, 0),
    ],
)
def test_scores(text: str, correct: float, shape: float, brief: float) -> None:
    assert parts("[26]", text) == pytest.approx(
        {"correct": correct, "format": shape, "brief": brief}
    )


def test_answers_are_right() -> None:
    for prompt in TAGGED.prompts("train", 200):
        numbers = prompt.messages[0].content.removesuffix(" = in []").split(" + ")
        assert prompt.answer == f"[{sum(map(int, numbers))}]"


def test_demonstrations_leave_two_things_to_learn() -> None:
    prompts, shown = TAGGED.prompts("train", 1000), TAGGED.demonstrations("train", 1000)
    scores = [TAGGED.verify(p, e.messages[-1].content) for p, e in zip(prompts, shown, strict=True)]
    for part in ("format", "brief"):
        share = sum(each[part] == 1 for each in scores) / len(scores)
        assert abs(share - 0.5) < 4 * 0.5 / math.sqrt(1000)
    both = sum(each["format"] == each["brief"] == 1 for each in scores) / len(scores)
    assert abs(both - 0.25) < 4 * 0.5 / math.sqrt(1000)
