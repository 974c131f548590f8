"""Workers that are late or die are replaced; answers keep their order."""

import sys
import time

import pytest

from ascent.sandbox.pool import Died, Late, Pool

ECHO = """
import json, sys, time, os
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    job = json.loads(line)
    if job == "hang": time.sleep(60)
    if job == "die": os._exit(3)
    if isinstance(job, float): time.sleep(job)
    print(json.dumps([job, os.getpid()]), flush=True)
"""


@pytest.fixture
def pool():
    with Pool(lambda slot: [sys.executable, "-c", ECHO], 2) as pool:
        yield pool


def test_order_and_reuse(pool):
    answers = pool.map([0.2, 0.0, "a", "b", "c"], 10)
    assert [answer[0] for answer in answers] == [0.2, 0.0, "a", "b", "c"]
    assert len({answer[1] for answer in answers}) <= 2


def test_late_and_dead_workers_are_replaced(pool):
    start = time.monotonic()
    answers = pool.map(["hang", "die", "a", "b", "c", "d"], 1.0)
    assert isinstance(answers[0], Late) and isinstance(answers[1], Died) and "status 3" in str(answers[1])
    assert [answer[0] for answer in answers[2:]] == ["a", "b", "c", "d"]
    assert time.monotonic() - start < 10


def test_a_worker_that_does_not_start():
    with (
        Pool(lambda slot: [sys.executable, "-c", "print('{}')"], 1) as pool,
        pytest.raises(Died, match="did not start"),
    ):
        pool.ask("a", 1)


def test_closed_and_empty_pools():
    pool = Pool(lambda slot: ["true"], 1)
    assert pool.map([], 1) == []
    pool.close()
    with pytest.raises(ValueError, match="the pool is closed"):
        pool.ask("a", 1)
    with pytest.raises(ValueError, match="at least 1"):
        Pool(lambda slot: ["true"], 0)
