"""Distillation: worked distributions, the mask, who gets a gradient, finite differences."""

from __future__ import annotations

import math

import pytest
import torch

from ascent.losses import distillation
from ascent.losses.loss import summed

STUDENT = torch.tensor([[0.5, 0.5]], dtype=torch.float64).log()
TEACHER = torch.tensor([[0.9, 0.1]], dtype=torch.float64).log()
ONE = torch.ones(1, dtype=torch.bool)


@pytest.mark.parametrize(
    ("beta", "expected"), [(0, 0.368064), (0.1, 0.033603), (0.5, 0.101749), (1, 0.510826)]
)
def test_gkd_between_and_at_both_ends(beta: float, expected: float) -> None:
    assert float(distillation.gkd(STUDENT, TEACHER, ONE, beta=beta).losses) == pytest.approx(
        expected, abs=1e-6
    )


def test_kd_is_the_forward_kl_plus_the_teachers_entropy() -> None:
    entropy = -(0.9 * math.log(0.9) + 0.1 * math.log(0.1))
    assert float(distillation.kd(STUDENT, TEACHER, ONE).losses) == pytest.approx(math.log(2))
    forward = distillation.gkd(STUDENT, TEACHER, ONE, beta=0.0).losses
    assert float(forward) + entropy == pytest.approx(math.log(2))


def test_kd_passes_over_words_that_the_student_cannot_say() -> None:
    """S = (.5, .5, 0), T = (.6, .3, .1): .9 log 2, the third word contributing 0; slope .9 S - T on the first two."""
    student = torch.tensor([[0.0, 0.0, -float("inf")]], dtype=torch.float64, requires_grad=True)
    teacher = torch.tensor([[0.6, 0.3, 0.1]], dtype=torch.float64).log()
    losses = distillation.kd(student, teacher, ONE).losses
    assert float(losses.detach()) == pytest.approx(0.9 * math.log(2))
    (grad,) = torch.autograd.grad(losses.sum(), student)
    assert grad[0].tolist() == pytest.approx([-0.15, 0.15, 0.0])


@pytest.mark.parametrize("name", ["gkd", "kd"])
def test_gradients_and_masks(name: str) -> None:
    rng = torch.Generator().manual_seed(3)
    student, teacher = torch.randn(2, 3, 4, generator=rng, dtype=torch.float64)
    trained = torch.tensor([True, False, True])
    student[1] = float("nan")
    x, y = student.clone().requires_grad_(), teacher.clone().requires_grad_()
    loss = summed(getattr(distillation, name)(x, y, trained, temperature=1.7))
    assert float(loss.denominator) == 2
    dx, dy = torch.autograd.grad(loss.numerator, [x, y], allow_unused=True)
    assert dy is None and dx[1].tolist() == [0.0] * 4 and bool(dx.isfinite().all())
    clean = student[[0, 2]].clone().requires_grad_()
    both = torch.ones(2, dtype=torch.bool)
    assert torch.autograd.gradcheck(
        lambda z: getattr(distillation, name)(z, teacher[[0, 2]], both).losses, clean
    )
