"""JSON lines files that survive a kill in the middle of a write.

JSON has no NaN: a non-finite float is written as the string "NaN", "Infinity" or "-Infinity".
"""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

Record = dict[str, Any]
NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
SPACED = json.JSONEncoder(allow_nan=False, ensure_ascii=False)
COMPACT = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":"))


class JsonlRecords(NamedTuple):
    """The records of a file, and a note if its last line is incomplete."""

    records: list[Record]
    note: str | None


class JsonlWriter:
    """Appends records; each is one unbuffered write of a line."""

    def __init__(self, path: Path) -> None:
        """Open for appending; an incomplete last line, left by a killed process, is removed first."""
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            _drop_incomplete_line(path)
        self.path = path
        self._file = path.open("ab", buffering=0)

    def append(self, record: Mapping[str, Any]) -> None:
        self.write(encode_line(record))

    def write(self, line: bytes) -> None:
        """Append an encoded line; OSError if the disk is full."""
        try:
            written = self._file.write(line)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from error
        if written != len(line):  # the next open removes the incomplete line
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    def close(self) -> None:
        """Sync and close; closing twice does nothing."""
        if not self._file.closed:
            os.fsync(self._file.fileno())
            self._file.close()


def encode_line(record: Mapping[str, Any], *, compact: bool = False) -> bytes:
    """A record as one line; `compact` omits the spaces."""
    encoder = COMPACT if compact else SPACED
    try:
        text = encoder.encode(record)
    except (
        TypeError,
        ValueError,
    ):  # a mapping that is no dict, or a float that is not finite: both are seldom
        text = encoder.encode(_encode_floats(record))
    return text.encode(errors="replace") + b"\n"


def read(path: Path) -> JsonlRecords:
    """All complete lines. An incomplete last line is dropped with a note; an invalid line is a ValueError."""
    if not path.exists():
        return JsonlRecords([], None)
    content, _, rest = path.read_bytes().rpartition(b"\n")
    records = (
        [_parse(path, number, line) for number, line in enumerate(content.split(b"\n"), 1)]
        if content
        else []
    )
    note = (
        f"{path.name}: the last line is incomplete ({len(rest)} bytes) and was left out"
        if rest
        else None
    )
    return JsonlRecords(records, note)


def read_ends(path: Path, size: int) -> list[Record]:
    """The complete lines in the first and in the last `size` bytes of a file, which may be far larger."""
    if not path.exists() or path.stat().st_size <= 2 * size:
        return read(path).records
    with path.open("rb") as file:
        first = file.read(size).rpartition(b"\n")[0]
        file.seek(-size, os.SEEK_END)
        last = file.read().partition(b"\n")[2].rpartition(b"\n")[0]
    return [_parse(path, 0, line) for part in (first, last) for line in part.split(b"\n") if line]


def drop_after(path: Path, step: int) -> int:
    """Drop the records of later steps, atomically; returns how many."""
    if not path.exists():
        return 0
    content = path.read_bytes().rpartition(b"\n")[0]
    lines = content.split(b"\n") if content else []
    kept = [
        line for number, line in enumerate(lines, 1) if _parse(path, number, line)["step"] <= step
    ]
    if len(kept) < len(lines):
        replace_file(path, b"".join(line + b"\n" for line in kept))
    return len(lines) - len(kept)


def replace_file(path: Path, content: str | bytes, *, writer: str = "") -> None:
    """Write a file atomically: to a temporary name, synced, renamed. Of several processes that may write it at once,
    each gives its own `writer`: the first to rename a shared temporary file would take it from the others."""
    temporary = path.with_name(f".{path.name}{writer and '-'}{writer}.writing")
    try:
        with temporary.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error


def numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a record, non-finite ones decoded."""
    found = {
        name: NON_FINITE.get(value, value) if isinstance(value, str) else value
        for name, value in record.items()
    }
    return {
        name: float(value)
        for name, value in found.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _parse(path: Path, number: int, line: bytes) -> Record:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise ValueError(
            f"{path}, line {number} is not JSON ({error}): {line[:60]!r}; delete the line or restore it"
        ) from error
    if not isinstance(record, dict):
        raise ValueError(
            f"{path}, line {number} is {line[:60]!r}; every line must be one JSON object"
        )
    return record


def _drop_incomplete_line(path: Path) -> None:
    content = path.read_bytes()
    end = content.rfind(b"\n") + 1
    if end < len(content):
        os.truncate(path, end)


def _encode_floats(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {key: _encode_floats(each) for key, each in value.items()}
    return [_encode_floats(each) for each in value] if isinstance(value, list | tuple) else value
