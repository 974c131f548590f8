"""The files between a run and the launcher of its samplers: nothing of another launch counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from ascent.runs.sampler_files import (
    PlacedServers,
    SamplerFiles,
    WantedServers,
    read_count,
    write_count,
)

WANTED = WantedServers("/weights/0", "float32", 128)


def test_both_sides_read_what_the_other_wrote(tmp_path: Path) -> None:
    run, launcher = SamplerFiles(tmp_path, "a"), SamplerFiles(tmp_path, "a")
    assert launcher.wanted() is None and run.placed() == PlacedServers()
    run.want(WANTED)
    assert launcher.wanted() == WANTED
    launcher.place(PlacedServers(("http://a:1/v1",)))
    assert run.placed() == PlacedServers(("http://a:1/v1",))
    assert launcher.count() is None
    write_count(tmp_path, 3)
    assert launcher.count() == 3
    run.delete()
    assert not (tmp_path / "samplers").exists() and launcher.wanted() is None


def test_files_of_another_launch_do_not_count_and_are_not_deleted(tmp_path: Path) -> None:
    old, new = SamplerFiles(tmp_path, "old"), SamplerFiles(tmp_path, "new")
    old.want(WANTED)
    old.place(PlacedServers(("http://a:1/v1",)))
    write_count(tmp_path, 3)
    assert new.wanted() is None and new.placed().urls == ()
    new.delete()
    assert old.wanted() == WANTED
    new.want(WANTED)  # it holds the folder's lock
    assert old.wanted() is None and old.placed().urls == () and new.count() is None


def test_a_file_that_is_cut_short_is_not_there(tmp_path: Path) -> None:
    run = SamplerFiles(tmp_path, "a")
    run.want(WANTED)
    (tmp_path / "samplers" / "wanted.json").write_text('{"launch": "a"')
    assert run.wanted() is None


@pytest.mark.parametrize("count", [0, -1, 10_001])
def test_a_run_needs_a_sampler(count: int, tmp_path: Path) -> None:
    SamplerFiles(tmp_path, "a").want(WANTED)
    SamplerFiles(tmp_path, "a").place(PlacedServers())
    with pytest.raises(ValueError, match=rf"samplers={count}; it must be from 1 to 10000"):
        write_count(tmp_path, count)
    assert read_count(tmp_path) is None


def test_a_run_without_placed_samplers_has_none_to_count(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no samplers that can be counted.*--ray --samplers N"):
        write_count(tmp_path, 2)
