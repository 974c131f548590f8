"""Every way in which a reward can fail has a name and a count, and none of them is 0."""

import math

import pytest

from ascent.records import StepReward
from ascent.rewards.outcome import RewardFailed, Tally, Unscored, check_score, failed_outcome
from tests.rewards.rollouts import rollout
from tests.rewards.tallies import counters

FAILURES = [
    (None, "none"),
    (math.nan, "nan"),
    (math.inf, "infinite"),
    (-math.inf, "infinite"),
    ("1.0", "wrong_type"),
    (b"1", "wrong_type"),
    (object(), "wrong_type"),
    ({}, "wrong_type"),
    ({"a": "1"}, "wrong_type"),
    ({1: 1.0}, "wrong_type"),
    ({"a": math.inf}, "infinite"),
    ([1.0, 2.0], "wrong_type"),
    ([StepReward(4, 1.0)], "wrong_count"),
    ([StepReward(0, math.nan)], "nan"),
    (Unscored("bad_gold", "x"), "bad_gold"),
]


@pytest.mark.parametrize(("value", "kind"), FAILURES, ids=lambda value: str(value)[:20])
def test_a_failure_has_a_name_and_no_value(value, kind):
    found = check_score(value, rollout(tokens=4))
    assert found.failure is not None and found.failure.kind == kind
    assert not found.parts


def test_scores_are_kept():
    assert check_score(1, rollout()).parts == {"": 1.0}
    assert check_score(True, rollout()).parts == {"": 1.0}
    assert check_score({"a": 0.5, "b": None, "c": math.nan}, rollout()).parts == {
        "a": 0.5,
        "b": None,
        "c": None,
    }
    steps = check_score([StepReward(0, 0.25), StepReward(3, 0.5)], rollout(tokens=4))
    assert steps.parts == {"": 0.75} and len(steps.steps) == 2


def test_the_tally_counts_by_reason_and_keeps_the_first_case():
    tally = Tally()
    for text in "ab":
        tally.add("maths", rollout(name=text), failed_outcome("timeout", f"slow {text}"), "bugs")
    tally.add("maths", rollout(), check_score(1.0, rollout()), "bugs")
    tally.add("maths", rollout(), check_score({"x": 1.0, "y": None}, rollout()), "bugs")
    assert counters(tally) == {
        "rewards/maths/scored": 2,
        "rewards/maths/unscored/none": 1,
        "rewards/maths/unscored/timeout": 2,
    }
    assert "2 unscored (timeout), first: prompt 'a', sample 0: slow a" in tally.lines()[1]


@pytest.mark.parametrize(
    ("kind", "on_error", "stops"),
    [
        *[("infinite", "bugs", True), ("wrong_type", "bugs", True), ("wrong_count", "bugs", True)],
        *[("raised", "bugs", False), ("timeout", "bugs", False), ("nan", "bugs", False)],
        *[("infinite", "never", False), ("timeout", "failures", True), ("none", "failures", True)],
    ],
)
def test_what_stops_a_run(kind, on_error, stops):
    tally = Tally()
    if stops:
        with pytest.raises(RewardFailed, match=f"reward r on prompt 'p', sample 0: {kind}: why"):
            tally.add("r", rollout(), failed_outcome(kind, "why"), on_error)
    else:
        tally.add("r", rollout(), failed_outcome(kind, "why"), on_error)
        assert tally.unscored["r", kind] == 1


def test_the_name_of_a_reason_is_a_word():
    with pytest.raises(ValueError, match="is a word of a-z"):
        Unscored("Bad gold!")
