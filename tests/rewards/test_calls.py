"""Rewards that raise, hang, lie about their count: each rollout keeps its place and its reason."""

import asyncio
import math
import threading
import time

import pytest

from ascent.rewards import Unscored, batched
from ascent.rewards.calls import MOST_ABANDONED, score_all
from ascent.rewards.outcome import RewardFailed, Tally
from tests.rewards.rollouts import rollout

ROLLOUTS = [
    rollout(text, name=f"p{n}") for n, text in enumerate(["1", "raise", "nan", "hang", "inf", "word", "none", "2"])
]


def misbehave(each):
    if each.text == "raise":
        raise KeyError("gone")
    if each.text == "hang":
        time.sleep(30)
    if each.text == "word":
        return "three"
    return (
        {"nan": math.nan, "inf": math.inf, "none": None}.get(each.text) if not each.text.isdigit() else int(each.text)
    )


async def misbehave_async(each):
    if each.text == "hang":
        await asyncio.sleep(30)
    return misbehave(each)


KINDS = [None, "raised", "nan", "timeout", "infinite", "wrong_type", "none", None]


@pytest.mark.parametrize("reward", [misbehave, misbehave_async])
def test_each_failure_is_that_rollouts_own(reward):
    tally = Tally()
    found = score_all({"r": reward}, ROLLOUTS, timeout=0.3, stop_on="never", tally=tally)
    kinds = [each["r"].failure.kind if each["r"].failure else None for each in found]
    assert kinds == KINDS
    assert found[0]["r"].parts == {"": 1.0} and found[-1]["r"].parts == {"": 2.0}
    assert tally.counters()["rewards/r/scored"] == 2
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
    found = score_all({"r": batched(lambda rollouts: returned)}, ROLLOUTS[:2], timeout=1, stop_on="never")
    assert [each["r"].failure.kind for each in found] == [kind, kind]


def test_a_batch_that_raises_or_hangs():
    def raises(rollouts):
        raise RuntimeError("no")

    for function, kind in ((raises, "raised"), (lambda rollouts: time.sleep(30), "timeout")):
        found = score_all({"r": batched(function)}, ROLLOUTS[:3], timeout=0.2)
        assert [each["r"].failure.kind for each in found] == [kind] * 3


def test_a_batch_may_name_its_reasons():
    found = score_all({"r": batched(lambda rollouts: [0.5, Unscored("no_gold", "x")])}, ROLLOUTS[:2], timeout=1)
    assert found[0]["r"].parts == {"": 0.5} and found[1]["r"].failure.kind == "no_gold"


def test_system_exit_in_a_reward_ends_nothing():
    def leave(each):
        raise SystemExit(0)

    found = score_all({"r": leave}, ROLLOUTS[:1], timeout=1)
    assert found[0]["r"].failure.kind == "raised"


def test_calls_run_side_by_side_and_answers_keep_their_order():
    def slow(each):
        time.sleep(0.2 if each.text == "1" else 0.1)
        return float(len(each.prompt.id))

    many = [rollout("1" if n % 2 else "2", name="p" * (n + 1)) for n in range(16)]
    start = time.monotonic()
    found = score_all({"r": slow}, many, timeout=5)
    assert [each["r"].parts[""] for each in found] == [float(n + 1) for n in range(16)]
    assert time.monotonic() - start < 1.6  # one after another: 2.4 s


def test_hanging_calls_wait_together():
    wait, start = threading.Event(), time.monotonic()
    found = score_all({"hangs_together": lambda each: wait.wait()}, ROLLOUTS[:4], timeout=0.3)
    assert [each["hangs_together"].failure.kind for each in found] == ["timeout"] * 4
    assert time.monotonic() - start < 1.0  # one after another: 1.2 s
    wait.set()


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
    many = [rollout(name=f"p{n}") for n in range(MOST_ABANDONED + 1)]
    with pytest.raises(RewardFailed, match="each call still holds a thread"):
        score_all({"always_hangs": lambda each: wait.wait()}, many, timeout=0.01)
    wait.set()
