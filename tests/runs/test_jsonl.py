"""Files of lines: appended, half-written, damaged, cut."""

from __future__ import annotations

import math
import resource
from pathlib import Path
from types import MappingProxyType

import pytest

from ascent.runs.jsonl import JsonlWriter, drop_after, encode_line, numbers, read, read_ends


def write(path: Path, steps: int) -> None:
    lines = JsonlWriter(path)
    for step in range(1, steps + 1):
        lines.append({"step": step, "loss": 1.0 / step})
    lines.close()


def test_what_is_appended_is_read_back_at_once(tmp_path: Path) -> None:
    lines = JsonlWriter(tmp_path / "deep/m.jsonl")
    lines.append(
        {"step": 1, "text": "naïve\nline", "loss": math.nan, "parts": [math.inf, {"x": -math.inf}]}
    )
    records, note = read(tmp_path / "deep/m.jsonl")  # before closing: nothing waits in a buffer
    assert note is None
    assert records == [
        {"step": 1, "text": "naïve\nline", "loss": "NaN", "parts": ["Infinity", {"x": "-Infinity"}]}
    ]
    lines.close()
    lines.close()
    assert read(tmp_path / "none.jsonl") == ([], None)


@pytest.mark.parametrize("odd", (1.5, math.nan))
def test_mappings_and_tuples_are_objects_and_lists(odd: float) -> None:
    record = MappingProxyType({"a": MappingProxyType({"b": (1, odd)})})
    assert encode_line(record, compact=True) == (
        b'{"a":{"b":[1,1.5]}}\n' if odd == 1.5 else b'{"a":{"b":[1,"NaN"]}}\n'
    )
    assert encode_line(dict(record)) == encode_line(record)
    with pytest.raises(TypeError, match="not JSON serializable"):
        encode_line({"a": object()})


def test_numbers_come_back_as_numbers() -> None:
    found = numbers({"a": "NaN", "b": "-Infinity", "c": 2, "d": "word", "e": True, "f": None})
    assert math.isnan(found.pop("a"))
    assert found == {"b": -math.inf, "c": 2.0}


def test_cut_anywhere_the_whole_lines_survive_and_appending_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    write(path, 3)
    whole = path.read_bytes()
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        expected = whole[:length].count(b"\n")
        records, note = read(path)
        assert [record["step"] for record in records] == list(range(1, expected + 1))
        half = length > 0 and whole[length - 1 : length] != b"\n"
        assert (note is not None) == half
        assert not half or "incomplete" in str(note)
        lines = JsonlWriter(path)
        lines.append({"step": 9})
        lines.close()
        assert [record["step"] for record in read(path).records] == [*range(1, expected + 1), 9]


@pytest.mark.parametrize("line", ["{half", "[1]", ""])
def test_a_bad_line_in_the_middle_is_an_error_with_its_number(tmp_path: Path, line: str) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text(f'{{"step": 1}}\n{line}\n{{"step": 2}}\n')
    with pytest.raises(ValueError, match=r"m.jsonl, line 2 is "):
        read(path)


def test_a_line_without_room_for_all_of_it_is_an_error(tmp_path: Path) -> None:
    """The system writes what fits and says so; the next line must not be written behind half of this one."""
    lines = JsonlWriter(tmp_path / "m.jsonl")
    lines.append({"step": 1})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, hard))
    try:
        with pytest.raises(OSError, match=r"No space left on device: .*m\.jsonl"):
            lines.append({"step": 2, "loss": 1.0})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    lines.close()
    again = JsonlWriter(tmp_path / "m.jsonl")
    again.append({"step": 2})
    again.close()
    assert read(tmp_path / "m.jsonl") == ([{"step": 1}, {"step": 2}], None)


def test_later_steps_are_cut_and_earlier_ones_keep_their_bytes(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    write(path, 5)
    first = path.read_bytes().splitlines(keepends=True)[:3]
    path.write_bytes(path.read_bytes() + b'{"step": 6, "lo')
    assert drop_after(path, 3) == 2
    assert path.read_bytes() == b"".join(first)
    assert drop_after(path, 3) == 0
    assert drop_after(tmp_path / "none.jsonl", 3) == 0
    assert [each.name for each in tmp_path.iterdir()] == ["m.jsonl"]


def test_both_ends_of_a_large_file(tmp_path: Path) -> None:
    """Whole lines only, none of them twice; a small file is read as a whole."""
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"step": {step}}}\n' for step in range(100, 200)))  # 14 bytes a line
    steps = [each["step"] for each in read_ends(path, 50)]
    assert steps == [100, 101, 102, 197, 198, 199]
    assert len(read_ends(path, 700)) == 100
    assert read_ends(tmp_path / "none.jsonl", 50) == []
