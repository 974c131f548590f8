"""Trackers: TensorBoard and Weights & Biases, imported when chosen, and the fan-out to all trackers."""

from __future__ import annotations

import importlib
import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ascent.distribution import install_hint
from ascent.protocols import Tracker


def to_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class MultiTracker:
    """Logs to the run folder, then to the other trackers.

    An error of the run folder ends the run. Another tracker that fails is reported and removed.
    """

    def __init__(
        self, run_folder: Tracker, others: Sequence[Tracker], *, say: Callable[[str], None] = to_stderr
    ) -> None:
        self._run_folder, self._others, self._say = run_folder, list(others), say

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run_folder.log(step, metrics)
        for each in list(self._others):
            try:
                each.log(step, metrics)
            except Exception as error:
                self._others.remove(each)
                self._say(
                    f"{type(each).__name__} failed at step {step} ({type(error).__name__}: {error}) and is "
                    "removed; the run continues, and all metrics are in the run folder"
                )

    def add(self, other: Tracker) -> None:
        self._others.append(other)

    def close_others(self) -> None:
        """Close all but the run folder; closing twice does nothing."""
        while self._others:
            each = self._others.pop()
            try:
                each.close()
            except Exception as error:
                self._say(f"{type(each).__name__} could not be closed ({type(error).__name__}: {error})")

    def close(self) -> None:
        self.close_others()
        self._run_folder.close()


class TensorBoard:
    """Event files for TensorBoard, written without torch or TensorFlow.

    `resumed_at` makes TensorBoard drop the points that an earlier start of the run wrote after that step.
    """

    def __init__(self, folder: Path, *, resumed_at: int | None = None) -> None:
        writer = _import("tensorboard.summary.writer.event_file_writer", "TensorBoard", "tensorboard")
        self._events = _import("tensorboard.compat.proto.event_pb2", "TensorBoard", "tensorboard")
        self._summaries = _import("tensorboard.compat.proto.summary_pb2", "TensorBoard", "tensorboard")
        folder.mkdir(parents=True, exist_ok=True)
        self._writer = writer.EventFileWriter(str(folder))
        if resumed_at is not None:
            start = self._events.SessionLog(status=self._events.SessionLog.START)
            self._add(resumed_at + 1, session_log=start)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        values = [self._summaries.Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._add(step, summary=self._summaries.Summary(value=values))

    def close(self) -> None:
        self._writer.close()

    def _add(self, step: int, **content: Any) -> None:
        self._writer.add_event(self._events.Event(wall_time=time.time(), step=step, **content))


class WeightsAndBiases:
    """A run on Weights & Biases. A resumed run continues under the same id; W&B ignores repeated steps."""

    def __init__(self, folder: Path, *, project: str, name: str, config: Mapping[str, Any]) -> None:
        wandb = _import("wandb", "Weights & Biases", "wandb")
        self._run = wandb.init(
            dir=str(folder), project=project, name=name, id=name, resume="allow", config=dict(config)
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log({name: value for name, value in metrics.items() if not math.isnan(value)}, step=step)

    def close(self) -> None:
        self._run.finish()


NEEDS = {"tensorboard": ("TensorBoard", "tensorboard"), "wandb": ("Weights & Biases", "wandb")}


def require(names: Iterable[str]) -> None:
    """ImportError for a tracker whose package is missing."""
    for name in names:
        title, package = NEEDS[name]
        _import(package, title, package)


def _import(module: str, title: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"{title} was chosen as a tracker, but the package {package!r} cannot be imported ({error}); "
            f"install it with: {install_hint('track')}"
        ) from error
