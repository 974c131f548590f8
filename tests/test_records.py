import dataclasses
import math
from functools import partial

import pytest

from ascent.records import (
    Completion,
    Example,
    Group,
    Message,
    Pair,
    Prompt,
    Ranking,
    Request,
    Rollout,
    StepExample,
    StepReward,
    Turn,
    UnpairedExample,
)

ASK = Prompt("p1", (Message("user", "2 + 2?"),), answer="4")
YES, NO = (Message("assistant", "4"),), (Message("assistant", "5"),)


def completion(**changes):
    fields = {
        "prompt_id": "p1",
        "sample": 0,
        "tokens": (5, 6),
        "logprobs": (-0.1, -0.2),
        "versions": (3, 3),
        "stop": "eos",
    }
    return Completion(**(fields | changes))


def rollout(sample=0, prompt=ASK, **changes):
    return Rollout(prompt, sample, (Turn((1, 2), completion()),), **changes)


def test_records_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        ASK.id = "p2"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"logprobs": (-0.1,)}, "2 tokens but 1 logprobs"),
        ({"versions": (3, 3, 3)}, "2 tokens but 3 versions"),
        ({"log_mass": (-0.1,)}, "2 tokens but 1 log_mass"),
        ({"logprobs": (-0.1, 0.5)}, "holds 0.5"),
        ({"logprobs": (-0.1, -math.inf)}, "holds -inf"),
        ({"log_mass": (-0.1, 0.5)}, "log_mass holds 0.5"),
        ({"stop": "tired"}, "stop='tired'"),
        ({"tokens": (), "logprobs": (), "versions": ()}, "tokens is empty"),
    ],
)
def test_completion_refuses(changes, words):
    with pytest.raises(ValueError, match=words):
        completion(**changes)


def test_completion_accepts_an_unreported_logprob_and_an_aborted_empty_answer():
    assert math.isnan(completion(logprobs=(math.nan, -0.2)).logprobs[0])
    assert completion(tokens=(), logprobs=(), versions=(), stop="abort").tokens == ()


def test_truncated_means_the_budget_ended_it():
    assert completion(stop="length").truncated
    assert not completion(stop="stop").truncated


@pytest.mark.parametrize("reward", [math.inf, -math.inf])
def test_an_infinite_reward_is_refused_with_the_fix(reward):
    with pytest.raises(ValueError, match=r"reward=-?inf, but a reward is finite; return None"):
        rollout(reward=reward)
    with pytest.raises(ValueError, match=r"parts\['format'\]=-?inf"):
        rollout(reward=0.0, parts={"format": reward})
    with pytest.raises(ValueError, match=r"StepReward.value=-?inf"):
        StepReward(0, reward)


@pytest.mark.parametrize(
    ("reward", "scored"), [(None, False), (math.nan, False), (0.0, True), (-2.5, True)]
)
def test_none_and_nan_are_unscored_and_zero_is_not(reward, scored):
    assert rollout(reward=reward).scored is scored


def test_rollout_counts_sampled_tokens_over_turns():
    two = Rollout(ASK, 0, (Turn((1,), completion()), Turn((7, 8, 9), completion(stop="length"))))
    assert two.length == 4
    assert two.truncated


def test_step_rewards_lie_on_sampled_tokens():
    assert rollout(steps=(StepReward(1, 0.5),)).steps[0].value == 0.5
    with pytest.raises(ValueError, match="token 2, but only 2 tokens"):
        rollout(steps=(StepReward(2, 0.5),))
    with pytest.raises(ValueError, match="token=-1"):
        StepReward(-1, 0.5)


def test_group_holds_one_prompt_and_distinct_samples():
    assert len(Group(ASK, (rollout(0), rollout(1))).rollouts) == 2
    with pytest.raises(ValueError, match=r"samples \[1, 1\]"):
        Group(ASK, (rollout(1), rollout(1)))
    other = Prompt("p2", ASK.messages)
    with pytest.raises(ValueError, match="holds a rollout of prompt 'p2'"):
        Group(ASK, (rollout(0), rollout(1, prompt=other)))
    with pytest.raises(ValueError, match="rollouts is empty"):
        Group(ASK, ())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"temperature": 0.0}, "temperature=0.0, but it must be at least 1e-06"),
        ({"temperature": math.nan}, "temperature=nan"),
        ({"top_p": 0.0}, r"top_p=0.0, but it must lie in \(0, 1\]"),
        ({"top_p": 1.5}, "top_p=1.5"),
        ({"max_new_tokens": 0}, "max_new_tokens=0"),
        ({"tokens": ()}, "tokens is empty"),
    ],
)
def test_request_refuses(changes, words):
    fields = {"prompt_id": "p1", "sample": 0, "tokens": (1,), "max_new_tokens": 4, "seed": 0}
    assert Request(**fields).temperature == 1.0
    with pytest.raises(ValueError, match=words):
        Request(**(fields | changes))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Message("robot", "hello"), "role='robot', but it must be one of system"),
        (lambda: Prompt("p1", ()), "messages is empty"),
        (lambda: Example("e1", (Message("user", "hello"),)), "no assistant message"),
        (lambda: Pair(ASK, YES, YES), "the same answer twice"),
        (lambda: Pair(ASK, YES, ()), "an answer of Pair 'p1' is empty"),
        (lambda: Pair(ASK, YES, NO, margin=math.inf), "margin=inf"),
        (lambda: Ranking(ASK, (YES,)), r"has 1 answer\(s\)"),
        (lambda: Ranking(ASK, (YES, NO, YES)), "the same answer twice"),
        *(
            (partial(Ranking, ASK, (YES, NO), ranks), "begin at 0, never skip")
            for ranks in ((0, 0), (1, 2), (0, 2))
        ),
        *(
            (partial(Ranking, ASK, (YES, NO), ranks), "begin at 0, never skip")
            for ranks in ((1, 0), (0, 1, 2), (0,))
        ),
        (lambda: UnpairedExample(ASK, (), good=True), "an answer of UnpairedExample 'p1' is empty"),
    ],
)
def test_records_without_information_are_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_preference_records_hold_what_they_are_given():
    assert Pair(ASK, YES, NO, margin=1.0).chosen == YES
    assert Ranking(ASK, (YES, NO)).answers[0] == YES and Ranking(ASK, (YES, NO)).ranks == (0, 1)
    assert UnpairedExample(ASK, NO, good=False).good is False
    assert Example("e1", (*ASK.messages, *YES)).messages[-1].content == "4"


def test_judged_steps_have_a_verdict_each_and_one_at_least() -> None:
    prompt = Prompt("p", (Message("user", "q"),))
    assert StepExample(prompt, ("a", "b"), (0.5, None)).right == (0.5, None)
    for steps, right, words in (
        (("a",), (1.0, 0.0), "1 steps but 2 labels"),
        (("a",), (-100.0,), "a step is labeled -100.0"),
        (("a",), (None,), "no step is labeled"),
        ((), (), "steps is empty"),
    ):
        with pytest.raises(ValueError, match=words):
            StepExample(prompt, steps, right)
