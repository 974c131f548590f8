"""The file of verdicts: one line for each, on the disk itself before the next question is asked."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from ascent.feedback.verdicts import key_of
from ascent.runs import jsonl

Row = dict[str, Any]


class PreferenceLog:
    """The one writer of the file while it is open. Half a line that a killed process left is cut off."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found = jsonl.read(path)
            strange = next((row for row in found.records if not {"id", "annotator", "verdict"} <= set(row)), None)
            if strange is not None:
                raise ValueError(
                    f"{path} holds a line that collect did not write (it has the columns {', '.join(strange)}); give "
                    "another file, collect appends to its own only"
                )
        except BlockingIOError:
            os.close(self._handle)
            raise ValueError(f"{path} is being written by another process; wait for it, or give another file") from None
        except BaseException:
            os.close(self._handle)
            raise
        self.rows: list[Row] = found.records
        if found.note is not None:
            os.ftruncate(self._handle, path.read_bytes().rfind(b"\n") + 1)
        self._ends: list[int] = []  # the file's length before each line that this process wrote

    def append(self, row: Mapping[str, Any]) -> None:
        """Write a line; it is on the disk when this returns."""
        self._ends.append(os.fstat(self._handle).st_size)
        line = (json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n").encode()
        if os.write(self._handle, line) < len(line):  # a full disk: half a line must not stay behind
            os.ftruncate(self._handle, self._ends.pop())
            raise OSError(f"{self.path}: the disk is full; the last verdict was not written")
        os.fsync(self._handle)
        self.rows.append(dict(row))

    def undo(self) -> Row | None:
        """Take back the last line, if this process wrote it; what earlier sessions said stands."""
        if not self._ends:
            return None
        os.ftruncate(self._handle, self._ends.pop())
        os.fsync(self._handle)
        return self.rows.pop()

    def done_by(self, annotator: str) -> set[tuple[str, int]]:
        """Keys of the questions that the annotator has answered."""
        return {key_of(row) for row in self.rows if row["annotator"] == annotator}

    def close(self) -> None:
        os.close(self._handle)

    def __enter__(self) -> PreferenceLog:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def read(path: Path) -> list[Row]:
    """The rows of a file that may be being written."""
    return jsonl.read(path).records
