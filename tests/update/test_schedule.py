"""Learning rates at every step of small runs, by hand."""

from __future__ import annotations

import math

import pytest

from ascent.update.schedule import Schedule


def rates(schedule: Schedule, steps: int) -> list[float]:
    return [schedule.at(step) for step in range(steps)]


def test_a_linear_schedule_by_hand() -> None:
    assert rates(Schedule(1.0, "linear", warmup=3, total=7), 9) == [
        0.25,
        0.5,
        0.75,
        1.0,
        0.75,
        0.5,
        0.25,
        0.0,
        0.0,
    ]


def test_a_cosine_schedule_by_hand() -> None:
    expected = [1.0, 0.5 + math.sqrt(2) / 4, 0.5, 0.5 - math.sqrt(2) / 4, 0.0]
    assert rates(Schedule(2.0, "cosine", total=4), 5) == pytest.approx(
        [2 * each for each in expected], abs=1e-15
    )


def test_constant_warms_up_and_stays() -> None:
    assert rates(Schedule(3.0, warmup=2), 5) == [1.0, 2.0, 3.0, 3.0, 3.0]
    assert Schedule(3.0, total=2).at(10) == 3.0


@pytest.mark.parametrize("shape", ["linear", "cosine"])
def test_no_step_of_the_run_is_wasted_and_none_exceeds_the_peak(shape: str) -> None:
    found = rates(Schedule(1e-6, shape, warmup=5, total=40), 40)
    assert min(found) > 0
    assert max(found) == found[5] == 1e-6


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"shape": "square"}, "'square' does not exist; choose one of constant, linear, cosine"),
        ({"shape": "linear"}, "give the total number of steps"),
        (
            {"shape": "cosine", "warmup": 10, "total": 10},
            "warm-up of 10 steps leaves nothing of 10",
        ),
        ({"warmup": -1}, "warm-up of -1 steps"),
        ({"peak": 0.0}, "learning rate 0.0 must be"),
        ({"peak": math.inf}, "learning rate inf must be"),
    ],
)
def test_impossible_schedules_are_refused(values: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Schedule(**{"peak": 1.0, **values})
    with pytest.raises(ValueError, match="counted from 0"):
        Schedule(1.0).at(-1)
