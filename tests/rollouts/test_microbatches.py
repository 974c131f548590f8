"""Minibatches and micro-batches: every row once, under the token limit."""

from __future__ import annotations

import pytest
import torch

from ascent.rollouts.batch import pack_rollouts
from ascent.rollouts.config import RolloutConfig
from ascent.rollouts.microbatches import chunk_rows, minibatches, split_microbatches, units_of
from tests.rollouts.test_batch import THREE


def test_every_row_is_in_exactly_one_micro_batch_under_the_budget() -> None:
    whole = pack_rollouts(THREE * 5)
    pieces = split_microbatches(whole, [[row] for row in range(15)], max_tokens=16)
    assert sum(piece["segments"].count for piece in pieces) == 15
    assert all(piece["segments"].total <= 16 for piece in pieces)
    assert sorted(torch.cat([piece["tokens_T"] for piece in pieces]).tolist()) == sorted(whole["tokens_T"].tolist())
    with pytest.raises(ValueError, match=r"7 tokens, more than update\.tokens_per_microbatch=6"):
        split_microbatches(whole, [[0], [1], [2]], max_tokens=6)


def test_chunks_are_consecutive_and_hold_at_least_one_sequence() -> None:
    batch = pack_rollouts(THREE)  # 4, 2 and 7 tokens
    assert chunk_rows(batch, 6) == [[0, 1], [2]]
    assert chunk_rows(batch, 1) == [[0], [1], [2]]
    assert chunk_rows(batch, 13) == [[0, 1, 2]]


def test_every_epoch_has_every_unit_once_in_an_order_of_its_own() -> None:
    batch = pack_rollouts(THREE * 4)
    assert units_of(batch, whole_groups=True) == [[0, 2, 3, 5, 6, 8, 9, 11], [1, 4, 7, 10]]
    units, config = units_of(batch, whole_groups=False), RolloutConfig(2, 6, epochs=2, minibatches=5)
    found = list(minibatches(units, config, seed=0, step=1))
    assert [len(each) for each in found] == [2, 2, 3, 2, 3] * 2
    first, second = ([unit for each in part for unit in each] for part in (found[:5], found[5:]))
    assert sorted(first) == sorted(second) == units and first != second
    assert found == list(minibatches(units, config, seed=0, step=1))
