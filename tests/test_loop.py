"""The loop with a real, tiny learner: order of events, stopping, resuming to the same numbers."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from ascent.loop import LoopParts, Schedule, TrainedModel, load_state, run, state_of


class Value:
    def __init__(self, number: float) -> None:
        self.number = number

    def value(self) -> float:
        return self.number

    def merge(self, other: Value) -> Value:
        return Value(max(self.number, other.number))


class Slope:
    """A learner of one number: gradient descent on (w - target)^2, with momentum as the state that must survive."""

    def __init__(self) -> None:
        self.w, self.speed = 0.0, 0.0

    def logprobs(self, batch: Any) -> Any:
        raise NotImplementedError

    def begin_step(self, step: int) -> None: ...

    def step(self, batches: Sequence[Any], objective: Any) -> Mapping[str, Value]:
        for target in batches:
            self.speed = 0.9 * self.speed - 0.1 * objective(self.w, target)
        self.w += self.speed
        return {"w": Value(self.w)}

    def weights(self) -> dict[str, Any]:
        return {"w": self.w}

    def state(self) -> dict[str, Any]:
        return {"w": self.w, "speed": self.speed}

    def load_state(self, state: dict[str, Any]) -> None:
        self.w, self.speed = state["w"], state["speed"]

    def close(self) -> None: ...


class Targets:
    """A source whose batches depend on how many were taken and on the newest weights."""

    def __init__(self) -> None:
        self.taken, self.seen = 0, 0.0

    def next(self, step: int) -> list[float]:
        self.taken += 1
        return [float(self.taken % 3), 0.1 * self.seen]

    def more(self, stats: Mapping[str, Any]) -> list[float]:
        return []

    def report(self) -> dict[str, Value]:
        return {}

    def refresh(self, weights: Mapping[str, Any]) -> None:
        self.seen = weights["w"]

    def state(self) -> dict[str, Any]:
        return {"taken": self.taken, "seen": self.seen}

    def load_state(self, state: dict[str, Any]) -> None:
        self.taken, self.seen = state["taken"], state["seen"]


class Log:
    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.rows.append((step, dict(metrics)))

    def close(self) -> None: ...


def slope(w: float, target: float) -> float:
    return 2 * (w - target)


def parts(
    saved: dict[int, Any], names: tuple[str, ...] = ("policy",), evaluated: bool = True
) -> LoopParts:
    return LoopParts(
        source=Targets(),
        trained=[TrainedModel(name, Slope(), slope) for name in names],
        tracker=Log(),
        save=lambda step, state: saved.__setitem__(step, state),
        evaluate=(lambda step: {"score": float(step)}) if evaluated else None,
    )


SCHEDULE = Schedule(steps=10, save_every=4, evaluate_every=3)


def test_saves_and_evaluations_happen_when_they_should_and_at_the_end() -> None:
    saved: dict[int, Any] = {}
    made = parts(saved)
    assert run(made, SCHEDULE) == 10
    assert sorted(saved) == [4, 8, 10]
    rows = made.tracker.rows  # type: ignore[attr-defined]
    assert [step for step, _ in rows] == list(range(1, 11))
    assert [step for step, row in rows if "score" in row] == [3, 6, 9, 10]


def test_resuming_from_every_checkpoint_ends_in_the_same_bits() -> None:
    saved: dict[int, Any] = {}
    whole = parts(saved)
    run(whole, SCHEDULE)
    for step in (4, 8):
        again = parts({})
        load_state(again.source, again.trained, saved[step])
        assert run(again, SCHEDULE, done=step) == 10
        assert state_of(again) == state_of(whole)


def test_a_stop_finishes_the_step_saves_and_returns() -> None:
    saved: dict[int, Any] = {}
    made = parts(saved)
    calls = iter([False, False, True])
    assert run(made, SCHEDULE, stop=lambda: next(calls)) == 3
    assert sorted(saved) == [3]


def test_a_second_learner_logs_under_its_name_and_both_are_saved() -> None:
    saved: dict[int, Any] = {}
    made = parts(saved, names=("policy", "critic"), evaluated=False)
    run(made, SCHEDULE)
    assert set(made.tracker.rows[0][1]) >= {"w", "critic/w"}  # type: ignore[attr-defined]
    assert set(saved[10]["learners"]) == {"policy", "critic"}


def test_the_policy_may_wait_while_the_critic_learns() -> None:
    made = parts({}, names=("policy", "critic"), evaluated=False)
    made = replace(made, trained=[made.trained[0]._replace(starts=3), made.trained[1]])
    run(made, SCHEDULE)
    rows = dict(made.tracker.rows)  # type: ignore[attr-defined]
    assert [step for step in range(1, 11) if "w" in rows[step]] == list(range(3, 11))
    assert all("critic/w" in row for row in rows.values())


def test_a_stop_that_was_due_when_the_run_was_saved_is_due_still() -> None:
    made = parts({})
    assert run(made, SCHEDULE, done=4, stop=lambda: True) == 4
    assert made.tracker.rows == []  # type: ignore[attr-defined]
    assert run(parts({}), SCHEDULE, done=4) == 10


def test_nothing_left_to_train_is_said_and_not_passed_over() -> None:
    with pytest.raises(ValueError, match=r"at step 11, but run\.steps=10"):
        run(parts({}), SCHEDULE, done=11)
    assert run(parts({}), SCHEDULE, done=10) == 10


def test_a_checkpoint_of_another_recipe_is_refused() -> None:
    saved: dict[int, Any] = {}
    run(parts(saved), SCHEDULE)
    other = parts({}, names=("policy", "critic"))
    with pytest.raises(ValueError, match=r"learners \['policy'\] are not this run's"):
        load_state(other.source, other.trained, saved[10])


class Passes(Targets):
    """Three updates in even steps, ended early once the weight passes 1; none at all in step 5."""

    def __init__(self) -> None:
        super().__init__()
        self.given = 0

    def next(self, step: int) -> list[float]:
        batches = super().next(step)
        self.given, self.most = 1, 3 if step % 2 == 0 else 1
        return [] if step == 5 else batches

    def more(self, stats: Mapping[str, Any]) -> list[float]:
        if self.given == self.most or stats["w"].value() > 1:
            return []
        self.given += 1
        return [0.5]

    def report(self) -> dict[str, Value]:
        return {"updates": Value(float(self.given))}


def test_a_step_may_take_several_updates_or_none() -> None:
    made = parts({}, evaluated=False)
    made = LoopParts(Passes(), made.trained, made.tracker, made.save)
    run(made, SCHEDULE)
    rows = dict(made.tracker.rows)  # type: ignore[attr-defined]
    assert [rows[step]["updates"] for step in (1, 2, 3)] == [1.0, 3.0, 1.0]
    assert "w" not in rows[5]  # nothing was trained, and the source's own report is still logged
    again = parts({}, evaluated=False)
    again = LoopParts(Passes(), again.trained, again.tracker, again.save)
    run(again, SCHEDULE)
    assert state_of(again) == state_of(made)


class SlowTargets(Targets):
    """Samples for 10 ms of the 30 ms that it takes to make a batch."""

    def next(self, step: int) -> list[float]:
        time.sleep(0.03)
        return super().next(step)

    def report(self) -> dict[str, Value]:
        return {"time/sample": Value(0.01)}

    def refresh(self, weights: Mapping[str, Any]) -> None:
        time.sleep(0.01)
        super().refresh(weights)


def test_the_phases_of_a_step_add_up_to_its_time() -> None:
    made = replace(parts({}), source=SlowTargets())
    run(made, Schedule(steps=3, save_every=3, evaluate_every=2))
    rows = dict(made.tracker.rows)  # type: ignore[attr-defined]
    assert [step for step, row in rows.items() if "time/evaluate" in row] == [2, 3]
    for row in rows.values():
        phases = [row[f"time/{name}"] for name in ("sample", "prepare", "update", "refresh")]
        assert row["time/prepare"] >= 0.02 and row["time/refresh"] >= 0.01
        assert 0.9 * row["time/step"] <= sum(phases) <= row["time/step"]


def test_time_of_trackers_and_checkpoints_is_logged_with_the_next_step() -> None:
    made = parts({})
    log = made.tracker

    class SlowLog:
        def log(self, step: int, metrics: Mapping[str, float]) -> None:
            time.sleep(0.02)
            log.log(step, metrics)

        def close(self) -> None: ...

    def save(step: int, state: dict[str, Any]) -> None:
        time.sleep(0.03)

    run(
        replace(made, tracker=SlowLog(), save=save),
        Schedule(steps=4, save_every=2, evaluate_every=9),
    )
    rows = dict(log.rows)  # type: ignore[attr-defined]
    assert [step for step, row in rows.items() if "time/log" in row] == [2, 3, 4]
    assert [step for step, row in rows.items() if "time/save" in row] == [3]
    assert rows[2]["time/log"] >= 0.02 and rows[3]["time/save"] >= 0.03
