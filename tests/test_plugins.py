"""Files that users bring: each under a name of its own, read again when changed, and nothing left of a broken one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ascent.plugins import load_names


def test_two_files_of_one_name_do_not_meet_and_a_changed_one_is_read_again(tmp_path: Path) -> None:
    for folder, value in (("a", 1), ("b", 2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text(f"X = {value}\n")
    assert [load_names("mine", tmp_path / folder / "mine.py")["X"] for folder in "ab"] == [1, 2]
    (tmp_path / "a" / "mine.py").write_text("X = 3\n")
    assert load_names("mine", tmp_path / "a" / "mine.py")["X"] == 3


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\n1 / 0\n", r"broken\.py:2: ZeroDivisionError: division by zero; fix it"),
        (b"def f():\n    return (\n", r"broken\.py:2: SyntaxError: '\(' was never closed"),
        (
            b"import no_such_module\n",
            r"broken\.py:1: ModuleNotFoundError: No module named 'no_such_module'",
        ),
        (b"X = '\xff'\n", r"broken\.py(:1)?: SyntaxError: .*utf-8"),
        (
            b"X = 1\x00\n",
            r"broken\.py: (SyntaxError|ValueError): source code string cannot contain null bytes",
        ),
    ],
)
def test_a_broken_file_is_told_with_its_line_and_stays_nowhere(
    content: bytes, words: str, tmp_path: Path
) -> None:
    (tmp_path / "broken.py").write_bytes(content)
    before = set(sys.modules)
    for _ in range(2):
        with pytest.raises(ValueError, match=f"reward x: .*{words}"):
            load_names("reward x", tmp_path / "broken.py")
    assert not [name for name in set(sys.modules) - before if name.startswith("ascent_own_broken")]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"reward x: there is no file .*nowhere\.py"):
        load_names("reward x", tmp_path / "nowhere.py")
