"""Trackers that keep more of a run than its metrics: what the policy said, held-out answers, warnings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from ascent.runs import jsonl
from ascent.runs.folder import RunFolder
from ascent.runs.warnings import Watch

EVALUATED, REWARD_FAILED = "eval/", "reward_failed"


class SampleRecorder(NamedTuple):
    """Records that are made when they are asked for, and how many there are."""

    records: Iterable[Mapping[str, Any]]
    number: int


class SampleTracker:
    """Keeps what the policy said in every step, within the folder's budget."""

    def __init__(self, run: RunFolder, said: Callable[[], SampleRecorder]) -> None:
        self._run, self._said = run, said

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        found = self._said()
        self._run.samples(step, found.records, of=found.number)

    def close(self) -> None:
        """The run closes its own files."""


class EvalTracker:
    """Keeps the answers to held-out prompts of every evaluation."""

    def __init__(self, run: RunFolder, said: Callable[[], SampleRecorder]) -> None:
        self._run, self._said = run, said

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        if any(name.startswith(EVALUATED) for name in metrics):
            found = self._said()
            self._run.answers(step, found.records, of=found.number)

    def close(self) -> None:
        """The run closes its own files."""


class WarningTracker:
    """Says and keeps it when a number leaves its range. What an earlier start of the run has said is not said again."""

    def __init__(
        self,
        run: RunFolder,
        say: Callable[[str], None],
        complaints: Callable[[], Iterable[str]] = tuple,
        expected: Iterable[str] = (),
    ) -> None:
        """`complaints` are sentences of others, each told once: why a reward could not score something. `expected`
        are rules whose numbers are out of range by design."""
        self._run, self._say, self._complaints = run, say, complaints
        self._watch = Watch(expected=tuple(expected))
        for record in run.history():
            self._watch.see(record["step"], jsonl.numbers(record))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for text in self._complaints():
            self._run.warning(step, {"name": REWARD_FAILED, "why": text})
            self._say(f"warning {REWARD_FAILED} (step {step}): {text}")
        for each in self._watch.see(step, metrics):
            self._run.warning(step, each.record())
            self._say(each.text())

    def close(self) -> None:
        """The run closes its own files."""
