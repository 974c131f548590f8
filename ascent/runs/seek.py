"""Read parts of a large JSON lines file of a run: new lines, or those of a step, found by bisection.

Lines are in the order of their steps, so no index is needed: a file of many gigabytes opens at once. A line that is no
JSON object is skipped; `parse` returns None for it.
"""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

BLOCK, TAIL = 1 << 20, 1 << 15  # bytes read at once, and at first from the end of a file
_STEP = re.compile(rb'\s*\{\s*"step"\s*:\s*(\d+)\s*[,}]')


class Lines(NamedTuple):
    """Complete lines, and the offset after the last of them."""

    lines: list[bytes]
    end: int


def parse(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def size_of(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size


def read_lines(file: BinaryIO, start: int, limit: int = BLOCK) -> Lines:
    """The complete lines from the offset `start` on: about `limit` bytes, at least one line if there is one."""
    file.seek(start)
    content = file.read(limit)
    if b"\n" not in content:
        content += file.readline()
    kept, newline, _ = content.rpartition(b"\n")
    return Lines(kept.split(b"\n"), start + len(kept) + 1) if newline else Lines([], start)


def read_lines_with(file: BinaryIO, start: int, word: bytes, limit: int = BLOCK) -> Lines:
    """The lines of `read_lines` that hold a word; the others are not even split."""
    file.seek(start)
    content = file.read(limit)
    if b"\n" not in content:
        content += file.readline()
    end = content.rfind(b"\n") + 1
    lines, at = [], content.find(word, 0, end)
    while at >= 0:
        after = content.find(b"\n", at)
        lines.append(content[content.rfind(b"\n", 0, at) + 1 : after])
        at = content.find(word, after, end)
    return Lines(lines, start + end)


def read_backwards(file: BinaryIO, end: int) -> Iterator[tuple[int, bytes]]:
    """(offset, line) of the complete lines before the offset `end`, which starts a line; the last one first."""
    rest, size = b"", TAIL
    while end > 0:
        start, size = max(end - size, 0), min(2 * size, BLOCK)
        file.seek(start)
        content = file.read(end - start) + rest
        lines = content.split(b"\n")
        rest = lines[0] + b"\n" if start else b""
        at = start + len(content)
        for line in reversed(lines[1:] if start else lines):
            at -= len(line)
            if line:
                yield at, line
            at -= 1
        end = start


def last_line_end(file: BinaryIO) -> int:
    """The offset after the last complete line."""
    end, size = size_of(file), TAIL
    while end > 0:
        start, size = max(end - size, 0), BLOCK
        file.seek(start)
        found = file.read(end - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def read_last(file: BinaryIO) -> dict[str, Any] | None:
    """The last record."""
    records = (parse(line) for _, line in read_backwards(file, last_line_end(file)))
    return next((record for record in records if record is not None), None)


def step_of(line: bytes) -> int | None:
    found = _STEP.match(line)
    if found:
        return int(found[1])
    step = (parse(line) or {}).get("step")
    return step if isinstance(step, int) else None


def find_step(file: BinaryIO, step: int) -> int:
    """The offset of the first line of this step or a later one; the end of the lines where there is none."""
    low, high = 0, last_line_end(file)
    while (
        low < high
    ):  # lines that start before `low` are of earlier steps, those from `high` on are not
        middle = (low + high) // 2
        after, found = _next_step(file, middle, high)
        low, high = (after, high) if found is not None and found < step else (low, middle)
    return _line_start(file, low)


def _next_step(file: BinaryIO, at: int, end: int) -> tuple[int, int | None]:
    """The end and the step of the first line that has a step and starts between `at` and `end`."""
    start = _line_start(file, at)
    while start < end:
        file.seek(start)
        line = file.readline()
        start += len(line)
        step = step_of(line)
        if step is not None:
            return start, step
    return end, None


def _line_start(file: BinaryIO, at: int) -> int:
    """The first start of a line at `at` or later."""
    if at == 0:
        return 0
    file.seek(at - 1)
    return at - 1 + len(file.readline())


def read_step(file: BinaryIO, step: int) -> Iterator[dict[str, Any] | None]:
    """The records of a step; None for a line that cannot be read."""
    file.seek(find_step(file, step))
    for line in file:
        found = step_of(line)
        if (found is not None and found > step) or not line.endswith(b"\n"):
            return
        yield parse(line)


def spread_lines(file: BinaryIO, count: int) -> list[bytes]:
    """About `count` lines, evenly spread over the file, the first and the last among them."""
    end = last_line_end(file)
    if end <= BLOCK:  # read at once
        file.seek(0)
        content = file.read(end)
        if content.count(b"\n") <= count:
            return content.split(b"\n")[:-1]
        file = io.BytesIO(content)
    starts = dict.fromkeys(_line_start(file, end * place // count) for place in range(count))
    lines = []
    for start in starts:
        if start < end:
            file.seek(start)
            lines.append(file.readline().rstrip(b"\n"))
    if end:
        last = next(iter(read_backwards(file, end)))[1]
        lines += [last] if lines[-1:] != [last] else []
    return lines
