"""Losses of each side's own reward: the worked pair, gradients, and where each side is pushed."""

from __future__ import annotations

import math

import pytest
import torch

from ascent.losses import pointwise as p
from ascent.losses.loss import summed

LOGPROBS = torch.tensor([-10.0, -14.0], dtype=torch.float64)
PAIR = (
    torch.tensor([-11.0, -12.0], dtype=torch.float64),
    torch.tensor([5, 8]),
    torch.tensor([0]),
    torch.tensor([1]),
)
LOSSES = {
    "nca": p.nca,
    "bco_pair": p.bco_pair,
    "sppo": p.sppo,
    "apo_zero": p.apo_zero,
    "apo_down": p.apo_down,
}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nca", 1.315664),
        ("bco_pair", 1.242536),
        ("sppo", 25.0),
        ("apo_zero", 0.925187),
        ("apo_down", 0.950537),
    ],
)
def test_worked_pair(name: str, expected: float) -> None:
    assert float(LOSSES[name](LOGPROBS, *PAIR).losses) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("name", LOSSES)
def test_finite_differences(name: str) -> None:
    x = LOGPROBS.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda y: LOSSES[name](y, *PAIR).losses, x)


def slopes(name: str, logprobs: list[float]) -> list[float]:
    x = torch.tensor(logprobs, dtype=torch.float64, requires_grad=True)
    (grad,) = torch.autograd.grad(summed(LOSSES[name](x, *PAIR)).numerator, x)
    return grad.tolist()


@pytest.mark.parametrize("name", ["nca", "bco_pair", "sppo", "apo_zero"])
def test_at_the_reference_chosen_goes_up_and_rejected_down(name: str) -> None:
    won, lost = slopes(name, [-11.0, -12.0])
    assert won < 0 < lost


def test_apo_down_lowers_both_far_from_a_tie() -> None:
    """At the reference the chosen side rests (its two terms cancel); once the pair is won it is pushed down too."""
    assert slopes("apo_down", [-11.0, -12.0])[0] == pytest.approx(0, abs=1e-12)
    won, lost = slopes("apo_down", [-11.0, -62.0])
    assert won > 0 and lost > 0


def test_nca_holds_the_chosen_reward_where_a_margin_would_not() -> None:
    """Its optimum for the chosen side is finite: r_w with sigmoid(r_w) = 2/3."""
    best = -11.0 + math.log(2) / 0.1
    assert slopes("nca", [best, -12.0])[0] == pytest.approx(0, abs=1e-9)


def test_sppo_rests_at_its_targets() -> None:
    assert slopes("sppo", [-11.0 + 5, -12.0 - 5]) == pytest.approx([0.0, 0.0])
