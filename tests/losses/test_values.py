"""Value losses and the entropy bonus by hand, with finite differences."""

from __future__ import annotations

import pytest
import torch

from ascent.losses import entropy, values

ALL = torch.ones(2, dtype=torch.bool)
V = torch.tensor([0.45, 0.2], dtype=torch.float64)
OLD = torch.tensor([0.1, 0.1], dtype=torch.float64)
TARGET = torch.tensor([0.4, 1.0], dtype=torch.float64)


def test_golden_numbers_g6() -> None:
    assert float(values.clipped(V, OLD, TARGET, ALL, radius=0.2).mean()) == pytest.approx(
        0.1625 / 1, abs=1e-9
    )
    assert float(values.mse(V, TARGET, ALL).mean()) == pytest.approx(0.160625, abs=1e-9)


def test_huber_is_squared_inside_and_linear_outside() -> None:
    v, target = torch.tensor([0.5, 30.0], dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    assert values.huber(v, target, ALL, delta=10.0).tolist() == pytest.approx(
        [0.125, 10 * (30 - 5)]
    )


def test_finite_differences_masks_and_frozen_targets() -> None:
    v = torch.tensor([0.45, 0.2, float("nan")], dtype=torch.float64, requires_grad=True)
    old, target = torch.cat([OLD, OLD[:1]]), torch.cat([TARGET, TARGET[:1]]).requires_grad_()
    keep = torch.tensor([True, True, False])
    for loss in (
        values.mse(v, target, keep),
        values.huber(v, target, keep, delta=0.1),
        values.clipped(v, old, target, keep),
    ):
        grad, none = torch.autograd.grad(loss.sum(), [v, target], allow_unused=True)
        assert none is None and float(grad[2]) == 0 and bool(torch.isfinite(grad).all())
    inner = V.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: values.mse(x, TARGET, ALL), inner)
    assert torch.autograd.gradcheck(lambda x: values.clipped(x, OLD, TARGET, ALL), inner)
    assert torch.autograd.gradcheck(lambda x: values.huber(x, TARGET, ALL, delta=0.1), inner)


def test_the_entropy_bonus_is_minimized_by_more_entropy_and_has_a_gradient() -> None:
    h = torch.tensor([0.5, float("nan")], dtype=torch.float64, requires_grad=True)
    loss = entropy.bonus(h, torch.tensor([True, False]))
    assert loss.tolist() == [-0.5, 0.0]
    assert torch.autograd.grad(loss.sum(), h)[0].tolist() == [-1.0, 0.0]
