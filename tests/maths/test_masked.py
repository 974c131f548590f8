"""Masked statistics: nothing outside the mask is read, and degenerate masks give numbers, not NaN."""

from __future__ import annotations

import pytest
import torch

from ascent.maths import masked

NAN = float("nan")
X = torch.tensor([1.0, NAN, 3.0, 8.0], dtype=torch.float64)
KEEP = torch.tensor([True, False, True, True])


def test_values_by_hand() -> None:
    assert float(masked.total(X, KEEP)) == 12
    assert float(masked.mean(X, KEEP)) == 4
    assert float(masked.variance(X, KEEP)) == pytest.approx(26 / 2)
    assert float(masked.variance(X, KEEP, ddof=0)) == pytest.approx(26 / 3)


def test_no_gradient_and_no_nan_passes_the_mask() -> None:
    x = X.clone().requires_grad_()
    (grad,) = torch.autograd.grad(masked.mean(x, KEEP), x)
    assert grad.tolist() == pytest.approx([1 / 3, 0, 1 / 3, 1 / 3])


def test_an_empty_mask_gives_zero() -> None:
    nothing = torch.zeros(4, dtype=torch.bool)
    assert float(masked.mean(X, nothing)) == 0
    assert float(masked.variance(X, nothing)) == 0
    assert masked.whiten(X, nothing).tolist() == [0, 0, 0, 0]


def test_whitening_is_mean_zero_variance_one_and_idempotent() -> None:
    x = torch.randn(1000, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 3 + 5
    keep = torch.arange(1000) % 3 > 0
    white = masked.whiten(x, keep, eps=1e-15)
    assert float(masked.mean(white, keep)) == pytest.approx(0, abs=1e-12)
    assert float(masked.variance(white, keep)) == pytest.approx(1, abs=1e-12)
    torch.testing.assert_close(masked.whiten(white, keep, eps=1e-15), white, atol=1e-12, rtol=0)


def test_whitening_without_the_shift_keeps_the_mean() -> None:
    kept_mean = masked.mean(masked.whiten(X, KEEP, shift_mean=False), KEEP)
    assert float(kept_mean) == pytest.approx(4)


def test_whitening_one_element_or_a_constant_returns_it_centered_and_unscaled() -> None:
    one = torch.tensor([True, False, False, False])
    assert masked.whiten(X, one).tolist() == [0, 0, 0, 0]
    constant = torch.full((5,), 1.1)
    assert float(masked.whiten(constant, torch.ones(5, dtype=torch.bool)).abs().max()) < 1e-6


@pytest.mark.parametrize("seed", range(5))
def test_whitening_a_whole_step_does_not_depend_on_the_number_of_threads(seed: int) -> None:
    x = torch.randn(200_000, generator=torch.Generator().manual_seed(seed))
    keep, before, found = x > -1, torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3, 8):
            torch.set_num_threads(threads)
            found.append(masked.whiten(x, keep))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(each, found[0]) for each in found)


def test_shapes_must_match() -> None:
    with pytest.raises(ValueError, match="must match"):
        masked.kept(X, KEEP[:3])
