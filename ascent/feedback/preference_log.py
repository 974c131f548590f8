"""The file of verdicts: one line each, synced to disk before the next comparison."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from ascent.feedback.verdicts import row_key
from ascent.runs import jsonl

Row = dict[str, Any]


class PreferenceLog:
    """The only writer of the file while open. An incomplete last line, left by a killed process, is removed."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found = jsonl.read(path)
            foreign = next((row for row in found.records if not {"id", "annotator", "verdict"} <= set(row)), None)
            if foreign is not None:
                raise ValueError(
                    f"{path} holds a line that collect did not write (it has the columns {', '.join(foreign)}); give "
                    "another file"
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
        self._ends: list[int] = []  # the file size before each line of this process

    def append(self, row: Mapping[str, Any]) -> None:
        """Write and sync a line."""
        self._ends.append(os.fstat(self._handle).st_size)
        line = (json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n").encode()
        if os.write(self._handle, line) < len(line):  # the disk is full: remove the incomplete line
            os.ftruncate(self._handle, self._ends.pop())
            raise OSError(f"{self.path}: the disk is full; the last verdict was not written")
        os.fsync(self._handle)
        self.rows.append(dict(row))

    def undo(self) -> Row | None:
        """Remove the last line if this process wrote it."""
        if not self._ends:
            return None
        os.ftruncate(self._handle, self._ends.pop())
        os.fsync(self._handle)
        return self.rows.pop()

    def answered_by(self, annotator: str) -> set[tuple[str, int]]:
        """Keys of the comparisons that the annotator has judged."""
        return {row_key(row) for row in self.rows if row["annotator"] == annotator}

    def close(self) -> None:
        os.close(self._handle)

    def __enter__(self) -> PreferenceLog:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def read(path: Path) -> list[Row]:
    """The rows of a file, which another process may be writing."""
    return jsonl.read(path).records
