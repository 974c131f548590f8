"""Process reward models: worked steps, unknown labels, positions that end no step, finite differences."""

from __future__ import annotations

import pytest
import torch

from ascent.losses import process
from ascent.losses.loss import summed

NAN = float("nan")
LOGITS = torch.tensor([[2.0, 0.0], [NAN, NAN], [0.0, 1.0], [3.0, 3.0]], dtype=torch.float64)
ENDS = torch.tensor([True, False, True, True])


def test_hard_labels_by_hand() -> None:
    each = process.prm_hard(LOGITS, torch.tensor([0, 1, 0, -1]), ENDS)
    assert float(each.losses[0]) == pytest.approx(0.126928, abs=1e-6)
    loss = summed(each)
    assert float(loss.denominator) == 2
    assert float(loss.numerator) == pytest.approx(0.126928 + 1.313262, abs=1e-6)
    assert each.metrics["steps/accuracy"].value() == 0.5


def test_soft_labels_by_hand() -> None:
    each = process.prm_soft(LOGITS, torch.tensor([0.75, 0.1, 0.25, NAN], dtype=torch.float64), ENDS)
    assert float(each.losses[0]) == pytest.approx(0.626928, abs=1e-6)
    assert float(summed(each).denominator) == 2
    assert each.metrics["steps/accuracy"].value() == 1.0
    with pytest.raises(
        ValueError, match="3 classes; soft labels are the probability of the first of two"
    ):
        process.prm_soft(torch.zeros(4, 3), torch.zeros(4), ENDS)


def test_soft_labels_of_one_and_zero_are_hard_ones() -> None:
    hard = process.prm_hard(LOGITS, torch.tensor([0, 0, 1, 0]), ENDS)
    soft = process.prm_soft(LOGITS, torch.tensor([1.0, 0.0, 0.0, 1.0], dtype=torch.float64), ENDS)
    torch.testing.assert_close(summed(hard).numerator, summed(soft).numerator)


def test_gradients() -> None:
    x = LOGITS.clone().requires_grad_()
    (grad,) = torch.autograd.grad(
        summed(process.prm_hard(x, torch.tensor([0, 1, 0, 1]), ENDS)).numerator, x
    )
    assert grad[1].tolist() == [0.0, 0.0] and bool(grad.isfinite().all())
    clean, ends = (
        torch.randn(3, 2, dtype=torch.float64, requires_grad=True),
        torch.ones(3, dtype=torch.bool),
    )
    labels = torch.tensor([0.2, 0.9, 0.5], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda y: process.prm_soft(y, labels, ends).losses, clean)
    assert torch.autograd.gradcheck(
        lambda y: process.prm_hard(y, torch.tensor([0, 1, 1]), ends).losses, clean
    )
