"""Rewards that raise, hang, lie about their count: each rollout keeps its place and its reason."""

import asyncio
import math
import threading
import time

import pytest

from ascent.rewards import Batch, Unscored, batched
from ascent.rewards.calls import MAX_ABANDONED, CallOptions, ScoringBatch, score_all
from ascent.rewards.outcome import RewardFailed, Tally
from tests.rewards.rollouts import rollout
from tests.rewards.tallies import counters
from tests.wall_clock import wall_clock

ROLLOUTS = [
    rollout(text, name=f"p{n}")
    for n, text in enumerate(["1", "raise", "nan", "hang", "inf", "word", "none", "2"])
]


def misbehave(each):
    if each.text == "raise":
        raise KeyError("gone")
    if each.text == "hang":
        time.sleep(30)
    if each.text == "word":
        return "three"
    return (
        {"nan": math.nan, "inf": math.inf, "none": None}.get(each.text)
        if not each.text.isdigit()
        else int(each.text)
    )


async def misbehave_async(each):
    if each.text == "hang":
        await asyncio.sleep(30)
    return misbehave(each)


KINDS = [None, "raised", "nan", "timeout", "infinite", "wrong_type", "none", None]


@wall_clock
@pytest.mark.parametrize("reward", [misbehave, misbehave_async])
def test_each_failure_is_that_rollouts_own(reward):
    tally = Tally()
    found = score_all({"r": reward}, ROLLOUTS, timeout=0.3, on_error="never", tally=tally)
    kinds = [each["r"].failure.kind if each["r"].failure else None for each in found]
    assert kinds == KINDS
    assert found[0]["r"].parts == {"": 1.0} and found[-1]["r"].parts == {"": 2.0}
    assert counters(tally)["rewards/r/scored"] == 2
    assert sum(tally.unscored.values()) == 6 and len(tally.unscored) == 6


def test_bugs_stop_the_run_and_say_where():
    with pytest.raises(RewardFailed, match="reward r on prompt 'p4', sample 0: infinite"):
        score_all({"r": misbehave}, [ROLLOUTS[4]], timeout=1)


@pytest.mark.parametrize(
    ("returned", "kind"),
    [
        ([1.0], "wrong_count"),
        ([1.0] * 3, "wrong_count"),
        ("ab", "wrong_type"),
        (1.0, "wrong_type"),
        (None, "wrong_type"),
    ],
)
def test_a_batch_of_the_wrong_shape_scores_nobody(returned, kind):
    found = score_all(
        {"r": batched(lambda rollouts: returned)}, ROLLOUTS[:2], timeout=1, on_error="never"
    )
    assert [each["r"].failure.kind for each in found] == [kind, kind]


@wall_clock
def test_a_batch_that_raises_or_hangs():
    def raises(rollouts):
        raise RuntimeError("no")

    for function, kind in ((raises, "raised"), (lambda rollouts: time.sleep(30), "timeout")):
        found = score_all({"r": batched(function)}, ROLLOUTS[:3], timeout=0.2)
        assert [each["r"].failure.kind for each in found] == [kind] * 3


def test_a_batch_may_name_its_reasons():
    found = score_all(
        {"r": batched(lambda rollouts: [0.5, Unscored("no_gold", "x")])}, ROLLOUTS[:2], timeout=1
    )
    assert found[0]["r"].parts == {"": 0.5} and found[1]["r"].failure.kind == "no_gold"


def test_system_exit_in_a_reward_ends_nothing():
    def leave(each):
        raise SystemExit(0)

    found = score_all({"r": leave}, ROLLOUTS[:1], timeout=1)
    assert found[0]["r"].failure.kind == "raised"


@wall_clock
def test_calls_run_side_by_side_and_answers_keep_their_order():
    def slow(each):
        time.sleep(0.2 if each.text == "1" else 0.1)
        return float(len(each.prompt.id))

    many = [rollout("1" if n % 2 else "2", name="p" * (n + 1)) for n in range(16)]
    start = time.monotonic()
    found = score_all({"r": slow}, many, timeout=5)
    assert [each["r"].parts[""] for each in found] == [float(n + 1) for n in range(16)]
    assert time.monotonic() - start < 1.6  # one after another: 2.4 s


@wall_clock
def test_hanging_calls_wait_together():
    wait, start = threading.Event(), time.monotonic()
    found = score_all({"hangs_together": lambda each: wait.wait()}, ROLLOUTS[:4], timeout=0.3)
    assert [each["hangs_together"].failure.kind for each in found] == ["timeout"] * 4
    assert time.monotonic() - start < 1.0  # one after another: 1.2 s
    wait.set()


@wall_clock
def test_a_coroutine_that_blocks_its_loop():
    async def blocks(each):
        if each.text == "hang":
            time.sleep(5)
        return 1.0

    found = score_all({"blocks": blocks}, ROLLOUTS[:4], timeout=0.2)
    kinds = [each["blocks"].failure.kind if each["blocks"].failure else None for each in found]
    assert kinds[-1] == "timeout" and kinds[:3] in ([None] * 3, ["timeout"] * 3)


def test_a_reward_that_always_hangs_stops_the_run():
    wait = threading.Event()
    many = [rollout(name=f"p{n}") for n in range(MAX_ABANDONED + 1)]
    with pytest.raises(RewardFailed, match="each call still holds a thread"):
        score_all({"always_hangs": lambda each: wait.wait()}, many, timeout=0.01)
    wait.set()


# Scoring while others are still being sampled.


def scored_as(rewards, rollouts, order, *, pause=0.0, rules=None):
    """Given in another order, and slowly."""
    scoring = ScoringBatch(
        rewards, rules or dict.fromkeys(rewards, CallOptions(0.3, "never")), len(rollouts)
    )
    tally = Tally()
    for place in order:
        scoring.add(place, rollouts[place])
        time.sleep(pause)
    return scoring.finish(tally), tally


class Pieces(Batch):
    """Says who was asked together with whom, and lies about the count where one of them says so."""

    def __init__(self, batch_size):
        self.batch_size, self.concurrency = batch_size, 2

    def score(self, rollouts):
        if any(each.text == "hang" for each in rollouts):
            return [0.0]
        return [float(sum(int(other.prompt.id[1:]) for other in rollouts)) for _ in rollouts]


@wall_clock
def test_the_order_of_arrival_changes_nothing():
    """Outcomes, counts and examples are those of scoring all at once, failures included."""
    rewards = {"plain": misbehave, "later": misbehave_async, "threes": Pieces(3), "all": Pieces(0)}
    backwards = range(len(ROLLOUTS) - 1, -1, -1)
    shuffled = [3, 0, 7, 5, 1, 6, 4, 2]
    at_once = score_all(rewards, ROLLOUTS, timeout=0.3, on_error="never", tally=(whole := Tally()))
    for order in (backwards, shuffled):
        found, tally = scored_as(rewards, ROLLOUTS, order)
        assert found == at_once
        assert tally == whole
    # p0 p1 p2 | p3 (lies) p4 p5 | p6 p7
    kinds = [each["threes"].failure.kind if each["threes"].failure else None for each in at_once]
    assert kinds == [None] * 3 + ["wrong_count"] * 3 + [None] * 2
    assert [each["threes"].parts.get("") for each in at_once] == [
        3.0,
        3.0,
        3.0,
        None,
        None,
        None,
        13.0,
        13.0,
    ]


@wall_clock
def test_scoring_overlaps_sampling():
    """Sixteen rollouts arrive one every 50 ms, each takes 200 ms to score: together little more than the arriving."""

    def slow(each):
        time.sleep(0.2)
        return 1.0

    many = [rollout(name=f"p{n}") for n in range(16)]
    rules = {"slow": CallOptions(5.0)}
    start = time.monotonic()
    found, _ = scored_as({"slow": slow}, many, range(16), pause=0.05, rules=rules)
    overlapped = time.monotonic() - start
    start = time.monotonic()
    assert score_all({"slow": slow}, many, timeout=5) == found
    afterwards = time.monotonic() - start
    print(
        f"arriving 0.8 s; overlapped {overlapped:.2f} s; scored afterwards 0.8 + {afterwards:.2f} s"
    )
    assert overlapped < 0.8 + afterwards - 0.3


def test_policies_hold_for_each_reward_by_itself():
    rules = {"strict": CallOptions(1.0, "failures"), "lax": CallOptions(1.0, "never")}
    good = [rollout("1", name="p0"), rollout("2", name="p1")]
    _, tally = scored_as({"strict": misbehave, "lax": misbehave}, good, [1, 0], rules=rules)
    assert counters(tally) == {"rewards/lax/scored": 2, "rewards/strict/scored": 2}
    with pytest.raises(RewardFailed, match="reward strict on prompt 'p1', sample 0: raised"):
        scored_as({"strict": misbehave, "lax": misbehave}, ROLLOUTS[:2], [1, 0], rules=rules)
    _, tally = scored_as({"lax": misbehave}, ROLLOUTS[:2], [1, 0], rules=rules)
    assert counters(tally) == {"rewards/lax/scored": 1, "rewards/lax/unscored/raised": 1}


def test_a_skipped_place_is_asked_of_nobody():
    scoring = ScoringBatch({"threes": Pieces(3)}, {"threes": CallOptions(1.0)}, 4)
    scoring.skip(1)
    for place in (3, 2, 0):
        scoring.add(place, ROLLOUTS[place + 4] if place == 3 else ROLLOUTS[place])
    assert [each.get("threes") and each["threes"].parts for each in scoring.finish()] == [
        {"": 2.0},
        None,
        {"": 2.0},
        {"": 7.0},
    ]


@pytest.mark.parametrize(
    "wrong", [{"timeout": 0.0}, {"timeout": "soon"}, {"timeout": 1.0, "on_error": "sometimes"}]
)
def test_a_rule_that_cannot_be(wrong):
    with pytest.raises(ValueError, match=r"timeout=|on_error="):
        CallOptions(**wrong)
