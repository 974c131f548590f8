"""A reward is tried on one made-up completion before anything is sampled."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from ascent.records import Message, Prompt, Rollout
from ascent.rewards import Batch
from ascent.rewards.calls import CallOptions
from ascent.rewards.combine import Combination, Term
from ascent.rewards.outcome import OnError, RewardFailed
from ascent.rewards.registry import bind
from ascent.rollouts.generate import RenderedPrompt
from ascent.rollouts.score import RewardPipeline
from ascent.setup.reward_trial import try_rewards

ASKED = RenderedPrompt(Prompt("p", (Message("user", "2+2?"),), "4"), (5, 6))


def tried(function: Any, on_error: OnError = "bugs") -> tuple[str, ...]:
    reward = function if isinstance(function, Batch) else bind("f", function, {})
    pipeline = RewardPipeline(
        {"f": reward}, {"f": CallOptions(5, on_error)}, Combination((Term("f"),))
    )
    return try_rewards(pipeline, ASKED, lambda text: [ord(each) for each in text])


def test_it_sees_the_prompt_and_its_answer_and_leaves_random_numbers_alone() -> None:
    seen: list[Rollout] = []

    def f(rollout: Rollout) -> float:
        seen.append(rollout)
        return random.random()

    random.seed(1)
    assert tried(f) == ()
    after = random.random()
    random.seed(1)
    assert random.random() == after
    assert [(each.text, each.prompt.id, each.length) for each in seen] == [("4", "p", 1)]


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda rollout: "good", "wrong_type: returned 'good'.*nothing has been sampled yet"),
        (lambda completions: [1.0, 2.0], "wrong_count: a batch returned 2 scores for 1 rollouts"),
        (
            lambda rollout: undefined_name,  # type: ignore[name-defined] # noqa: F821
            r"NameError: name 'undefined_name' is not defined at .*\.py:\d+, in <lambda>",
        ),
        (
            lambda rollout: __import__("no_such_module"),
            "ModuleNotFoundError: No module named 'no_such_module' at",
        ),
        (lambda rollout: float("inf"), "infinite"),
    ],
)
def test_bugs_stop_before_sampling(function: Callable[..., Any], words: str) -> None:
    with pytest.raises(RewardFailed, match=words):
        tried(function)
    assert len(tried(function, "never")) == 1


def test_what_may_be_due_to_the_text_is_only_noted() -> None:
    (note,) = tried(lambda rollout: int("x" + rollout.text))
    assert "ValueError: invalid literal" in note and "called with rollout.text='4'" in note
    assert note.endswith("rollouts that fail so are unscored")
    with pytest.raises(RewardFailed, match="ValueError"):
        tried(lambda rollout: int("x"), "failures")
    assert tried(lambda rollout: None) == ()  # it could not score this one


def test_built_in_rewards_are_not_tried() -> None:
    from ascent.rewards import find

    class Costly(Batch):
        def score(self, rollouts: Any) -> Any:
            raise ValueError("called")

    maths = find("mathematics", workers=1)
    assert tried(maths) == ()
    assert "ValueError: called" in tried(Costly())[0]
