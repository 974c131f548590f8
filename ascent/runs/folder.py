"""The run folder: everything about a run, on disk.

config.yaml        the resolved recipe, as text
environment.json   versions, hardware, commit, command; one entry per start of the run
inputs.json        the recipe at the start, and every input with the sha256 of its content (ascent.api.input_changes)
changes.jsonl      one line per later change of the recipe or an input, with the first step it applies to
metrics.jsonl      one line per logged step
samples.jsonl      one line per logged rollout
answers.jsonl      one line per completion of a held-out prompt, for each evaluation
warnings.jsonl     one line each time a metric leaves its healthy range (ascent.runs.warnings)
answers.md         held-out completions before and after training, written at the end
diagnosis.json     what went wrong, and diagnosis.png (ascent.diagnose)
replays/           steps taken again (ascent.api.replay)
checkpoints/       see ascent.checkpoints
curves.png         the main curves, drawn at the end
outcome.json       how the last start of the run ended
lock               the process that writes
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple

from ascent.metrics import find_metric
from ascent.runs import environment as environments
from ascent.runs import jsonl
from ascent.runs.curves import draw, select_metrics
from ascent.runs.jsonl import replace_file
from ascent.runs.lock import NAME as LOCK
from ascent.runs.lock import Lock, holder

CONFIG, ENVIRONMENT, METRICS, SAMPLES = (
    "config.yaml",
    "environment.json",
    "metrics.jsonl",
    "samples.jsonl",
)
ANSWERS, WARNINGS, ANSWERS_PAGE = "answers.jsonl", "warnings.jsonl", "answers.md"
INPUTS, CHANGES = "inputs.json", "changes.jsonl"
CHECKPOINTS, CURVES, OUTCOME = "checkpoints", "curves.png", "outcome.json"
HISTORY = (METRICS, SAMPLES, ANSWERS, WARNINGS)
STEP_BYTES = (
    256 * 1024
)  # limit of one step in samples.jsonl, and of one evaluation in answers.jsonl
# `RunFolder.create` writes these before config.yaml.
CREATED_FIRST = (
    *(LOCK, ENVIRONMENT, INPUTS),
    *(f".{name}.writing" for name in (ENVIRONMENT, INPUTS, CONFIG)),
)
# How to continue without a damaged file.
REPAIR = {
    ENVIRONMENT: ", or write [] into it: only the record of the hardware is lost",
    OUTCOME: ", or delete it: the run then counts as killed",
}
Outcome = Literal["finished", "stopped", "failed"]


class RunFolder:
    """The writer of a run folder, made by `create` or `reopen`; close it, or use `with`."""

    def __init__(self, path: Path, lock: Lock, say: Callable[[str], None] = print) -> None:
        self.path, self._lock, self._say = path, lock, say
        self._checked: set[str] = set()  # metric names that were looked up in the registry
        self._metrics, self._samples = (
            jsonl.JsonlWriter(path / METRICS),
            jsonl.JsonlWriter(path / SAMPLES),
        )
        self._writers: dict[str, jsonl.JsonlWriter] = {}  # opened on first use

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
        """Start a new run. `inputs` is the text of inputs.json; `lock` is that of a `FolderClaim`."""
        path.mkdir(parents=True, exist_ok=True)
        lock = lock or Lock(path, say=say)
        try:
            if (path / CONFIG).exists():
                raise FileExistsError(
                    f"{path} holds a run already; resume it, or choose another folder"
                )
            replace_file(path / ENVIRONMENT, json.dumps([dict(environment)], indent=1) + "\n")
            if inputs is not None:
                replace_file(path / INPUTS, inputs)
            replace_file(path / CONFIG, config)  # last: a folder with a config is a run
            return cls(path, lock, say)
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
        """Continue a run from the checkpoint of `step`. Lines logged after that step are dropped.

        `changes` are new lines of changes.jsonl, from the next step on. `lock` is the folder's lock, if it is held
        already.
        """
        if not (path / CONFIG).exists():
            raise FileNotFoundError(f"{path} is no run folder: it has no {CONFIG}")
        lock = lock or Lock(path, say=say)
        try:
            # Whatever is damaged is found before anything is written.
            notes, starts = (
                [jsonl.read(path / name).note for name in HISTORY],
                read_json(path / ENVIRONMENT),
            )
            for note in filter(None, notes):
                say(note)
            for name in HISTORY:
                dropped = jsonl.drop_after(
                    path / name, step or -1
                )  # from step 0, also the first evaluation
                if dropped:
                    say(
                        f"{name}: {dropped} lines from after step {step} are dropped; those steps are run again"
                    )
            for line in environments.differences(
                starts[-1] if starts else environment, environment
            ):
                say(line)
            replace_file(
                path / ENVIRONMENT, json.dumps([*starts, dict(environment)], indent=1) + "\n"
            )
            _append_changes(path / CHANGES, step + 1, changes)
            (path / OUTCOME).unlink(missing_ok=True)
            return cls(path, lock, say)
        except BaseException:
            lock.release()
            raise

    @property
    def checkpoints(self) -> Path:
        return self.path / CHECKPOINTS

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append one line of metrics with its time. A metric that is not in the registry is reported once."""
        for name in metrics.keys() - self._checked:
            if find_metric(name) is None:
                self._say(
                    f"metric {name} is not in the registry (docs/metrics.md); it is logged and not checked"
                )
        self._checked |= metrics.keys()
        self._metrics.append({"step": step, "timestamp": round(time.time(), 3), **metrics})

    def log_samples(
        self, step: int, records: Iterable[Mapping[str, Any]], *, of: int, budget: int = STEP_BYTES
    ) -> int:
        """Append the rollouts of a step, as many as fit into `budget` bytes, at least one. Each line has their total
        number (`of`). Returns how many were written."""
        return _append_within(self._samples, step, records, of, budget)

    def log_answers(
        self, step: int, records: Iterable[Mapping[str, Any]], *, of: int, budget: int = STEP_BYTES
    ) -> int:
        """The same for completions of held-out prompts."""
        return _append_within(self._writer(ANSWERS), step, records, of, budget)

    def log_warning(self, step: int, record: Mapping[str, Any]) -> None:
        self._writer(WARNINGS).append({"step": step, **record})

    def history(self, name: str = METRICS) -> list[jsonl.Record]:
        """All records of a log file, of earlier starts of the run too."""
        return jsonl.read(self.path / name).records

    def _writer(self, name: str) -> jsonl.JsonlWriter:
        if name not in self._writers:
            self._writers[name] = jsonl.JsonlWriter(self.path / name)
        return self._writers[name]

    def write(self, name: str, text: str) -> None:
        """Write a further file atomically."""
        replace_file(self.path / name, text)

    def finish(self, outcome: Outcome, step: int, message: str = "") -> None:
        """Record how the run ended, and draw its curves."""
        content = {
            "ending": outcome,
            "step": step,
            "message": message,
            "timestamp": round(time.time(), 3),
        }
        replace_file(self.path / OUTCOME, json.dumps(content, indent=1) + "\n")
        records = [jsonl.numbers(record) for record in self.history()]
        if select_metrics(records):
            draw(records, self.path / CURVES, title=self.path.name)

    def close(self) -> None:
        """Sync the files and release the lock; closing twice does nothing."""
        for each in (self._metrics, self._samples, *self._writers.values()):
            each.close()
        self._lock.release()

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()


class UnwrittenFolder(RunFolder):
    """The run folder as ranks other than 0 have it: they know where it is and write nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        pass

    def history(self, name: str = METRICS) -> list[jsonl.Record]:
        return []

    def finish(self, outcome: Outcome, step: int, message: str = "") -> None:
        pass

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class Run:
    """The content of a run folder. `state` is running, finished, stopped, failed or killed."""

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


class RunSummary(NamedTuple):
    """One line of a list of runs; `latest` is the last line of metrics."""

    name: str
    path: Path
    state: str
    step: int
    latest: dict[str, float]


def read_run(path: Path) -> Run:
    """Read a run folder, except its checkpoints; safe while the run is being written."""
    if not (path / CONFIG).exists():
        raise FileNotFoundError(
            f"{path} is no run folder: it has no {CONFIG}; ascent runs lists the runs of a folder"
        )
    metrics, samples, answers, warnings = (jsonl.read(path / name) for name in HISTORY)
    state, message = _state(path)
    saved = path / CHECKPOINTS
    steps = (
        sorted(int(each.name) for each in saved.iterdir() if each.name.isdecimal())
        if saved.is_dir()
        else []
    )
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
        notes=[
            each.note for each in (metrics, samples, answers, warnings) if each.note is not None
        ],
    )


def list_runs(folder: Path) -> list[RunSummary]:
    """The runs in a folder and its subfolders, named relative to it. `damaged`: `read_run` fails."""
    if not folder.is_dir():
        raise FileNotFoundError(
            f"{folder} is no folder; give the folder that holds the run folders"
        )
    found = []
    for path in find_runs(folder):
        try:
            records = jsonl.read(path / METRICS).records
            state, _ = _state(path)
        except ValueError:
            records, state = [], "damaged"
        latest = jsonl.numbers(records[-1]) if records else {}
        name = path.name if path == folder else str(path.relative_to(folder))
        found.append(RunSummary(name, path, state, int(latest.get("step", 0)), latest))
    return found


def find_runs(folder: Path) -> Iterator[Path]:
    """Run folders in path order. What is inside a run, a hidden folder or a link is not looked at."""
    for root, names, files in os.walk(folder):
        names[:] = sorted(name for name in names if not name.startswith("."))
        if CONFIG in files and ENVIRONMENT in files:
            names.clear()
            yield Path(root)


def _append_within(
    file: jsonl.JsonlWriter, step: int, records: Iterable[Mapping[str, Any]], of: int, budget: int
) -> int:
    written = 0
    for record in records:
        line = jsonl.encode_line({"step": step, **record, "of": of}, compact=True)
        budget -= len(line)
        if written and budget < 0:
            break
        file.write(line)
        written += 1
    return written


def read_json(path: Path) -> Any:
    """The content of a JSON file of a run folder; ValueError where it is damaged."""
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(
            f"{path} is damaged: it is not JSON ({error}); restore it from a copy{REPAIR.get(path.name, '')}"
        ) from None


def _append_changes(path: Path, step: int, changes: Iterable[Mapping[str, Any]]) -> None:
    """Append changes that apply from `step` on; those of later steps are dropped."""
    jsonl.drop_after(path, step)
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
        return (
            "killed",
            "the last process ended without recording an outcome; ascent resume continues the run",
        )
    outcome = read_json(path / OUTCOME)
    return outcome["ending"], outcome["message"]
