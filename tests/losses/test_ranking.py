"""Reward-model losses: worked numbers, ties, ragged rankings, finite differences."""

from __future__ import annotations

import pytest
import torch

from ascent.losses import ranking
from ascent.losses.loss import summed
from ascent.maths.groups import Groups

SCORES = torch.tensor([1.2, 0.3, -0.5], dtype=torch.float64)
RANKS, ONE = torch.tensor([1, 2, 3]), Groups.from_ids([0, 0, 0])
W, L = torch.tensor([0]), torch.tensor([1])


def test_golden_numbers_g10() -> None:
    assert float(ranking.kwise(SCORES, RANKS, ONE).losses[0]) == pytest.approx(0.293347, abs=1e-6)
    assert float(ranking.plackett_luce(SCORES, RANKS, ONE).losses[0]) == pytest.approx(
        0.834365, abs=1e-6
    )
    margin = ranking.bradley_terry(SCORES, W, L, torch.tensor([0.5]))
    assert float(margin.losses[0]) == pytest.approx(0.513015, abs=1e-6)
    centered = (
        ranking.bradley_terry(SCORES, W, L, centering=0.01).losses
        - ranking.bradley_terry(SCORES, W, L).losses
    )
    assert float(centered[0]) == pytest.approx(0.0225)


def test_two_responses_make_all_three_the_same() -> None:
    two, ranks, groups = SCORES[:2], torch.tensor([1, 2]), Groups.from_ids([7, 7])
    expected = float(ranking.bradley_terry(two, W, L).losses[0])
    assert float(ranking.kwise(two, ranks, groups).losses[0]) == pytest.approx(expected)
    assert float(ranking.plackett_luce(two, ranks, groups).losses[0]) == pytest.approx(expected)


def test_ragged_rankings_in_any_order_equal_one_by_one() -> None:
    rng = torch.Generator().manual_seed(0)
    ids = torch.tensor([0, 1, 1, 0, 2, 1, 0, 2, 1, 3])
    scores, ranks = (
        torch.randn(10, dtype=torch.float64, generator=rng),
        torch.randperm(10, generator=rng),
    )
    groups = Groups.from_ids(ids)
    for loss in (ranking.kwise, ranking.plackett_luce):
        together = loss(scores, ranks, groups)
        assert together.counted.tolist() == [
            True,
            True,
            True,
            False,
        ]  # a lone response ranks nothing
        for g in range(3):
            rows = (ids == g).nonzero().flatten()
            alone = loss(scores[rows], ranks[rows], Groups.from_ids([0] * rows.numel()))
            assert float(together.losses[g]) == pytest.approx(float(alone.losses[0]))


def test_ties_are_dropped_by_kwise_and_refused_by_plackett_luce() -> None:
    tied = torch.tensor([1, 2, 2])
    expected = ranking.bradley_terry(
        SCORES, torch.tensor([0, 0]), torch.tensor([1, 2])
    ).losses.mean()
    assert float(ranking.kwise(SCORES, tied, ONE).losses[0]) == pytest.approx(float(expected))
    with pytest.raises(ValueError, match="tie"):
        ranking.plackett_luce(SCORES, tied, ONE)
    nothing = summed(ranking.kwise(SCORES, torch.tensor([1, 1, 1]), ONE))
    assert (float(nothing.numerator), float(nothing.denominator)) == (0.0, 0.0)


def test_finite_differences() -> None:
    scores = SCORES.clone().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda s: ranking.bradley_terry(s, W, L, centering=0.1).losses, scores
    )
    assert torch.autograd.gradcheck(lambda s: ranking.kwise(s, RANKS, ONE).losses, scores)
    assert torch.autograd.gradcheck(lambda s: ranking.plackett_luce(s, RANKS, ONE).losses, scores)


def test_far_scores_do_not_overflow() -> None:
    scores = torch.tensor([-1e4, 1e4, 0.0], requires_grad=True)
    for loss in (ranking.kwise(scores, RANKS, ONE), ranking.plackett_luce(scores, RANKS, ONE)):
        assert bool(torch.isfinite(torch.autograd.grad(loss.losses.sum(), scores)[0]).all())
