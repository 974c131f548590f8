"""The files that the page reads: those of run folders below the given folders, opened without following links."""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from ascent.diagnose.records import FILE as DIAGNOSIS
from ascent.diagnose.records import Finding, from_json
from ascent.runs import seek
from ascent.runs.folder import (
    ANSWERS,
    CHANGES,
    CHECKPOINTS,
    CONFIG,
    ENVIRONMENT,
    INPUTS,
    METRICS,
    OUTCOME,
)
from ascent.runs.folder import SAMPLES as SAMPLES
from ascent.runs.folder import WARNINGS as WARNINGS
from ascent.runs.lock import NAME as LOCK

KNOWN = {
    ANSWERS,
    CHANGES,
    CONFIG,
    ENVIRONMENT,
    INPUTS,
    METRICS,
    OUTCOME,
    SAMPLES,
    WARNINGS,
    DIAGNOSIS,
    LOCK,
}
ABSENT = (0, 0, 0)
MAX_BYTES, OUTPUT_BYTES = (
    16 << 20,
    1 << 16,
)  # of a file that is read whole; of the end of what a run printed
CHECKED_SECONDS = (
    0.05  # for which a folder counts as no link: several files are opened for one response
)


class RunFiles:
    """One run folder. The names are fixed; a link, a pipe or a folder in place of a file counts as no file.

    with_output: FOLDER.log beside the folder, where a sweep writes what the run prints, may be read too.
    """

    def __init__(self, path: Path, *, with_output: bool = False) -> None:
        self.path, self._with_output = path, with_output
        self._prefix = (
            str(path) + os.sep
        )  # Path's own joining would take a tenth of the time of a list of runs
        self._checked = -CHECKED_SECONDS

    @contextmanager
    def open(self, name: str) -> Iterator[BinaryIO | None]:
        """The file, or None where there is none that may be read."""
        assert name in KNOWN, name
        with self._open_path(self._prefix + name) as file:
            yield file

    @contextmanager
    def _open_path(self, path: str) -> Iterator[BinaryIO | None]:
        handle = self._handle(path)
        if handle is None:
            yield None
            return
        with os.fdopen(handle, "rb") as file:
            yield file

    def _handle(self, path: str) -> int | None:
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return None
        if not self._is_in_place():
            os.close(handle)
            return None
        if stat.S_ISREG(os.fstat(handle).st_mode):
            return handle
        os.close(handle)
        return None

    def _is_in_place(self) -> bool:
        """False where a link took the place of the folder, or of one above it."""
        if time.monotonic() - self._checked < CHECKED_SECONDS:
            return True
        if os.path.realpath(self.path) != str(self.path):
            return False
        self._checked = time.monotonic()
        return True

    def signature(self, *names: str) -> tuple[tuple[int, int, int], ...]:
        """Changes whenever one of the files does."""
        return tuple(map(self._signature, names))

    def _signature(self, name: str) -> tuple[int, int, int]:
        try:
            found = os.lstat(self._prefix + name)
        except OSError:
            return ABSENT
        return found.st_ino, found.st_size, found.st_mtime_ns

    def text(self, name: str, limit: int = MAX_BYTES) -> str:
        with self.open(name) as file:
            return "" if file is None else file.read(limit).decode(errors="replace")

    def output(self) -> str:
        """The end of what the run printed, from a whole line on; empty where that was not recorded."""
        if not self._with_output:
            return ""
        with self._open_path(f"{self.path}.log") as file:
            if file is None:
                return ""
            start = max(seek.size_of(file) - OUTPUT_BYTES, 0)
            file.seek(start)
            content = file.read(OUTPUT_BYTES)
        return (content.partition(b"\n")[2] if start else content).decode(errors="replace")

    def json(self, name: str) -> Any:
        """The content of a JSON file; None where it is absent or damaged."""
        try:
            return json.loads(self.text(name))
        except (ValueError, RecursionError):
            return None

    def diagnosis(self) -> dict[str, Any] | None:
        """What a diagnosis found, as the page shows it; None where there is no diagnosis or a damaged one."""
        try:
            found = from_json(self.text(DIAGNOSIS))
            return {"step": found.step, "findings": list(map(_describe, found.findings))}
        except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
            return None

    def records(self, name: str) -> list[dict[str, Any]]:
        """The records of a short JSON lines file; damaged lines are left out."""
        found = map(seek.parse, self.text(name).encode().split(b"\n"))
        return [record for record in found if record is not None]

    def checkpoints(self) -> list[dict[str, float]]:
        """Step and time of every saved checkpoint."""
        folder = self.path / CHECKPOINTS
        if folder.is_symlink() or not folder.is_dir() or not self._is_in_place():
            return []
        saved = [each for each in os.scandir(folder) if each.name.isdecimal()]
        found = [
            {"step": int(each.name), "time": each.stat(follow_symlinks=False).st_mtime}
            for each in saved
        ]
        return sorted(found, key=lambda each: each["step"])


def _describe(finding: Finding) -> dict[str, Any]:
    names = ("cause", "certainty", "summary", "began", "note", "evidence", "metrics")
    return {
        **{name: getattr(finding, name) for name in names},
        "changes": [change.text() for change in finding.changes],
        "rollouts": [
            {name: rollout.get(name) for name in ("step", "id")} for rollout in finding.rollouts
        ],
    }
