"""Files that users bring: each under a name of its own, read again when changed, and nothing left of a broken one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ascent.own_files import names_in


def test_two_files_of_one_name_do_not_meet_and_a_changed_one_is_read_again(tmp_path: Path) -> None:
    for folder, value in (("a", 1), ("b", 2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text(f"X = {value}\n")
    assert [names_in("mine", tmp_path / folder / "mine.py")["X"] for folder in "ab"] == [1, 2]
    (tmp_path / "a" / "mine.py").write_text("X = 3\n")
    assert names_in("mine", tmp_path / "a" / "mine.py")["X"] == 3


def test_a_broken_file_raises_its_own_error_and_stays_nowhere(tmp_path: Path) -> None:
    (tmp_path / "divides_by_zero.py").write_text("1 / 0\n")
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            names_in("mine", tmp_path / "divides_by_zero.py")
    assert not [name for name in sys.modules if name.startswith("ascent_own_divides_by_zero")]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"reward x: there is no file .*nowhere\.py"):
        names_in("reward x", tmp_path / "nowhere.py")
