"""Weights, gates, clipping, step rewards; an unscored part that counts leaves the total unscored."""

import math

import pytest
import torch

from ascent.advantages.estimate import estimate
from ascent.algorithms import TABLE
from ascent.records import StepReward
from ascent.rewards import find
from ascent.rewards.combine import Combination, Gate, Term
from ascent.rewards.outcome import Outcome, failed_outcome
from ascent.rollouts.batch import pack_rollouts, place_step_rewards
from tests.rewards.rollouts import rollout


def one(value):
    return Outcome({"": value})


GATED = Combination(
    (Term("maths"), Term("format", weight=0.2, gate=Gate("maths", 1.0)), Term("length", weight=0.1))
)


def test_the_worked_example():
    right = GATED.apply(rollout(), {"maths": one(1.0), "format": one(1.0), "length": one(-0.5)})
    assert right.reward == pytest.approx(1.15)
    assert right.parts == {"maths": 1.0, "format": 1.0, "length": -0.5}
    wrong = GATED.apply(rollout(), {"maths": one(0.0), "format": one(1.0), "length": one(-0.5)})
    assert wrong.reward == pytest.approx(-0.05)
    assert wrong.parts["format"] == 0.0


def test_an_unknown_gate_leaves_the_total_unknown():
    found = GATED.apply(
        rollout(), {"maths": failed_outcome("timeout", ""), "format": one(1.0), "length": one(0.0)}
    )
    assert found.reward is None and not found.scored
    assert found.parts == {"maths": None, "format": None, "length": 0.0}


def test_an_unscored_part_is_not_zero():
    both = Combination((Term("a"), Term("b")))
    assert both.apply(rollout(), {"a": one(1.0), "b": failed_outcome("raised", "")}).reward is None


def test_a_part_of_weight_0_is_shown_and_never_counts():
    shown = Combination((Term("m", part_weights={"partial": 0.0}),))
    found = shown.apply(rollout(), {"m": Outcome({"correct": 1.0, "partial": None})})
    assert found.reward == 1.0 and found.parts == {"m/correct": 1.0, "m/partial": None}


def test_a_reward_may_say_what_its_parts_count():
    shaped = Term.of("c", find("cosine_length", max_length=10, of="exact"), weight=2.0)
    found = Combination((shaped,)).apply(
        rollout(), {"c": Outcome({"correct": 1.0, "shaped": 0.75})}
    )
    assert found.reward == 1.5
    assert Term.of("exact", find("exact")).part_weights == {}


def test_parts_have_weights_of_their_own():
    terms = Combination((Term("m", weight=2.0, part_weights={"b": 0.5}),))
    assert (
        terms.apply(rollout(), {"m": Outcome({"a": 1.0, "b": 3.0})}).reward == 2 * 1 + 2 * 0.5 * 3
    )


def test_clipping_of_a_term_and_of_the_total():
    terms = Combination((Term("a", clip=(-1, 1)), Term("b", weight=3.0)), clip=(-2.0, 2.0))
    assert terms.apply(rollout(), {"a": one(9.0), "b": one(0.1)}).reward == pytest.approx(1.3)
    assert terms.apply(rollout(), {"a": one(9.0), "b": one(5.0)}).reward == 2.0


def test_steps_add_up_to_the_reward():
    terms = Combination((Term("process", weight=0.5), Term("outcome")))
    steps = Outcome({"": 3.0}, steps=(StepReward(0, 1.0), StepReward(2, 2.0)))
    found = terms.apply(rollout(tokens=4), {"process": steps, "outcome": one(1.0)})
    assert found.steps == (StepReward(0, 0.5), StepReward(2, 1.0), StepReward(3, 1.0))
    assert found.reward == math.fsum(step.value for step in found.steps) == 2.5


def stepwise(*values):
    return Outcome(
        {"": math.fsum(values)}, steps=tuple(StepReward(n, value) for n, value in enumerate(values))
    )


@pytest.mark.parametrize("weight", [0.1, 0.3, 0.7, 1.0, 3.0])
def test_rounding_is_no_step(weight):
    """The products of .9 and .3 add up to something else than .3 times the sum, by 2e-16 where there are five."""
    terms, k = Combination((Term("process", weight=weight),)), range(2, 8)
    found = [terms.apply(rollout(tokens=9), {"process": stepwise(*[0.9] * count)}) for count in k]
    assert [len(each.steps) for each in found] == list(k)
    assert all(
        each.reward == pytest.approx(math.fsum(step.value for step in each.steps), rel=1e-15)
        for each in found
    )


@pytest.mark.parametrize("outcome", [1.0, 0.0, 1e-6, -1.0])
def test_what_has_no_steps_is_a_step_at_the_last_token_even_if_it_is_0(outcome):
    terms = Combination((Term("process"), Term("outcome")))
    found = terms.apply(rollout(tokens=4), {"process": stepwise(0.5, 0.5), "outcome": one(outcome)})
    assert [step.token for step in found.steps] == [0, 1, 3]
    assert found.steps[-1].value == pytest.approx(outcome, abs=1e-15)
    gated = Combination((Term("process"), Term("outcome", gate=Gate("process", 2.0))))
    assert (
        len(gated.apply(rollout(tokens=4), {"process": stepwise(0.5), "outcome": one(1.0)}).steps)
        == 2
    )


@pytest.mark.parametrize("clipped", ["the total", "the reward"])
def test_a_clip_of_steps_is_a_step_at_the_last_token_whether_it_acts_or_not(clipped):
    total = (0.0, 1.0) if clipped == "the total" else None
    terms = Combination((Term("process", clip=None if total else (0.0, 1.0)),), clip=total)
    for values, change in (([0.5, 0.75], -0.25), ([0.5, 0.25], 0.0), ([0.25, -0.5], 0.25)):
        found = terms.apply(rollout(tokens=4), {"process": stepwise(*values)})
        assert found.steps == (*stepwise(*values).steps, StepReward(3, change))


def process_advantages(terms, outcomes):
    """Those of grpo_process, of one group."""
    found, row = [terms.apply(rollout(tokens=9), each) for each in outcomes], TABLE["grpo_process"]
    batch = pack_rollouts(found)
    known = batch | place_step_rewards(found, batch)
    cells = {
        "reward_shaping": row.reward_shaping,
        "advantage": row.advantage,
        "advantage_norm": row.advantage_norm,
    }
    return estimate(known, **cells).advantages_T


def test_advantages_of_steps_are_continuous_in_what_has_no_steps():
    """Steps of .3 * .9 are all alike, however many: exact zeros. 0 counts as 1e-6 does."""
    lengths = (2, 3, 5, 6)
    alike = process_advantages(
        Combination((Term("p", 0.3),)), [{"p": stepwise(*[0.9] * k)} for k in lengths]
    )
    assert not alike.any()
    terms = Combination((Term("p"), Term("right")))
    zero, small = (
        process_advantages(
            terms,
            [{"p": stepwise(0.5, 0.5), "right": one(value)} for value in (1.0, 1.0, low, low)],
        )
        for low in (0.0, 1e-6)
    )
    assert zero.any() and torch.allclose(zero, small, atol=1e-5, rtol=0)


def test_two_step_rewards_at_one_token_are_added():
    terms = Combination((Term("a"), Term("b")))
    steps = Outcome({"": 1.0}, steps=(StepReward(1, 1.0),))
    assert terms.apply(rollout(tokens=2), {"a": steps, "b": steps}).steps == (StepReward(1, 2.0),)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Combination((Term("a"), Term("a"))), "two rewards are named a"),
        (lambda: Combination((Term("a", gate=Gate("b", 1)),)), "gated on b, but the rewards are a"),
        (lambda: Combination((Term("a", gate=Gate("a", 1)),)), "part of itself"),
        (lambda: Term("a", weight=math.inf), "must be finite"),
        (lambda: Term("a", clip=(1, 1)), "lower bound must lie below"),
        (lambda: Term("a/b"), "hold no /"),
        (
            lambda: Combination((Term("a"), Term("b", gate=Gate("a/x", 1)))).apply(
                rollout(), {"a": Outcome({"y": 1.0}), "b": one(1.0)}
            ),
            "gated on a/x, but the parts are a/y",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()
