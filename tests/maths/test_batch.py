"""Micro-batches joined and cut again: nothing is lost, indices move, groups that were cut apart find each other."""

from __future__ import annotations

import pytest
import torch

from ascent.maths import batch as batches
from ascent.maths.groups import Groups
from ascent.maths.segments import Segments
from tests.batches import random_batch, rows_of


def test_joining_pieces_gives_the_batch_back() -> None:
    batch = random_batch(4)
    count = batch["segments"].count
    pieces = [
        rows_of(batch, torch.arange(count)[start : start + 3]) for start in range(0, count, 3)
    ]
    again = batches.concat(pieces)
    assert again["segments"].lengths_B.tolist() == batch["segments"].lengths_B.tolist()
    assert again["groups"].ids_B.tolist() == batch["groups"].ids_B.tolist()
    for name in (
        "logprobs_T",
        "rewards_B",
        "reward_components_BK",
        "logits_TV",
        "mismatched_score",
    ):
        torch.testing.assert_close(again[name], batch[name])


def test_pairs_point_at_their_sequences() -> None:
    pieces = [
        {
            "segments": Segments.from_lengths([1, 1]),
            "chosen_P": torch.tensor([1]),
            "rejected_P": torch.tensor([0]),
        },
        {
            "segments": Segments.from_lengths([2, 1]),
            "chosen_P": torch.tensor([0]),
            "rejected_P": torch.tensor([1]),
        },
    ]
    found = batches.concat(pieces)
    assert (found["chosen_P"].tolist(), found["rejected_P"].tolist()) == ([1, 2], [0, 3])


def pairs() -> batches.PackedBatch:
    return {
        "segments": Segments.from_lengths([1, 2, 1, 3]),
        "tokens_T": torch.arange(7),
        "chosen_P": torch.tensor([0, 3]),
        "rejected_P": torch.tensor([1, 2]),
        "margins_P": torch.tensor([0.5, 2.0]),
    }


def test_a_selected_pair_points_at_its_sequences() -> None:
    found = batches.select(pairs(), [3, 2])
    assert found["tokens_T"].tolist() == [4, 5, 6, 3]
    assert (found["chosen_P"].tolist(), found["rejected_P"].tolist()) == ([0], [1])
    assert found["margins_P"].tolist() == [2.0]


def test_a_pair_is_not_torn_apart() -> None:
    with pytest.raises(ValueError, match="only one sequence of a pair is selected; select both"):
        batches.select(pairs(), [0, 2, 3])


def test_inner_batches_are_selected_too() -> None:
    inner = batches.PackedBatch(
        segments=Segments.from_lengths([1, 2]), tokens_T=torch.tensor([7, 8, 9])
    )
    batch = batches.PackedBatch(
        segments=Segments.from_lengths([1, 1]), tokens_T=torch.tensor([1, 2]), mismatched=inner
    )
    found = batches.select(batch, [1])
    assert found["tokens_T"].tolist() == [2] and found["mismatched"]["tokens_T"].tolist() == [8, 9]


def test_groups_of_two_pieces_are_one_where_their_uids_are_equal() -> None:
    pieces = [
        {"segments": Segments.from_lengths([1, 1]), "groups": Groups.from_ids(ids)}
        for ids in ([7, 7], [9, 7], [8, 9])
    ]
    assert [piece["groups"].ids_B.tolist() for piece in pieces] == [[0, 0], [1, 0], [0, 1]]
    assert batches.concat(pieces)["groups"].ids_B.tolist() == [0, 0, 2, 0, 1, 2]


def test_cutting_follows_the_axis_in_the_name() -> None:
    pieces = [{"segments": Segments.from_lengths([2, 1])}, {"segments": Segments.from_lengths([1])}]
    found = {
        "a_T": torch.arange(4),
        "b_B": torch.arange(3),
        "c": torch.tensor(7.0),
        "memory": torch.arange(2),
    }
    first, second = batches.split(found, pieces)
    assert first["a_T"].tolist() == [0, 1, 2] and second["a_T"].tolist() == [3]
    assert first["b_B"].tolist() == [0, 1] and second["b_B"].tolist() == [2]
    assert float(first["c"]) == 7.0 and second["memory"].tolist() == [0, 1]
