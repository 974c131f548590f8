"""Nothing that was said is lost, nothing half-said stays."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ascent.feedback.preference_log import PreferenceLog, read
from tests.feedback.made import choice


def test_each_line_is_synced_before_append_returns(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.fstat(handle).st_size))
    with PreferenceLog(tmp_path / "v.jsonl") as ledger:
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


def test_one_writer(tmp_path):
    with PreferenceLog(tmp_path / "v.jsonl"), pytest.raises(ValueError, match="being written by another process"):
        PreferenceLog(tmp_path / "v.jsonl")
    PreferenceLog(tmp_path / "v.jsonl").close()


def test_a_file_of_something_else_is_refused(tmp_path: Path):
    path = tmp_path / "v.jsonl"
    path.write_text(json.dumps({"prompt": "x", "chosen": "y", "rejected": "z"}) + "\n")
    with pytest.raises(ValueError, match="a line that collect did not write"):
        PreferenceLog(path)
