"""Minibatches and micro-batches: every row once, under the token limit."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch

from ascent.maths.batch import PackedBatch
from ascent.models.forward import plan_forward
from ascent.records import Completion, Message, Prompt, Rollout, Turn
from ascent.rollouts.batch import pack_rollouts
from ascent.rollouts.config import RolloutConfig
from ascent.rollouts.microbatches import chunk_rows, minibatches, split_microbatches, units_of
from tests.rollouts.test_batch import THREE


def test_every_row_is_in_exactly_one_micro_batch_under_the_budget() -> None:
    whole = pack_rollouts(THREE * 5)
    pieces = split_microbatches(whole, [[row] for row in range(15)], max_tokens=16)
    assert sum(piece["segments"].count for piece in pieces) == 15
    assert all(piece["segments"].total <= 16 for piece in pieces)
    assert sorted(torch.cat([piece["tokens_T"] for piece in pieces]).tolist()) == sorted(
        whole["tokens_T"].tolist()
    )
    with pytest.raises(ValueError, match=r"7 tokens, more than update\.tokens_per_microbatch=6"):
        split_microbatches(whole, [[0], [1], [2]], max_tokens=6)


def grouped(groups: int, size: int, prompt: int, completions: Sequence[int]) -> PackedBatch:
    """Groups of completions after prompts of their own."""
    rng = random.Random(0)
    rollouts = []
    for group in range(groups):
        asked = tuple(rng.randrange(3, 1000) for _ in range(prompt))
        for sample in range(size):
            tokens = tuple(
                rng.randrange(1000, 2000) for _ in range(completions[sample % len(completions)])
            )
            done = Completion(
                f"p{group}", sample, tokens, (0.0,) * len(tokens), (0,) * len(tokens), "length"
            )
            rollouts.append(
                Rollout(Prompt(f"p{group}", (Message("user", "?"),)), sample, (Turn(asked, done),))
            )
    return {**pack_rollouts(rollouts), "rollout_index_B": torch.arange(len(rollouts))}


def tokens_run(batch: PackedBatch) -> int:
    return plan_forward(batch, torch.device("cpu")).num_tokens


@pytest.mark.parametrize(
    ("completions", "max_tokens", "count"),
    [
        ([100], 2200, 4),  # groups of 1,060 tokens, two in each
        ([100], 1700, 6),  # one and a half in each: every second one repeats a prompt
        ([100], 4300, 2),
        ([30, 200, 70, 90], 1700, 6),
    ],
)
def test_prompts_run_about_once_in_few_micro_batches_of_equal_size(
    completions: list[int], max_tokens: int, count: int
) -> None:
    batch = grouped(8, 10, 60, completions)
    pieces = split_microbatches(
        batch, units_of(batch, whole_groups=False), max_tokens, divisible=True
    )
    sizes = [tokens_run(piece) for piece in pieces]
    needed = tokens_run(batch)
    assert max(sizes) <= max_tokens and len(pieces) == count
    assert sum(sizes) <= 1.05 * needed
    assert min(sizes) >= 0.8 * max(sizes)
    assert sorted(row for piece in pieces for row in piece["rollout_index_B"].tolist()) == list(
        range(80)
    )


def test_a_long_prompt_is_not_repeated_to_fill_micro_batches() -> None:
    batch = grouped(6, 4, 200, [50])  # 400 tokens a group; 600 would hold one and a half
    pieces = split_microbatches(batch, units_of(batch, whole_groups=False), 600, divisible=True)
    assert [tokens_run(piece) for piece in pieces] == [400] * 6


def test_units_that_must_stay_together_do() -> None:
    batch = grouped(6, 4, 40, [50])
    units = units_of(batch, whole_groups=True)
    pieces = split_microbatches(batch, units, 350)
    assert [piece["segments"].count for piece in pieces] == [4] * 6
    with pytest.raises(ValueError, match=r"4 rollouts that stay together have 240 tokens"):
        split_microbatches(batch, units, 239)


def test_chunks_count_a_shared_prompt_once() -> None:
    batch = grouped(2, 4, 100, [10])
    assert chunk_rows(batch, 140) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert chunk_rows(batch, 125) == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_chunks_are_consecutive_and_hold_at_least_one_sequence() -> None:
    batch = pack_rollouts(THREE)  # 4, 2 and 7 tokens
    assert chunk_rows(batch, 6) == [[0, 1], [2]]
    assert chunk_rows(batch, 5) == [[0], [1], [2]]
    assert chunk_rows(batch, 1) == [[0], [1], [2]]
    assert chunk_rows(batch, 13) == [[0, 1, 2]]


def test_every_epoch_has_every_unit_once_in_an_order_of_its_own() -> None:
    batch = pack_rollouts(THREE * 4)
    assert units_of(batch, whole_groups=True) == [[0, 2, 3, 5, 6, 8, 9, 11], [1, 4, 7, 10]]
    units, config = (
        units_of(batch, whole_groups=False),
        RolloutConfig(2, 6, epochs=2, minibatches=5),
    )
    found = list(minibatches(units, config, seed=0, step=1))
    assert [len(each) for each in found] == [2, 2, 3, 2, 3] * 2
    first, second = ([unit for each in part for unit in each] for part in (found[:5], found[5:]))
    assert sorted(first) == sorted(second) == units and first != second
    assert found == list(minibatches(units, config, seed=0, step=1))


@pytest.mark.parametrize("divisible", [True, False])
@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("max_tokens", [1700, 2200, 100_000])
def test_ranks_get_as_many_micro_batches_of_about_the_same_work(
    divisible: bool, ranks: int, max_tokens: int
) -> None:
    batch = grouped(8, 10, 60, [30, 200, 70, 90])
    units = units_of(batch, whole_groups=not divisible)
    pieces = split_microbatches(batch, units, max_tokens, divisible=divisible, ranks=ranks)
    assert sorted(torch.cat([piece["rollout_index_B"] for piece in pieces]).tolist()) == list(
        range(80)
    )
    assert (len(pieces) % ranks == 0 or len(pieces) == len(units)) and all(
        tokens_run(piece) <= max_tokens for piece in pieces
    )
    loads = [sum(tokens_run(piece) for piece in pieces[rank::ranks]) for rank in range(ranks)]
    assert max(loads) <= (1.25 if divisible else 2.0) * sum(loads) / ranks


def test_fewer_units_than_ranks_give_fewer_micro_batches() -> None:
    batch = grouped(3, 2, 20, [5])
    assert len(split_microbatches(batch, units_of(batch, whole_groups=True), 1000, ranks=8)) == 3
    assert (
        len(
            split_microbatches(
                batch, units_of(batch, whole_groups=False), 1000, divisible=True, ranks=8
            )
        )
        <= 6
    )


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_chunks_for_ranks_are_consecutive(ranks: int) -> None:
    batch = grouped(4, 4, 20, [5, 9])
    chunks = chunk_rows(batch, 10**6, ranks)
    assert [row for chunk in chunks for row in chunk] == list(range(16)) and len(chunks) == ranks
