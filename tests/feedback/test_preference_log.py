"""Nothing that was said is lost, nothing half-said stays."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import resource
from pathlib import Path

import pytest

from ascent.feedback.preference_log import PreferenceLog, read
from tests.feedback.made import choice


def test_each_line_is_synced_before_append_returns(tmp_path, monkeypatch):
    synced = []
    with PreferenceLog(tmp_path / "v.jsonl") as ledger:
        monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.fstat(handle).st_size))
        ledger.append(choice("p", "ann", "first"))
        ledger.append(choice("q", "ann", "tie"))
    size = (tmp_path / "v.jsonl").stat().st_size
    assert len(synced) == 2 and synced[0] < synced[1] == size


def test_half_a_line_is_cut_off_and_the_rest_stays(tmp_path):
    path = tmp_path / "v.jsonl"
    with PreferenceLog(path) as ledger:
        ledger.append(choice("p", "ann", "first"))
    with path.open("a") as file:
        file.write('{"id": "q", "annot')
    with PreferenceLog(path) as ledger:
        assert ledger.answered_by("ann") == {("p", 0)}
        ledger.append(choice("q", "ann", "second"))
    assert [row["id"] for row in read(path)] == ["p", "q"]


def test_undo_takes_back_what_this_session_said_and_nothing_older(tmp_path):
    path = tmp_path / "v.jsonl"
    with PreferenceLog(path) as ledger:
        ledger.append(choice("p", "ann", "first"))
    before = path.read_bytes()
    with PreferenceLog(path) as ledger:
        ledger.append(choice("q", "ann", "tie"))
        ledger.append(choice("r", "ann", "tie"))
        assert [(ledger.undo() or {}).get("id") for _ in range(3)] == ["r", "q", None]
        assert ledger.answered_by("ann") == {("p", 0)}
    assert path.read_bytes() == before


def test_an_annotator_takes_back_a_line_in_the_middle_and_the_file_stays_locked(tmp_path):
    path = tmp_path / "v.jsonl"
    with PreferenceLog(path) as ledger:
        ledger.append(choice("p", "ann", "first"))
    with PreferenceLog(path) as ledger:
        for name, annotator in (("q", "bob"), ("r", "ann"), ("s", "bob")):
            ledger.append(choice(name, annotator, "tie"))
        assert [(ledger.undo_of("ann") or {}).get("id") for _ in range(3)] == ["r", "p", None]
        with pytest.raises(ValueError, match="being written by another process"):
            PreferenceLog(path)
        ledger.append(choice("t", "ann", "second"))
        assert (
            [row["id"] for row in read(path)]
            == [row["id"] for row in ledger.rows]
            == ["q", "s", "t"]
        )
        assert [(ledger.undo() or {}).get("id") for _ in range(4)] == ["t", "s", "q", None]
    assert path.read_bytes() == b"" and [each.name for each in tmp_path.iterdir()] == ["v.jsonl"]


def test_a_writer_that_waited_for_a_file_which_was_replaced_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "v.jsonl"
    path.touch()
    lock = fcntl.flock

    def replaced(handle, how):  # another process replaces the file and ends between open and lock
        path.with_name("new").touch()
        path.with_name("new").replace(path)
        lock(handle, how)

    monkeypatch.setattr(fcntl, "flock", replaced)
    with pytest.raises(ValueError, match="being written by another process"):
        PreferenceLog(path)


@pytest.mark.parametrize("room", [0, 20])
def test_a_full_disk_leaves_the_file_as_it_was_and_undo_right(tmp_path, room):
    path = tmp_path / "v.jsonl"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with PreferenceLog(path) as ledger:
        ledger.append(choice("p", "ann", "first"))
        before = path.read_bytes()
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + room, limits[1]))
        try:
            with pytest.raises(OSError, match="the disk is full; the last verdict was not written"):
                ledger.append(choice("q", "ann", "tie"))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert path.read_bytes() == before
        assert (ledger.undo() or {})["id"] == "p" and path.read_bytes() == b""


def test_a_line_that_could_not_be_synced_is_not_there(tmp_path, monkeypatch):
    path = tmp_path / "v.jsonl"

    def fail(handle):
        raise OSError(errno.EIO, "Input/output error")

    with PreferenceLog(path) as ledger:
        monkeypatch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="Input/output error; the last verdict was not written"):
            ledger.append(choice("q", "ann", "tie"))
        assert ledger.rows == [] and path.read_bytes() == b""


def test_one_writer(tmp_path):
    with (
        PreferenceLog(tmp_path / "v.jsonl"),
        pytest.raises(ValueError, match="being written by another process"),
    ):
        PreferenceLog(tmp_path / "v.jsonl")
    PreferenceLog(tmp_path / "v.jsonl").close()


def test_a_file_of_something_else_is_refused(tmp_path: Path):
    path = tmp_path / "v.jsonl"
    path.write_text(json.dumps({"prompt": "x", "chosen": "y", "rejected": "z"}) + "\n")
    with pytest.raises(ValueError, match="a line that collect did not write"):
        PreferenceLog(path)
