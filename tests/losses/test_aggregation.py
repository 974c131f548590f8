"""Aggregation modes on a ragged batch with an empty sequence, by hand; and what is not read."""

from __future__ import annotations

import pytest
import torch

from ascent.losses import aggregation
from ascent.maths.groups import Groups
from ascent.maths.segments import Segments

SEGMENTS = Segments.from_lengths([3, 2, 2, 1])
Q = torch.tensor(
    [1.0, 2.0, float("nan"), 10.0, 20.0, float("nan"), float("nan"), 7.0], dtype=torch.float64
)
TRAINED = torch.tensor([True, True, False, True, True, False, False, True])
TOKENS = aggregation.tokens_per_sequence(TRAINED, SEGMENTS, torch.float64)
GROUPS = Groups.from_ids([0, 1, 1, 0])


def value(weights: aggregation.Weights) -> float:
    total = aggregation.numerator(Q, TRAINED, weights.weight_B, SEGMENTS)
    return float(total / weights.share_B.sum().clamp(min=1))


def test_group_mean_by_hand() -> None:
    """Group 0 has sequences of mean 1.5 and 7, group 1 one of mean 15 and an empty one: (4.25 + 15) / 2."""
    sequences = aggregation.step_group_sequences(TRAINED, SEGMENTS, GROUPS)
    assert sequences.tolist() == [2, 1, 1, 2]
    assert value(aggregation.group_mean(TOKENS, sequences)) == pytest.approx(9.625)


def test_each_mode_by_hand() -> None:
    assert value(aggregation.token_mean(TOKENS)) == pytest.approx(40 / 5)
    assert value(aggregation.token_sum(TOKENS)) == pytest.approx(40)
    assert value(aggregation.sequence_mean_token_mean(TOKENS)) == pytest.approx(
        (1.5 + 15 + 7) / 3
    )  # the empty one is out
    assert value(aggregation.sequence_mean_token_sum(TOKENS)) == pytest.approx((3 + 30 + 7) / 3)
    assert value(aggregation.sequence_mean_token_scaled(TOKENS, length=8)) == pytest.approx(
        40 / 8 / 3
    )
    by_group = aggregation.prompt_mean(TOKENS, GROUPS.broadcast(GROUPS.sum(TOKENS)))
    assert value(by_group) == pytest.approx(((1 + 2 + 7) / 3 + 30 / 2) / 2)


def test_the_empty_sequence_counts_where_a_row_asks_for_it() -> None:
    assert value(aggregation.sequence_mean_token_mean(TOKENS, count_empty=True)) == pytest.approx(
        (1.5 + 15 + 7) / 4
    )
    assert value(aggregation.sequence_mean_token_sum(TOKENS, count_empty=True)) == pytest.approx(
        40 / 4
    )
    assert value(
        aggregation.sequence_mean_token_scaled(TOKENS, length=8, count_empty=True)
    ) == pytest.approx(40 / 8 / 4)


def test_the_mean_of_micro_batch_means_is_a_different_number() -> None:
    """The bug this design rules out, on this very batch."""
    pieces = [(3.0, 2.0), (30.0, 2.0), (7.0, 1.0)]
    mean_of_means = sum(total / count for total, count in pieces) / 3
    assert mean_of_means == pytest.approx(7.8333, abs=1e-3)
    assert value(aggregation.token_mean(TOKENS)) == pytest.approx(8.0)


def test_bad_input() -> None:
    with pytest.raises(ValueError, match=r"length=0.*at least 1"):
        aggregation.sequence_mean_token_scaled(TOKENS, length=0)
    with pytest.raises(ValueError, match="mismatched lengths"):
        aggregation.numerator(Q[:3], TRAINED[:3], torch.ones(4), SEGMENTS)
