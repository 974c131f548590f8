"""Running sums: every total is a step, rewarded at the token that ends it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascent.models.tiny import tiny_tokenizer
from ascent.records import StepReward
from ascent.tasks.noise import Noise
from ascent.tasks.running_sum import RUNNING_SUM, draw, parts, steps
from ascent.tasks.task import at_tokens


def test_the_totals_are_right() -> None:
    for index in range(200):
        problem = draw(Noise("sum", index))
        numbers = [int(number) for number in problem.question.removeprefix("add ").removesuffix(" =").split(" ")]
        assert problem.answer.split(" ") == [str(sum(numbers[: n + 1])) for n in range(len(numbers))]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("3 11 13", [(1, 1), (4, 1), (7, 1)]),
        ("3 12 13", [(1, 1), (4, 0), (7, 1)]),
        ("3 11", [(1, 1), (4, 1), (5, 0)]),
        ("3 11 13 13", [(1, 1), (4, 1), (7, 1), (10, 0)]),
        (" 3  x", [(2, 1), (5, 0), (6, 0)]),
        ("", [(1, 0)]),
        ("  ", [(3, 0)]),
    ],
)
def test_steps_by_hand(text: str, found: list[tuple[int, float]]) -> None:
    assert list(steps("3 11 13", text)) == found


@pytest.mark.parametrize(
    ("text", "correct", "total", "share"),
    [("3 11 13", 1, 1, 1), ("3 12 13", 0, 1, 2 / 3), ("3 11", 0, 0, 2 / 3), ("13", 0, 1, 0), ("", 0, 0, 0)],
)
def test_parts_by_hand(text: str, correct: float, total: float, share: float) -> None:
    assert parts("3 11 13", text) == pytest.approx({"correct": correct, "total": total, "steps": share})


@given(st.text(max_size=20) | st.text("0123456789 ", max_size=20))
def test_every_text_has_a_step_and_one_behind_it_where_totals_are_missing(text: str) -> None:
    found = steps("3 11 13", text)
    ends = [each.end for each in found]
    assert found and ends == sorted(set(ends))
    assert ends[-1] == len(text) + 1 if len(text.split()) < 3 else ends[-1] <= len(text)


def test_step_rewards_stand_at_the_tokens_that_end_the_steps() -> None:
    """With merged tokens, so that characters and tokens do not coincide, and an end token that writes nothing."""
    tokenizer = tiny_tokenizer(["3 11 13 11 13 3 11"] * 4, vocabulary=262)
    tokens = [*tokenizer.encode("3 11 13"), tokenizer.eos_token_id]
    ends = [len(tokenizer.decode(tokens[: n + 1], skip_special_tokens=True)) for n in range(len(tokens))]
    assert len(tokens) < 8
    prompt = RUNNING_SUM.prompts("train", 1)[0]
    rewards = at_tokens(steps("3 11 13", "3 11 13"), ends)
    assert [tokenizer.decode(tokens[: each.token + 1]) for each in rewards] == ["3", "3 11", "3 11 13"]
    assert RUNNING_SUM.verify_steps(prompt, str(prompt.answer))[-1] == (len(str(prompt.answer)), 1.0)


def test_tokens_by_hand() -> None:
    scores = steps("3 11", "3 12")
    assert at_tokens(scores, [1, 2, 3, 4, 4]) == (StepReward(0, 1.0), StepReward(3, 0.0))
    assert at_tokens(scores, [2, 4]) == (StepReward(0, 1.0), StepReward(1, 0.0))
    assert at_tokens(steps("3 11", ""), [0]) == (StepReward(0, 0.0),)
    assert at_tokens(steps("3 11", "3"), [1, 1]) == (StepReward(0, 1.0), StepReward(1, 0.0))  # the end token
    with pytest.raises(ValueError, match="ends at character 4, but the tokens write 2"):
        at_tokens(scores, [1, 2])
