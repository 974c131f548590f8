"""The run folder: the truth about a run.

config.yaml        the resolved recipe, as text
environment.json   versions, hardware, commit, command; one entry per start of the run
inputs.json        the recipe at the start, and every input with the sha256 of its content (ascent.api.input_changes)
changes.jsonl      one line for each change of them since, with the first step that it counts for
metrics.jsonl      one line per logged step
samples.jsonl      one line per kept sample
answers.jsonl      one line per answer to a held-out prompt, by evaluation
warnings.jsonl     one line each time a number left its range (ascent.runs.warnings)
answers.md         answers to held-out prompts before and after training, written at the end
checkpoints/       see ascent.checkpoints
curves.png         the main curves, drawn at the end
outcome.json       how the last start of the run ended
lock               who is writing
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple

from ascent.runs import environment as environments
from ascent.runs import jsonl
from ascent.runs.curves import chosen, draw
from ascent.runs.lock import NAME as LOCK
from ascent.runs.lock import Lock, holder

CONFIG, ENVIRONMENT, METRICS, SAMPLES = "config.yaml", "environment.json", "metrics.jsonl", "samples.jsonl"
ANSWERS, WARNINGS, ANSWERS_PAGE = "answers.jsonl", "warnings.jsonl", "answers.md"
INPUTS, CHANGES = "inputs.json", "changes.jsonl"
CHECKPOINTS, CURVES, OUTCOME = "checkpoints", "curves.png", "outcome.json"
HISTORY = (METRICS, SAMPLES, ANSWERS, WARNINGS)
# What one step may add to samples.jsonl, and one evaluation to answers.jsonl.
STEP_BYTES = 256 * 1024
# What `RunFolder.create` writes before config.yaml, which makes a folder a run.
BUILDING = (*(LOCK, ENVIRONMENT, INPUTS), *(f".{name}.writing" for name in (ENVIRONMENT, INPUTS, CONFIG)))
# How to do without a file that cannot be restored.
MENDED = {
    ENVIRONMENT: ", or write [] into it: nothing is lost but what the run ran on",
    OUTCOME: ", or delete it: the run then counts as killed",
}
Ending = Literal["finished", "stopped", "failed"]


class RunFolder:
    """The one writer of a run folder; use `create` or `reopen`, and close it (or use `with`)."""

    def __init__(self, path: Path, lock: Lock) -> None:
        self.path, self._lock = path, lock
        self._metrics, self._samples = jsonl.JsonlWriter(path / METRICS), jsonl.JsonlWriter(path / SAMPLES)
        self._opened: dict[str, jsonl.JsonlWriter] = {}  # files that not every run has

    @classmethod
    def create(
        cls,
        path: Path,
        config: str,
        environment: Mapping[str, Any],
        *,
        inputs: str | None = None,
        lock: Lock | None = None,
        say: Callable[[str], None] = print,
    ) -> RunFolder:
        """A new run; the folder must not hold one already. `inputs` is the text of its inputs.json; `lock` is the one
        of a `Claim` on the folder."""
        path.mkdir(parents=True, exist_ok=True)
        lock = lock or Lock(path, say=say)
        try:
            if (path / CONFIG).exists():
                raise FileExistsError(f"{path} holds a run already; resume it, or choose another folder")
            _replace(path / ENVIRONMENT, json.dumps([dict(environment)], indent=1) + "\n")
            if inputs is not None:
                _replace(path / INPUTS, inputs)
            _replace(path / CONFIG, config)  # last: its presence says that this is a run
            return cls(path, lock)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def reopen(
        cls,
        path: Path,
        step: int,
        environment: Mapping[str, Any],
        *,
        changes: Iterable[Mapping[str, Any]] = (),
        lock: Lock | None = None,
        say: Callable[[str], None] = print,
    ) -> RunFolder:
        """Continue a run from the checkpoint of `step`; what was logged after it is dropped: there is one history.

        From step 0 all is run again, and so is what was logged before the first step. `changes` are new lines of
        changes.jsonl, for the next step and those after it. `lock` is the folder's, where the caller has it already.
        """
        if not (path / CONFIG).exists():
            raise FileNotFoundError(f"{path} is no run folder: it has no {CONFIG}")
        lock = lock or Lock(path, say=say)
        try:
            for name in HISTORY:
                note = jsonl.read(path / name).note
                if note is not None:
                    say(note)
                dropped = jsonl.keep_until(path / name, step or -1)
                if dropped:
                    say(f"{name}: {dropped} lines from after step {step} are dropped; those steps are run again")
            starts = read_json(path / ENVIRONMENT)
            for line in environments.differences(starts[-1] if starts else environment, environment):
                say(line)
            _replace(path / ENVIRONMENT, json.dumps([*starts, dict(environment)], indent=1) + "\n")
            _record(path / CHANGES, step + 1, changes)
            (path / OUTCOME).unlink(missing_ok=True)
            return cls(path, lock)
        except BaseException:
            lock.release()
            raise

    @property
    def checkpoints(self) -> Path:
        return self.path / CHECKPOINTS

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """One line of metrics, and when; this makes the folder a Tracker."""
        self._metrics.append({"step": step, "timestamp": round(time.time(), 3), **metrics})

    def samples(self, step: int, records: Iterable[Mapping[str, Any]], *, of: int, budget: int = STEP_BYTES) -> int:
        """Keep what the policy said in a step: as many records, in their order, as `budget` bytes hold (the first in
        any case). Each says how many there were (`of`). Returns how many were kept."""
        return _within(self._samples, step, records, of, budget)

    def answers(self, step: int, records: Iterable[Mapping[str, Any]], *, of: int, budget: int = STEP_BYTES) -> int:
        """The same for answers to held-out prompts."""
        return _within(self._lines(ANSWERS), step, records, of, budget)

    def warning(self, step: int, record: Mapping[str, Any]) -> None:
        """A number that has left its range."""
        self._lines(WARNINGS).append({"step": step, **record})

    def history(self, name: str = METRICS) -> list[jsonl.Record]:
        """What was logged so far, in this start of the run and those before."""
        return jsonl.read(self.path / name).records

    def _lines(self, name: str) -> jsonl.JsonlWriter:
        if name not in self._opened:
            self._opened[name] = jsonl.JsonlWriter(self.path / name)
        return self._opened[name]

    def write(self, name: str, text: str) -> None:
        """A file of the run's own, whole or not at all."""
        _replace(self.path / name, text)

    def end(self, ending: Ending, step: int, message: str = "") -> None:
        """Say how the run ended, and draw its curves."""
        outcome = {"ending": ending, "step": step, "message": message, "timestamp": round(time.time(), 3)}
        _replace(self.path / OUTCOME, json.dumps(outcome, indent=1) + "\n")
        records = [jsonl.numbers(record) for record in self.history()]
        if chosen(records):
            draw(records, self.path / CURVES, title=self.path.name)

    def close(self) -> None:
        """Sync the files and give the folder free; closing twice does nothing."""
        for each in (self._metrics, self._samples, *self._opened.values()):
            each.close()
        self._lock.release()

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class Claim:
    """A folder held for a run that is still being built: locked, and left as it was found if that fails.

    `made` are the names that building a run may put there. A process that was killed while building leaves such names
    and its lock, and no config; such a folder is cleared and used again. Anything else in it, and it is refused.
    """

    def __init__(self, path: Path, made: Collection[str], *, say: Callable[[str], None] = print) -> None:
        self.path, self._made, self._new = path, {*made, *BUILDING}, not path.exists()
        if path.exists() and not path.is_dir():
            raise ValueError(f"{path} is a file and not an empty folder; name a new folder")
        if path.is_dir():
            self._refuse_foreign(path)
        path.mkdir(parents=True, exist_ok=True)
        self.lock = Lock(path, say=say)
        try:
            self._refuse_foreign(path)  # between looking and locking another process may have made a run of it
            if self._clear():
                say(f"{path} is left from a start that was killed before there was a run in it; starting again")
        except BaseException:
            self.lock.release()
            raise

    def _refuse_foreign(self, path: Path) -> None:
        names = {each.name for each in path.iterdir()}
        if not names or (names <= self._made and LOCK in names):
            return
        fix = "resume it, or name a new folder" if CONFIG in names else "name a new folder"
        raise ValueError(f"{path} is not an empty folder, and a run never writes over another; {fix}")

    def _clear(self) -> bool:
        """Delete what a start has left, but the lock; says whether there was anything."""
        left = [each for each in self.path.iterdir() if each.name != LOCK]
        for each in left:
            if each.is_dir():
                shutil.rmtree(each)
            else:
                each.unlink()
        return bool(left)

    def abandon(self) -> None:
        """The run could not be built: put the folder back as it was found."""
        self._clear()
        (self.path / LOCK).unlink(missing_ok=True)
        self.lock.release()
        if self._new:
            self.path.rmdir()


@dataclass(frozen=True)
class Run:
    """What a run folder holds, read without touching it. `state` is running, finished, stopped, failed or killed."""

    path: Path
    config: str
    environment: list[dict[str, Any]]
    changes: list[dict[str, Any]]
    metrics: list[dict[str, float]]
    samples: list[dict[str, Any]]
    answers: list[dict[str, Any]]
    warnings: list[dict[str, Any]]
    checkpoints: list[int]
    state: str
    message: str
    notes: list[str]


class Summary(NamedTuple):
    """One line of a list of runs; `latest` is the last line of metrics."""

    name: str
    path: Path
    state: str
    step: int
    latest: dict[str, float]


def read_run(path: Path) -> Run:
    """Read everything but the checkpoints' content; safe while the run is being written."""
    if not (path / CONFIG).exists():
        raise FileNotFoundError(f"{path} is no run folder: it has no {CONFIG}; ascent runs lists the runs of a folder")
    metrics, samples, answers, warnings = (jsonl.read(path / name) for name in HISTORY)
    state, message = _state(path)
    saved = path / CHECKPOINTS
    steps = sorted(int(each.name) for each in saved.iterdir() if each.name.isdecimal()) if saved.is_dir() else []
    return Run(
        path=path,
        config=(path / CONFIG).read_text(encoding="utf-8"),
        environment=read_json(path / ENVIRONMENT),
        changes=jsonl.read(path / CHANGES).records,
        metrics=[jsonl.numbers(record) for record in metrics.records],
        samples=samples.records,
        answers=answers.records,
        warnings=warnings.records,
        checkpoints=steps,
        state=state,
        message=message,
        notes=[each.note for each in (metrics, samples, answers, warnings) if each.note is not None],
    )


def list_runs(folder: Path) -> list[Summary]:
    """The runs directly inside a folder, by name; `damaged` is one that cannot be read, and `read_run` says why."""
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is no folder; give the folder that holds the run folders")
    found = []
    for path in sorted(each for each in folder.iterdir() if (each / CONFIG).is_file()):
        try:
            records = jsonl.read(path / METRICS).records
            state, _ = _state(path)
        except ValueError:
            records, state = [], "damaged"
        latest = jsonl.numbers(records[-1]) if records else {}
        found.append(Summary(path.name, path, state, int(latest.get("step", 0)), latest))
    return found


def _within(file: jsonl.JsonlWriter, step: int, records: Iterable[Mapping[str, Any]], of: int, budget: int) -> int:
    kept = 0
    for record in records:
        whole = jsonl.line({"step": step, **record, "of": of}, compact=True)
        budget -= len(whole)
        if kept and budget < 0:
            break
        file.write(whole)
        kept += 1
    return kept


def read_json(path: Path) -> Any:
    """What a file of a run folder holds; ValueError with its name where that is not JSON."""
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(
            f"{path} is damaged: it is not JSON ({error}); restore it from a copy{MENDED.get(path.name, '')}"
        ) from None


def _record(path: Path, step: int, changes: Iterable[Mapping[str, Any]]) -> None:
    """Changes for this step; those of later steps belong to what is run again."""
    jsonl.keep_until(path, step)
    new = list(changes)
    if new:
        file = jsonl.JsonlWriter(path)
        for each in new:
            file.append({"timestamp": round(time.time(), 3), **each})
        file.close()


def state_of(path: Path) -> str:
    """running, finished, stopped, failed or killed."""
    return _state(path)[0]


def _state(path: Path) -> tuple[str, str]:
    writer = holder(path)
    if writer is not None:
        return "running", f"process {writer}"
    if not (path / OUTCOME).exists():
        return "killed", "the last process ended without a word; ascent resume continues the run"
    outcome = read_json(path / OUTCOME)
    return outcome["ending"], outcome["message"]


def _replace(path: Path, text: str) -> None:
    """Whole or not at all: written beside, synced, renamed."""
    beside = path.with_name(f".{path.name}.writing")
    try:
        with beside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error
