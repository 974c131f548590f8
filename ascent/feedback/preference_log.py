"""The file of verdicts: one line each, synced to disk before the next comparison."""

from __future__ import annotations

import errno
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
FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class PreferenceLog:
    """The only writer of the file while open. An incomplete last line, left by a killed process, is removed."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        created = not path.exists()
        self._handle = os.open(path, FLAGS, 0o644)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.samestat(
                os.fstat(self._handle), path.stat()
            ):  # the other process replaced it meanwhile
                raise BlockingIOError
            found = jsonl.read(path)
            foreign = next(
                (row for row in found.records if not {"id", "annotator", "verdict"} <= set(row)),
                None,
            )
            if foreign is not None:
                raise ValueError(
                    f"{path} holds a line that collect did not write (it has the columns {', '.join(foreign)}); give "
                    "another file"
                )
            if found.note is not None:
                os.ftruncate(self._handle, path.read_bytes().rfind(b"\n") + 1)
            if created:
                _sync_folder(path)
        except BlockingIOError:
            os.close(self._handle)
            raise ValueError(
                f"{path} is being written by another process; wait for it, or give another file"
            ) from None
        except BaseException:
            os.close(self._handle)
            raise
        self.rows: list[Row] = found.records
        self._earlier = len(self.rows)  # rows of earlier processes

    def append(self, row: Mapping[str, Any]) -> None:
        """Write and sync a line. After an error the file is as before."""
        size = os.fstat(self._handle).st_size
        line = _encode(row)
        try:
            if os.write(self._handle, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self._handle)
        except OSError as error:
            os.ftruncate(self._handle, size)
            why = "the disk is full" if error.errno in FULL else error.strerror
            raise OSError(f"{self.path}: {why}; the last verdict was not written") from error
        self.rows.append(dict(row))

    def undo(self) -> Row | None:
        """Remove the last line if this process wrote it."""
        return self._remove(len(self.rows) - 1) if len(self.rows) > self._earlier else None

    def undo_of(self, annotator: str) -> Row | None:
        """Remove the annotator's last line, whoever wrote a line after it and whichever process wrote it."""
        own = (
            index
            for index in reversed(range(len(self.rows)))
            if self.rows[index]["annotator"] == annotator
        )
        index = next(own, None)
        return None if index is None else self._remove(index)

    def _remove(self, index: int) -> Row:
        if index == len(self.rows) - 1:
            content = self.path.read_bytes()
            os.ftruncate(self._handle, content.rfind(b"\n", 0, -1) + 1)
            os.fsync(self._handle)
        else:
            self._rewrite(index)
        self._earlier -= index < self._earlier
        return self.rows.pop(index)

    def _rewrite(self, without: int) -> None:
        """Replace the file by one without a line, atomically. The new file is locked before it has the name."""
        temporary = self.path.with_name(f".{self.path.name}.writing")
        handle = os.open(temporary, FLAGS | os.O_TRUNC, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            lines = self.path.read_bytes().removesuffix(b"\n").split(b"\n")
            with open(handle, "wb", closefd=False) as file:
                file.writelines(
                    line + b"\n" for index, line in enumerate(lines) if index != without
                )
            os.fsync(handle)
            os.replace(temporary, self.path)
        except BaseException:
            os.close(handle)
            temporary.unlink(missing_ok=True)
            raise
        _sync_folder(self.path)
        os.close(self._handle)
        self._handle = handle

    def answered_by(self, annotator: str) -> set[tuple[str, int]]:
        """Keys of the comparisons that the annotator has judged."""
        return {row_key(row) for row in self.rows if row["annotator"] == annotator}

    def close(self) -> None:
        os.close(self._handle)

    def __enter__(self) -> PreferenceLog:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()


def read(path: Path) -> list[Row]:
    """The rows of a file, which another process may be writing."""
    return jsonl.read(path).records


def _encode(row: Mapping[str, Any]) -> bytes:
    return (json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _sync_folder(path: Path) -> None:
    """Make the name of a new file durable."""
    handle = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
