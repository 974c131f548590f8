"""Trackers: TensorBoard and Weights & Biases, imported when chosen, and the fan-out to all trackers.

Both get the metrics of every step, and a table of samples every `SAMPLES_EVERY` steps and with each evaluation.
"""

from __future__ import annotations

import importlib
import itertools
import math
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ascent.distribution import install_hint
from ascent.metrics import EVAL
from ascent.protocols import Tracker
from ascent.runs.eval_diff import markdown_cell

SAMPLES_EVERY, MAX_ROWS = 10, 16  # steps between tables, and rows of one
Records = Callable[[], Iterable[Mapping[str, Any]]]


def to_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class MultiTracker:
    """Logs to the run folder, then to the other trackers.

    An error of the run folder ends the run. Another tracker that fails is reported and removed.
    """

    def __init__(
        self,
        run_folder: Tracker,
        others: Sequence[Tracker],
        *,
        say: Callable[[str], None] = to_stderr,
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
                self._say(
                    f"{type(each).__name__} could not be closed ({type(error).__name__}: {error})"
                )

    def close(self) -> None:
        self.close_others()
        self._run_folder.close()


class TableTracker(ABC):
    """A tracker that also gets tables: `samples` of the step, and `answers` to held-out prompts."""

    def __init__(self, samples: Records | None, answers: Records | None) -> None:
        self._samples, self._answers = samples, answers

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.log_metrics(step, metrics)
        evaluated = any(name.startswith(EVAL) for name in metrics)
        if (
            self._samples is not None
            and step > 0
            and (evaluated or step == 1 or step % SAMPLES_EVERY == 0)
        ):
            self._log_records(step, "samples", self._samples())
        if self._answers is not None and evaluated:
            self._log_records(step, "answers", self._answers())

    def _log_records(self, step: int, name: str, records: Iterable[Mapping[str, Any]]) -> None:
        shown = list(itertools.islice(records, MAX_ROWS))
        parts = list(dict.fromkeys(part for each in shown for part in each["parts"]))
        rows = [
            [
                each["prompt"],
                each["completion"],
                each["reward"],
                *(each["parts"].get(part) for part in parts),
                each["stop"],
            ]
            for each in shown
        ]
        if rows:
            self.log_table(step, name, ["prompt", "completion", "reward", *parts, "stop"], rows)

    @abstractmethod
    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None: ...

    @abstractmethod
    def log_table(
        self, step: int, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]
    ) -> None: ...


class TensorBoard(TableTracker):
    """Event files for TensorBoard, written without torch or TensorFlow; tables are in its Text tab.

    `resumed_at` makes TensorBoard drop the points that an earlier start of the run wrote after that step.
    """

    def __init__(
        self,
        folder: Path,
        *,
        resumed_at: int | None = None,
        samples: Records | None = None,
        answers: Records | None = None,
    ) -> None:
        super().__init__(samples, answers)
        writer = _import(
            "tensorboard.summary.writer.event_file_writer", "TensorBoard", "tensorboard"
        )
        self._events = _import("tensorboard.compat.proto.event_pb2", "TensorBoard", "tensorboard")
        self._summaries = _import(
            "tensorboard.compat.proto.summary_pb2", "TensorBoard", "tensorboard"
        )
        self._tensors = _import("tensorboard.compat.proto.tensor_pb2", "TensorBoard", "tensorboard")
        self._types = _import("tensorboard.compat.proto.types_pb2", "TensorBoard", "tensorboard")
        self._text = _import("tensorboard.plugins.text.metadata", "TensorBoard", "tensorboard")
        folder.mkdir(parents=True, exist_ok=True)
        self._writer = writer.EventFileWriter(str(folder))
        if resumed_at is not None:
            start = self._events.SessionLog(status=self._events.SessionLog.START)
            self._add(resumed_at + 1, session_log=start)

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        values = [
            self._summaries.Summary.Value(tag=name, simple_value=value)
            for name, value in metrics.items()
        ]
        self._add(step, summary=self._summaries.Summary(value=values))

    def log_table(
        self, step: int, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]
    ) -> None:
        lines = [columns, ["---"] * len(columns), *rows]
        text = "\n".join(f"| {' | '.join(_markdown(cell) for cell in line)} |" for line in lines)
        tensor = self._tensors.TensorProto(dtype=self._types.DT_STRING, string_val=[text.encode()])
        metadata = self._text.create_summary_metadata(name, "")
        value = self._summaries.Summary.Value(tag=name, metadata=metadata, tensor=tensor)
        self._add(step, summary=self._summaries.Summary(value=[value]))

    def close(self) -> None:
        self._writer.close()

    def _add(self, step: int, **content: Any) -> None:
        self._writer.add_event(self._events.Event(wall_time=time.time(), step=step, **content))


def _markdown(cell: Any) -> str:
    return (
        ""
        if cell is None
        else f"{cell:.4g}"
        if isinstance(cell, float)
        else markdown_cell(str(cell))
    )


class WeightsAndBiases(TableTracker):
    """A run on Weights & Biases. A resumed run continues under the same id; W&B ignores repeated steps."""

    def __init__(
        self,
        folder: Path,
        *,
        project: str,
        name: str,
        config: Mapping[str, Any],
        samples: Records | None = None,
        answers: Records | None = None,
    ) -> None:
        super().__init__(samples, answers)
        self._wandb = _import("wandb", "Weights & Biases", "wandb")
        self._run = self._wandb.init(
            dir=str(folder),
            project=project,
            name=name,
            id=name,
            resume="allow",
            config=dict(config),
        )

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(
            {name: value for name, value in metrics.items() if not math.isnan(value)}, step=step
        )

    def log_table(
        self, step: int, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]
    ) -> None:
        table = self._wandb.Table(columns=list(columns), data=[list(row) for row in rows])
        self._run.log({name: table}, step=step)

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
