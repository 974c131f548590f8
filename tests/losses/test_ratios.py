"""Log-ratios at five levels: values, gradients, the guard, masks."""

from __future__ import annotations

import math

import pytest
import torch

from ascent.losses import ratios
from ascent.maths.segments import Segments

SEGMENTS = Segments.from_lengths([3, 2])
OLD = torch.tensor([-1.0, -1, -1, -2, -2], dtype=torch.float64)
NOW = torch.tensor([-0.8, -1.3, -0.9, -1.5, -2.1], dtype=torch.float64)
ALL = torch.ones(5, dtype=torch.bool)


def test_golden_numbers_g7() -> None:
    token = ratios.token(NOW, OLD, ALL).exp()
    assert token.tolist() == pytest.approx(
        [1.221403, 0.740818, 1.105171, 1.648721, 0.904837], abs=1e-6
    )
    geometric = ratios.sequence_geometric(NOW, OLD, ALL, SEGMENTS).exp()
    assert geometric.tolist() == pytest.approx([1.0] * 3 + [1.221403] * 2, abs=1e-6)
    product = ratios.sequence_product(NOW, OLD, ALL, SEGMENTS).exp()
    assert product.tolist() == pytest.approx([1.0] * 3 + [1.491825] * 2, abs=1e-6)


def test_no_ratio_is_one_with_the_gradient_of_the_log_prob() -> None:
    now = NOW.clone().requires_grad_()
    log_ratio = ratios.none(now, ALL)
    assert log_ratio.tolist() == [0.0] * 5
    assert torch.autograd.grad(log_ratio.exp().sum(), now)[0].tolist() == [1.0] * 5


def test_gspo_token_has_the_sequences_value_and_the_tokens_gradient() -> None:
    now = NOW.clone().requires_grad_()
    level = ratios.sequence_geometric_token(now, OLD, ALL, SEGMENTS)
    torch.testing.assert_close(level.detach(), ratios.sequence_geometric(NOW, OLD, ALL, SEGMENTS))
    assert torch.autograd.grad(level[0], now)[0].tolist() == [1, 0, 0, 0, 0]
    spread = ratios.sequence_geometric(now, OLD, ALL, SEGMENTS)
    assert torch.autograd.grad(spread[0], now)[0].tolist() == pytest.approx([1 / 3] * 3 + [0, 0])


def test_a_single_token_makes_every_level_the_same() -> None:
    one, segments, keep = torch.tensor([-0.5]), Segments.from_lengths([1]), torch.tensor([True])
    old = torch.tensor([-0.7])
    for level in (
        ratios.sequence_product,
        ratios.sequence_geometric,
        ratios.sequence_geometric_token,
    ):
        assert float(level(one, old, keep, segments)) == pytest.approx(0.2)


def test_masked_tokens_neither_count_nor_leak() -> None:
    now = torch.tensor(
        [-0.8, float("nan"), -0.9, -1.5, -2.1], dtype=torch.float64, requires_grad=True
    )
    keep = torch.tensor([True, False, True, True, True])
    for level in (
        ratios.sequence_product,
        ratios.sequence_geometric,
        ratios.sequence_geometric_token,
    ):
        log_ratio = level(now, OLD, keep, SEGMENTS)
        assert float(log_ratio[1].detach()) == 0
        grad = torch.autograd.grad(log_ratio.sum(), now)[0]
        assert float(grad[1]) == 0 and bool(torch.isfinite(grad).all())
    assert float(ratios.sequence_geometric(now, OLD, keep, SEGMENTS)[0].detach()) == pytest.approx(
        0.15
    )


def test_the_guard_bounds_the_ratio_and_is_counted() -> None:
    now = torch.tensor([-1.0, -1.0, 29.0, -2.0, -52.0], dtype=torch.float64)
    assert ratios.token(now, OLD, ALL)[[2, 4]].tolist() == [20.0, -20.0]
    assert ratios.guarded(now, OLD, ALL).tolist() == [False, False, True, False, True]
    assert float(ratios.token(now, OLD, ALL, guard=math.inf)[2]) == 30.0


def test_the_old_policy_gets_no_gradient_and_lengths_must_match() -> None:
    old = OLD.clone().requires_grad_()
    assert not ratios.token(NOW, old, ALL).requires_grad
    with pytest.raises(ValueError, match="old ones"):
        ratios.token(NOW, OLD[:3], ALL)
