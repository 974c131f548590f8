"""Held-out answers before and after: what is shown first, how it is counted, what is written."""

from __future__ import annotations

from typing import Any

from ascent.runs.eval_diff import compare, markdown, table


def record(step: int, place: int, said: str, correct: float | None) -> dict[str, Any]:
    return {
        "step": step,
        "place": place,
        "prompt": f"p{place}",
        "completion": said,
        "correct": correct,
    }


BEFORE = [
    record(0, 0, "x", 0.0),
    record(0, 1, "y", 1.0),
    record(0, 2, "z", 0.0),
    record(0, 3, "u", None),
]
MIDDLE = [record(5, place, "?", 0.0) for place in range(4)]
AFTER = [
    record(9, 0, "x", 0.0),
    record(9, 1, "w|\n", 0.0),
    record(9, 2, "good", 1.0),
    record(9, 3, "v", 1.0),
]


def test_the_first_against_the_last_with_gains_first_then_losses() -> None:
    found = compare([*BEFORE, *MIDDLE, *AFTER])
    assert found is not None
    assert (found.first, found.last) == (0, 9)
    assert [each.prompt for each in found.changes] == ["p2", "p1", "p0", "p3"]
    lines = table(found)
    assert lines[0] == (
        "4 held-out prompts, step 0 against step 9: mean 0.333 before, 0.5 after; 1 wrong -> right, 1 right -> wrong"
    )
    assert (
        lines.index("  wrong -> right:") < lines.index("    p2") < lines.index("  right -> wrong:")
    )
    assert "| right -> wrong | p1 | y | 1 | w\\| | 0 |" in markdown(found)
    assert "| same | p3 | u | ? | v | 1 |" in markdown(found)  # nobody knows whether it gained


def test_scores_that_are_no_verdicts_are_better_or_worse_by_how_much() -> None:
    first = [record(0, 0, "a", 0.5), record(0, 1, "b", 0.1), record(0, 2, "c", 2.0)]
    last = [record(3, 0, "a", 0.6), record(3, 1, "b", 0.9), record(3, 2, "c", 1.0)]
    found = compare([*first, *last])
    assert found is not None
    assert [each.prompt for each in found.changes] == ["p1", "p0", "p2"]
    assert "2 better, 1 worse" in table(found)[0]


def test_long_tables_are_cut_and_say_so() -> None:
    many = [
        record(step, place, "long " * 50, float(step > 0)) for step in (0, 4) for place in range(9)
    ]
    found = compare(many)
    assert found is not None
    assert "    and 4 more in answers.md" in table(found)
    assert max(map(len, table(found)[1:])) < 90


def test_one_evaluation_is_no_comparison() -> None:
    assert compare(BEFORE) is None
    assert compare([]) is None


def test_answers_to_other_prompts_are_not_compared() -> None:
    """Held-out data changed after step 3: what was asked there before is no comparison for what is asked now."""
    old = [record(step, place, "a", 0.0) for step in (0, 3) for place in (0, 1)]
    new = [{**record(step, 0, "b", 1.0), "prompt": "another"} for step in (4, 6)]
    found = compare([*old, *new])
    assert found is not None and (found.first, found.last, len(found.changes)) == (4, 6, 1)
    assert found.better() == found.worse() == []
    assert compare([*old, new[1]]) is None
