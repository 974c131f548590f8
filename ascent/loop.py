"""The only training loop: next batch, update, refresh, evaluate, save.

It knows only protocols, so supervised fine-tuning, preference optimization and reinforcement learning share it: they
differ in the source (files, or rollouts of the current policy) and in the objective. A step is one optimizer step of
every learner, or several on the same rollouts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from ascent.progress import phase
from ascent.protocols import Learner, Metric, Objective, Source, State, Tracker


class TrainedModel(NamedTuple):
    """A learner and its objective. PPO with a separate critic has two, the policy first; all others have one.

    It is not trained before step `starts`: the policy waits for the critic's warm-up.
    """

    name: str
    learner: Learner
    objective: Objective
    starts: int = 1


@dataclass(frozen=True)
class LoopParts:
    """The parts of a run. `evaluate` returns metrics; `save` makes the state durable before it returns; `on_step` is
    called before either."""

    source: Source
    trained: Sequence[TrainedModel]
    tracker: Tracker
    save: Callable[[int, State], None]
    evaluate: Callable[[int], Mapping[str, float]] | None = None
    on_step: Callable[[int, Mapping[str, float]], None] = lambda step, metrics: None


@dataclass(frozen=True)
class Schedule:
    """How often to save and evaluate, in steps. The last step is always saved and evaluated."""

    steps: int
    save_every: int
    evaluate_every: int


def run(
    parts: LoopParts, schedule: Schedule, *, done: int = 0, stop: Callable[[], bool] = lambda: False
) -> int:
    """Train from step `done` + 1 to the last step, or until `stop` is true; returns the last step finished.

    `stop` is checked after the update and after the evaluation of a step: the step is evaluated and saved. What a step
    spends on trackers and on its checkpoint is logged with the next one.
    """
    if done > schedule.steps:
        raise ValueError(
            f"the checkpoint is at step {done}, but run.steps={schedule.steps}; raise run.steps to train further"
        )
    if done and stop():
        return done
    between: dict[str, float] = {}
    for step in range(done + 1, schedule.steps + 1):
        metrics = _update(parts, step) | between
        between = {}
        parts.on_step(step, metrics)
        last = step == schedule.steps or stop()
        if parts.evaluate is not None and (last or step % schedule.evaluate_every == 0):
            with phase("evaluating"), _timed(metrics, "time/evaluate"):
                metrics |= parts.evaluate(step)
            last = last or stop()
        with _timed(between, "time/log"):
            parts.tracker.log(step, metrics)
        if last or step % schedule.save_every == 0:
            with phase("saving"), _timed(between, "time/save"):
                parts.save(step, state_of(parts))
        if last:
            return step
    return done


def _update(parts: LoopParts, step: int) -> dict[str, float]:
    """The updates of one step; then the source gets the new weights."""
    times = dict.fromkeys(("time/step", "time/prepare", "time/update", "time/refresh"), 0.0)
    merged: dict[str, Metric] = {}
    with _timed(times, "time/step"):
        learning = [each for each in parts.trained if step >= each.starts]
        for each in learning:
            each.learner.begin_step(step - each.starts)
        with _timed(times, "time/prepare"):
            batches = parts.source.next(step)
        while batches:
            latest: dict[str, Metric] = {}
            with _timed(times, "time/update"):
                for each in learning:
                    found = each.learner.step(batches, each.objective)
                    own = each is parts.trained[0]
                    latest |= (
                        found
                        if own
                        else {_metric_name(each.name, name): found[name] for name in found}
                    )
            for name, metric in latest.items():
                merged[name] = merged[name].merge(metric) if name in merged else metric
            with _timed(times, "time/prepare"):
                batches = parts.source.more(latest)
        with _timed(times, "time/refresh"):
            parts.source.refresh(parts.trained[0].learner.weights())
        values = {
            name: metric.value() for name, metric in {**merged, **parts.source.report()}.items()
        }
    sampled = values.get("time/sample", 0.0) + values.get("time/score", 0.0)
    times["time/prepare"] -= sampled - values.get(
        "time/overlap", 0.0
    )  # what ran beside the update took no time here
    return (
        values | times | {"time/tokens_per_s": values.get("tokens/run", 0.0) / times["time/step"]}
    )


@contextmanager
def _timed(times: dict[str, float], name: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    times[name] = times.get(name, 0.0) + time.perf_counter() - start


def _metric_name(model: str, name: str) -> str:
    """A metric of a second model: critic/loss stays, optim/grad_norm becomes critic/grad_norm."""
    return (
        name
        if name.startswith(f"{model}/")
        else f"{model}/{name.removeprefix('optim/').replace('/', '_')}"
    )


def state_of(parts: LoopParts) -> State:
    """The state of a checkpoint."""
    return {
        "source": parts.source.state(),
        "learners": {each.name: each.learner.state() for each in parts.trained},
    }


def load_state(source: Source, trained: Sequence[TrainedModel], state: State) -> None:
    """Restore a saved state."""
    missing = {each.name for each in trained} ^ set(state["learners"])
    if missing:
        raise ValueError(
            f"the checkpoint's learners {sorted(state['learners'])} are not this run's; use the recipe that made it"
        )
    source.load_state(state["source"])
    for each in trained:
        each.learner.load_state(state["learners"][each.name])
