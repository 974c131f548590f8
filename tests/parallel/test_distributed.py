"""Real ranks over gloo: reductions, and how all of them end when one does."""

from __future__ import annotations

import os
import pickle
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from ascent.maths.segments import Segments
from ascent.parallel.distributed import dump, join, process_group
from tests.parallel.group import Group, run_in_ranks
from tests.wall_clock import wall_clock


def reductions() -> dict[str, Any]:
    with process_group(timeout=60) as ranks:
        own, chunks = torch.empty(2), torch.arange(2.0 * ranks.count) + ranks.rank
        ranks.reduce_scatter(chunks, own)
        whole = torch.empty(2 * ranks.count)
        ranks.all_gather(own, whole, "the chunks")
        try:
            with ranks.together("files"):
                if ranks.rank == 1:
                    raise OSError("no space")
            problem = ""
        except OSError as error:
            problem = str(error)
        return {
            "gather": ranks.gather({"rank": ranks.rank, "at": torch.tensor(ranks.rank)}, "x"),
            "sum": ranks.sum(torch.tensor([1.0, ranks.rank]), "x"),
            "first": ranks.broadcast(ranks.rank + 7, "x"),
            "map": ranks.map(lambda item: (item, ranks.rank), [10, 11, 12], "x"),
            "concat": ranks.concat(list(ranks.part("abcde")), "x"),
            "whole": whole,
            "problem": problem,
            "lengths": [len(each) for each in ranks.gather("x" * (8000 + 200 * ranks.rank), "x")],
        }


def test_reductions_are_over_all_ranks(tmp_path: Path) -> None:
    for rank, found in enumerate(run_in_ranks(2, tmp_path, reductions)):
        assert [each["rank"] for each in found["gather"]] == [0, 1]
        assert found["sum"].tolist() == [2.0, 1.0] and found["first"] == 7
        assert found["map"] == [(10, 0), (11, 1), (12, 0)] and found["concat"] == list("abcde")
        assert found["whole"].tolist() == [1.0, 3.0, 5.0, 7.0]
        assert found["problem"] == ("no space" if rank == 1 else "rank 1: no space")
        assert found["lengths"] == [
            8000,
            8200,
        ]  # one fits into the first collective, the other does not


def join_again() -> list[Any]:
    """Rank 0, which holds the key-value store, leaves late: the others are already back."""
    found = []
    for run in range(3):
        with process_group(timeout=60) as ranks:
            found.append(ranks.gather((run, ranks.rank), "x"))
            if ranks.is_first:
                leave = ranks.close  # type: ignore[attr-defined]
                ranks.close = lambda leave=leave: time.sleep(1) or leave()  # type: ignore[attr-defined]
    return found


def test_a_script_may_train_several_times(tmp_path: Path) -> None:
    for found in run_in_ranks(2, tmp_path, join_again, seconds=120):
        assert found == [[(run, rank) for rank in range(2)] for run in range(3)]


def test_tensors_are_sent_as_they_are() -> None:
    tensors = [
        torch.tensor(1.5),
        torch.tensor([True, False]),
        torch.arange(6).view(2, 3).t(),
        torch.empty(0, 4),
        torch.tensor([1.0, 3.0]).bfloat16(),
        torch.ones(2, dtype=torch.float64, requires_grad=True),
    ]
    segments = Segments.from_lengths([2, 3])
    found, *others = pickle.loads(dump([tensors, segments, {"name": (1, "two")}]))
    for sent, received in zip(tensors, found, strict=True):
        assert (sent.dtype, sent.shape) == (received.dtype, received.shape) and torch.equal(
            sent, received
        )
    found[0] += 1  # they can be written to
    assert torch.equal(others[0].ids_T, segments.ids_T) and others[1] == {"name": (1, "two")}


def fails_on_one() -> None:
    with process_group(timeout=60) as ranks:
        if ranks.rank == 1:
            raise ValueError("the third row of the data is broken")
        ranks.barrier("the start")


@wall_clock
def test_a_failure_on_one_rank_ends_all_with_a_message_that_names_it(tmp_path: Path) -> None:
    began = time.monotonic()
    group = Group(3, tmp_path, fails_on_one)
    assert group.wait(60) == [1, 1, 1]
    assert time.monotonic() - began < 30
    assert "RankFailed: rank 1: ValueError: the third row of the data is broken" in group.said()


def waits(busy: float, timeout: float) -> None:
    with process_group(timeout=timeout) as ranks:
        if ranks.rank == 1:
            time.sleep(busy)
        ranks.barrier("the sum of all")


@wall_clock
def test_a_killed_rank_ends_the_others_within_30_seconds(tmp_path: Path) -> None:
    group = Group(3, tmp_path, waits, 300, 200)
    time.sleep(4)
    os.kill(group.ranks[1].pid, signal.SIGKILL)
    began = time.monotonic()
    assert group.wait(60) == [1, -signal.SIGKILL, 1]
    assert time.monotonic() - began < 30
    assert "rank 1 is gone" in group.said()


@wall_clock
def test_a_killed_first_rank_ends_the_others_too(tmp_path: Path) -> None:
    group = Group(2, tmp_path, waits, 300, 200)
    time.sleep(4)
    os.kill(group.ranks[0].pid, signal.SIGKILL)
    began = time.monotonic()
    assert group.wait(60) == [-signal.SIGKILL, 1]
    assert time.monotonic() - began < 30
    assert "rank 0 is gone" in group.said()


def test_a_rank_that_does_not_arrive_is_named(tmp_path: Path) -> None:
    group = Group(3, tmp_path, waits, 300, 3)
    assert group.wait(60) == [1, 1, 1]
    assert "3 s at the sum of all: rank 1 is missing" in group.said()


def test_half_a_launcher_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    monkeypatch.setenv("MASTER_PORT", "1")
    with pytest.raises(ValueError, match=r"WORLD_SIZE=2, but MASTER_ADDR is not set.*torchrun"):
        join(timeout=1)
