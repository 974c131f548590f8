"""The files between the ranks of a run and the launcher of its reward workers."""

from __future__ import annotations

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ascent.runs import jsonl
from ascent.runs.reward_worker_files import RewardWorkerFiles
from ascent.runs.sampler_files import PlacedServers

REWARDS = {"length": {"use": "length", "options": {"target": 8}}}


def test_ranks_that_ask_at_once_find_the_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every rank has written its file before any renames it, and all of them succeed."""
    written, sync = threading.Barrier(3), os.fsync

    def meet(file: int) -> None:
        sync(file)
        written.wait(60)

    ranks = [RewardWorkerFiles(tmp_path, "launch") for _ in range(3)]
    launcher = RewardWorkerFiles(tmp_path, "launch")
    assert not launcher.wanted()
    with monkeypatch.context() as patch, ThreadPoolExecutor(3) as threads:
        patch.setattr(jsonl.os, "fsync", meet)
        list(threads.map(lambda rank: ranks[rank].want(REWARDS, rank=rank), range(3)))
    assert launcher.wanted()
    assert json.loads(launcher.wanted_file.read_text())["rewards"] == REWARDS
    assert [each.name for each in launcher.wanted_file.parent.iterdir()] == ["wanted.json"]
    launcher.place(PlacedServers(("http://a:1/v1",)))
    assert [each.placed().urls for each in ranks] == [("http://a:1/v1",)] * 3
    ranks[0].delete()
    assert not launcher.wanted() and ranks[1].placed() == PlacedServers()
