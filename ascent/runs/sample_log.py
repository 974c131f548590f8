"""Trackers that log rollouts, held-out completions and warnings into the run folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from ascent.metrics import EVAL
from ascent.runs import jsonl
from ascent.runs.folder import RunFolder
from ascent.runs.warnings import Monitor

REWARD_FAILED = "reward_failed"


class SampleBatch(NamedTuple):
    """Records, generated lazily, and their total number."""

    records: Iterable[Mapping[str, Any]]
    total: int


class SampleTracker:
    """Logs the rollouts of every step, within the folder's budget."""

    def __init__(self, run: RunFolder, samples: Callable[[], SampleBatch]) -> None:
        self._run, self._samples = run, samples

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        batch = self._samples()
        self._run.log_samples(step, batch.records, of=batch.total)

    def close(self) -> None:
        """The run closes its own files."""


class EvalTracker(SampleTracker):
    """Logs the completions of held-out prompts after every evaluation."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        if any(name.startswith(EVAL) for name in metrics):
            batch = self._samples()
            self._run.log_answers(step, batch.records, of=batch.total)


class WarningTracker:
    """Prints and logs warnings. The history of a resumed run is replayed first, so no warning is repeated.

    `reward_failures` returns new reasons why a reward failed. `expected` names rules that do not apply to the run.
    """

    def __init__(
        self,
        run: RunFolder,
        say: Callable[[str], None],
        reward_failures: Callable[[], Iterable[str]] = tuple,
        expected: Iterable[str] = (),
    ) -> None:
        self._run, self._say, self._reward_failures = run, say, reward_failures
        self._monitor = Monitor(expected=tuple(expected))
        for record in run.history():
            self._monitor.update(record["step"], jsonl.numbers(record))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for text in self._reward_failures():
            self._run.log_warning(step, {"name": REWARD_FAILED, "why": text})
            self._say(f"warning {REWARD_FAILED} (step {step}): {text}")
        for warning in self._monitor.update(step, metrics):
            self._run.log_warning(step, warning.record())
            self._say(warning.text())

    def close(self) -> None:
        """The run closes its own files."""
