"""The only training loop: next batch, update, refresh, evaluate, save.

It sees protocols and nothing else, so supervised fine-tuning, preference optimization and reinforcement learning are
the same twenty lines: what differs lives in the source (files, or rollouts of the current policy) and in the
objective. A step is one optimizer step of every learner, or several on the same rollouts. All that is needed to
continue exactly is given to `save`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ascent.protocols import Learner, Metric, Objective, Source, State, Tracker


class TrainedModel(NamedTuple):
    """A learner and what it minimizes. PPO with a separate critic has two of these; everyone else has one.

    The first is the policy. It is left alone before step `starts`: a critic may learn from it first.
    """

    name: str
    learner: Learner
    objective: Objective
    starts: int = 1


@dataclass(frozen=True)
class LoopParts:
    """What the loop drives. `evaluate` returns numbers to log; `save` makes the state durable before it returns."""

    source: Source
    trained: Sequence[TrainedModel]
    tracker: Tracker
    save: Callable[[int, State], None]
    evaluate: Callable[[int], Mapping[str, float]] | None = None


@dataclass(frozen=True)
class Schedule:
    """When things happen, in steps. The last step is always saved, and evaluated where there is an evaluation."""

    steps: int
    save_every: int
    evaluate_every: int


def run(parts: LoopParts, schedule: Schedule, *, done: int = 0, stop: Callable[[], bool] = lambda: False) -> int:
    """Train from step `done` + 1 to the schedule's end, or until `stop` says so; returns the last step finished.

    A stop is looked at between steps only: the step under way is finished and saved. One that was due when the run was
    saved is due still.
    """
    if done > schedule.steps:
        raise ValueError(
            f"the checkpoint is at step {done}, but run.steps={schedule.steps}; raise run.steps to train further"
        )
    if done and stop():
        return done
    for step in range(done + 1, schedule.steps + 1):
        metrics = _update(parts, step)
        last = step == schedule.steps or stop()
        if parts.evaluate is not None and (last or step % schedule.evaluate_every == 0):
            metrics |= parts.evaluate(step)
        parts.tracker.log(step, metrics)
        if last or step % schedule.save_every == 0:
            parts.save(step, state_of(parts))
        if last:
            return step
    return done


def _update(parts: LoopParts, step: int) -> dict[str, float]:
    """The step's optimizer steps (one for files, one or several for rollouts); then the source sees the new weights."""
    start = time.perf_counter()
    batches = parts.source.next(step)
    merged: dict[str, Metric] = {}
    updating = 0.0
    while batches:
        began = time.perf_counter()
        latest: dict[str, Metric] = {}
        for each in [each for each in parts.trained if step >= each.starts]:
            found = each.learner.step(batches, each.objective)
            latest |= found if each is parts.trained[0] else {_of(each.name, name): found[name] for name in found}
        updating += time.perf_counter() - began
        for name, metric in latest.items():
            merged[name] = merged[name].merge(metric) if name in merged else metric
        batches = parts.source.more(latest)
    parts.source.refresh(parts.trained[0].learner.weights())
    values = {name: metric.value() for name, metric in {**merged, **parts.source.report()}.items()}
    whole = time.perf_counter() - start
    speed = values.get("tokens/run", 0.0) / whole
    return values | {"time/update": updating, "time/step": whole, "time/tokens_per_s": speed}


def _of(model: str, name: str) -> str:
    """The metric of a second model: critic/loss stays, optim/grad_norm is critic/grad_norm, tokens/run
    critic/tokens_run."""
    return name if name.startswith(f"{model}/") else f"{model}/{name.removeprefix('optim/').replace('/', '_')}"


def state_of(parts: LoopParts) -> State:
    """Everything that must be in a checkpoint, by owner."""
    return {"source": parts.source.state(), "learners": {each.name: each.learner.state() for each in parts.trained}}


def load_state(parts: LoopParts, state: State) -> None:
    """Put a saved state back into freshly built parts."""
    missing = {each.name for each in parts.trained} ^ set(state["learners"])
    if missing:
        raise ValueError(
            f"the checkpoint's learners {sorted(state['learners'])} are not this run's; use the recipe that made it"
        )
    parts.source.load_state(state["source"])
    for each in parts.trained:
        each.learner.load_state(state["learners"][each.name])
