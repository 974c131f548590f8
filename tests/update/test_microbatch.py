"""The one quotient: sums first, then divide."""

from __future__ import annotations

import pytest
import torch

from ascent.losses.loss import Loss
from ascent.maths.metrics import Mean
from ascent.update.microbatch import denominators, scaled, step_of


def piece(numerator: float, denominator: float) -> dict[str, Loss]:
    total = torch.tensor(numerator, dtype=torch.float64, requires_grad=True)
    count = torch.tensor(denominator, dtype=torch.float64)
    return {"policy": Loss(total, count, {"m": Mean(total.detach(), count)})}


def test_sum_of_numerators_over_sum_of_denominators() -> None:
    pieces = [piece(3.0, 2.0), piece(30.0, 2.0), piece(7.0, 1.0)]
    step = step_of(pieces, {"policy": 2.0})
    assert float(step.value.detach()) == pytest.approx(2 * 40 / 5)
    assert float(step.terms["policy"].detach()) == pytest.approx(8.0)
    assert step.metrics["m"].value() == pytest.approx(8.0)
    totals = denominators(pieces)
    shares = sum(float(scaled(p, totals, {"policy": 2.0}).detach()) for p in pieces)
    assert shares == pytest.approx(16.0)
    assert float(scaled(pieces[0], totals, {}, ranks=4).detach()) == pytest.approx(4 * 3 / 5)


def test_an_empty_step_is_zero_and_still_has_a_graph() -> None:
    empty = piece(0.0, 0.0)
    loss = scaled(empty, denominators([empty]), {})
    assert float(loss.detach()) == 0.0
    (grad,) = torch.autograd.grad(loss, empty["policy"].numerator)
    assert bool(torch.isfinite(grad))


def test_a_term_missing_from_some_pieces_is_still_divided_once() -> None:
    both = [{**piece(1.0, 1.0), "extra": piece(6.0, 2.0)["policy"]}, piece(1.0, 1.0)]
    assert float(step_of(both, {}).value.detach()) == pytest.approx(1.0 + 3.0)
