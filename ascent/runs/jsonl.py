"""Files of one JSON object per line that survive being killed in the middle of a line.

JSON has no NaN: a float that is not finite is written as the word "NaN", "Infinity" or "-Infinity".
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
WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class JsonlRecords(NamedTuple):
    """The records of a file, and a note where its last line was dropped."""

    records: list[Record]
    note: str | None


class JsonlWriter:
    """Appends records; each is one write of a whole line, handed to the system before `append` returns."""

    def __init__(self, path: Path) -> None:
        """Open for appending; half a line that a killed process left at the end is cut off first."""
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            _cut_half_line(path)
        self.path = path
        self._file = path.open("ab", buffering=0)

    def append(self, record: Mapping[str, Any]) -> None:
        self.write(line(record))

    def write(self, whole: bytes) -> None:
        """Append a line that `line` has made; OSError where there is no room for all of it."""
        try:
            written = self._file.write(whole)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from error
        if written != len(whole):  # the beginning of it is cut off when the file is opened again
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    def close(self) -> None:
        """Sync and close; closing twice does nothing."""
        if not self._file.closed:
            os.fsync(self._file.fileno())
            self._file.close()


def line(record: Mapping[str, Any], *, compact: bool = False) -> bytes:
    """A record as its line; `compact` leaves out the spaces, which counts where most of it is numbers."""
    separators = (",", ":") if compact else None
    text = json.dumps(_plain(record), allow_nan=False, ensure_ascii=False, separators=separators)
    return text.encode(errors="replace") + b"\n"


def read(path: Path) -> JsonlRecords:
    """All whole lines; a last line without its end is dropped with a note, a bad line before it is an error."""
    if not path.exists():
        return JsonlRecords([], None)
    whole, _, rest = path.read_bytes().rpartition(b"\n")
    records = [_parsed(path, number, line) for number, line in enumerate(whole.split(b"\n"), 1)] if whole else []
    note = f"{path.name}: the last line is only half written ({len(rest)} bytes) and was left out" if rest else None
    return JsonlRecords(records, note)


def keep_until(path: Path, step: int) -> int:
    """Drop the records of later steps, so that a resumed run has one history; how many were dropped.

    What stays keeps its bytes. The file is replaced by a rename: killed at any instant, it is the old one or the new.
    """
    if not path.exists():
        return 0
    whole = path.read_bytes().rpartition(b"\n")[0]
    found = whole.split(b"\n") if whole else []
    kept = [each for number, each in enumerate(found, 1) if _parsed(path, number, each)["step"] <= step]
    if len(kept) < len(found):
        beside = path.with_name(f".{path.name}.writing")
        beside.unlink(missing_ok=True)
        lines = JsonlWriter(beside)
        lines.write(b"".join(each + b"\n" for each in kept))
        lines.close()
        os.replace(beside, path)
    return len(found) - len(kept)


def numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """The numeric entries of a record, words for non-finite ones turned back."""
    found = {name: WORDS.get(value, value) if isinstance(value, str) else value for name, value in record.items()}
    return {
        name: float(value)
        for name, value in found.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _parsed(path: Path, number: int, line: bytes) -> Record:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise ValueError(
            f"{path}, line {number} is not JSON ({error}): {line[:60]!r}; delete the line or restore it"
        ) from error
    if not isinstance(record, dict):
        raise ValueError(f"{path}, line {number} is {line[:60]!r}; every line must be one JSON object")
    return record


def _cut_half_line(path: Path) -> None:
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        os.truncate(path, whole)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value
