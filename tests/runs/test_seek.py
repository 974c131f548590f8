"""Parts of a large JSON lines file: found by bisection, read backwards, spread; damaged lines do no harm."""

from __future__ import annotations

import io
import json
import os
import tempfile
from pathlib import Path
from typing import Any, BinaryIO

from hypothesis import given
from hypothesis import strategies as st

from ascent.runs import seek

LINES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40), st.booleans()), max_size=25)


def opened(content: bytes) -> BinaryIO:
    file = tempfile.TemporaryFile()  # noqa: SIM115
    file.write(content)
    file.flush()
    return file  # type: ignore[return-value]


def written(parts: list[tuple[int, int, bool]], rest: bytes = b"") -> tuple[list[bytes], BinaryIO]:
    """Lines whose steps grow by the first numbers, of some length, some of them damaged; then half a line."""
    lines, step = [], 0
    for more, length, damaged in parts:
        step += more
        text = json.dumps({"step": step, "text": "x" * length}).encode()
        lines.append(b'{"step' + text[:length] if damaged else text)
    return lines, opened(b"".join(line + b"\n" for line in lines) + rest)


@given(LINES, st.integers(0, 80), st.sampled_from([b"", b'{"step": 99']))
def test_a_step_is_found_as_a_search_from_the_start_finds_it(
    parts: Any, step: int, rest: bytes
) -> None:
    lines, file = written(parts, rest)
    with file:
        found = [each for each in seek.read_step(file, step) if each is not None]
        assert found == [
            record for line in lines if (record := seek.parse(line)) and record["step"] == step
        ]
        steps = [seek.step_of(line) for line in lines]
        start = seek.find_step(file, step)
        before = [
            each
            for each, at in zip(steps, offsets(lines), strict=True)
            if at < start and each is not None
        ]
        after = [
            each
            for each, at in zip(steps, offsets(lines), strict=True)
            if at >= start and each is not None
        ]
        assert all(each < step for each in before) and all(each >= step for each in after)


def offsets(lines: list[bytes]) -> list[int]:
    return [sum(len(line) + 1 for line in lines[:place]) for place in range(len(lines))]


@given(LINES, st.sampled_from([b"", b'{"step": 99']))
def test_backwards_is_forwards_from_behind(parts: Any, rest: bytes) -> None:
    lines, file = written(parts, rest)
    with file:
        end = seek.last_line_end(file)
        assert end == sum(len(line) + 1 for line in lines)
        expected = list(zip(offsets(lines), lines, strict=True))
        assert list(seek.read_backwards(file, end)) == [
            each for each in reversed(expected) if each[1]
        ]


def test_backwards_over_blocks(monkeypatch: Any) -> None:
    monkeypatch.setattr(seek, "BLOCK", 7)
    lines = [b"a" * length for length in (1, 30, 6, 7, 8, 2)]
    with opened(b"".join(line + b"\n" for line in lines) + b"rest") as file:
        assert seek.last_line_end(file) == sum(map(len, lines)) + len(lines)
        assert [line for _, line in seek.read_backwards(file, seek.last_line_end(file))] == lines[
            ::-1
        ]


def test_new_lines_are_read_in_pieces_and_half_a_line_waits(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"one\ntwo\nthree\nfo")
    with path.open("rb") as file:
        assert seek.read_lines(file, 0, 5) == seek.Lines([b"one"], 4)
        assert seek.read_lines(file, 4, 2) == seek.Lines(
            [b"two"], 8
        )  # a line longer than the limit comes whole
        assert seek.read_lines(file, 8, 100) == seek.Lines([b"three"], 14)
        assert seek.read_lines(file, 14, 100) == seek.Lines([], 14)
        with path.open("ab") as more:
            more.write(b"ur\n")
        assert seek.read_lines(file, 14, 100) == seek.Lines([b"four"], 19)


def test_spread_lines_have_both_ends() -> None:
    lines = [json.dumps({"step": step}).encode() for step in range(1000)]
    with opened(b"\n".join(lines) + b"\n") as file:
        steps = [seek.step_of(line) for line in seek.spread_lines(file, 50)]
    assert (
        steps == sorted(set(steps)) and (steps[0], steps[-1]) == (0, 999) and 45 <= len(steps) <= 52
    )
    with opened(b"") as file:
        assert (
            seek.spread_lines(file, 50) == []
            and seek.read_last(file) is None
            and seek.find_step(file, 3) == 0
        )


def test_what_is_no_record_is_none() -> None:
    assert [seek.parse(line) for line in (b"[1]", b"{", b"\xff", b"[" * 100_000, b"3")] == [
        None
    ] * 5
    assert seek.step_of(b'{"a": 1, "step": 7}') == 7 and seek.step_of(b'{"step": "7"}') is None


def test_a_long_file_is_searched_in_few_reads() -> None:
    class Counting(io.FileIO):
        reads = 0

        def readline(self, *size: Any) -> bytes:
            Counting.reads += 1
            return super().readline(*size)

    with tempfile.NamedTemporaryFile() as written:
        written.writelines(b'{"step":%d}\n' % step for step in range(200_000))
        written.flush()
        with Counting(os.dup(written.fileno())) as file:
            seek.find_step(file, 123_456)  # type: ignore[arg-type]
    assert Counting.reads < 100
