"""Losses without pairs: worked rows, KTO's reference point, BCO's running mean, gradients."""

from __future__ import annotations

import math

import pytest
import torch

from ascent.cells import cell
from ascent.losses import kto_bco as p
from ascent.losses.loss import summed
from ascent.losses.objective import mismatched_score, step_statistics
from ascent.maths.segments import Segments

LOGPROBS = torch.tensor([-10.0, -14.0], dtype=torch.float64)
REFERENCE = torch.tensor([-11.0, -12.0], dtype=torch.float64)
LENGTHS = torch.tensor([5, 8])
GOOD = torch.tensor([True, False])


def test_worked_rows() -> None:
    kto = p.kto(LOGPROBS, REFERENCE, LENGTHS, GOOD, torch.tensor(0.3))
    assert kto.losses.tolist() == pytest.approx([0.482507, 0.442752], abs=1e-6)
    apo = p.apo_zero_unpaired(LOGPROBS, REFERENCE, LENGTHS, GOOD)
    assert apo.losses.tolist() == pytest.approx([0.475021, 0.450166], abs=1e-6)
    memory = torch.tensor([0.2, 5.0], dtype=torch.float64)
    bco = p.bco(LOGPROBS, REFERENCE, LENGTHS, GOOD, memory)  # rewards .1 and -.2, shift .2
    assert bco.losses.tolist() == pytest.approx(
        [math.log1p(math.exp(0.1)), math.log1p(math.exp(-0.4))]
    )


def rewards(*values: float, memory: torch.Tensor | None = None) -> torch.Tensor:
    """The running mean after rewards of these sizes (beta 1, reference 0)."""
    x = torch.tensor(values, dtype=torch.float64)
    return p.rewards_so_far(x, torch.zeros_like(x), torch.ones_like(x), memory, beta=1.0)


def test_bco_shift_is_the_mean_of_everything_seen() -> None:
    first = rewards(0.1, 0.3)
    assert first.tolist() == pytest.approx([0.2, 2])
    assert rewards(0.5, 0.1, 0.0, memory=first).tolist() == pytest.approx([0.2, 5])
    whole = rewards(0.1, 0.3, 0.5, 0.1, 0.0)
    torch.testing.assert_close(rewards(0.5, 0.1, 0.0, memory=first), whole)


def test_an_empty_response_enters_neither_the_mean_nor_the_loss() -> None:
    x, lengths = torch.tensor([0.4, 9.0], dtype=torch.float64), torch.tensor([1, 0])
    memory = p.rewards_so_far(x, torch.zeros_like(x), lengths, beta=1.0)
    assert memory.tolist() == pytest.approx([0.4, 1])
    assert (
        float(summed(p.bco(x, torch.zeros_like(x), lengths, GOOD, memory, beta=1.0)).denominator)
        == 1
    )


def test_the_statistic_of_bco_shares_its_beta() -> None:
    made = cell(p.bco, beta=0.5)
    known = {
        "logprobs_B": LOGPROBS,
        "ref_logprobs_B": REFERENCE,
        "lengths_B": LENGTHS,
        "desirable_B": GOOD,
    }
    found = step_statistics(known, [made])["reward_memory"]
    assert found.tolist() == pytest.approx([0.5 * (1 - 2) / 2, 2])
    again = step_statistics({**known, "reward_memory": found}, [made])["reward_memory"]
    assert again.tolist() == pytest.approx([-0.25, 4])


def test_kto_reference_point_is_never_negative_and_carries_no_gradient() -> None:
    desirable, score = (
        torch.tensor([True, False]),
        torch.tensor(-5.0, dtype=torch.float64, requires_grad=True),
    )
    below = p.kto(LOGPROBS, REFERENCE, LENGTHS, desirable, score)
    zero = p.kto(LOGPROBS, REFERENCE, LENGTHS, desirable, torch.tensor(0.0))
    torch.testing.assert_close(below.losses, zero.losses)
    assert not below.losses.requires_grad


def test_kto_statistic_adds_over_pieces() -> None:
    now, ref = torch.tensor([-1.0, -2.0, -3.0]), torch.tensor([-1.5, -2.0, -4.0])
    trained = torch.tensor([True, True, True])
    whole = mismatched_score(now, ref, trained, Segments.from_lengths([2, 1]))
    parts = mismatched_score(
        now[:2], ref[:2], trained[:2], Segments.from_lengths([2])
    ) + mismatched_score(now[2:], ref[2:], trained[2:], Segments.from_lengths([1]))
    torch.testing.assert_close(whole, parts)
    assert whole.tolist() == pytest.approx([1.5, 2.0])


def test_kto_weights_the_classes() -> None:
    desirable = torch.tensor([True, False])
    plain = p.kto(LOGPROBS, REFERENCE, LENGTHS, desirable, torch.tensor(0.0))
    heavy = p.kto(
        LOGPROBS, REFERENCE, LENGTHS, desirable, torch.tensor(0.0), undesirable_weight=3.0
    )
    assert (heavy.losses / plain.losses).tolist() == pytest.approx([1.0, 3.0])


LOSSES = {
    "kto": lambda x: p.kto(x, REFERENCE, LENGTHS, GOOD, torch.tensor(0.3)),
    "apo_zero_unpaired": lambda x: p.apo_zero_unpaired(x, REFERENCE, LENGTHS, GOOD),
    "bco": lambda x: p.bco(
        x, REFERENCE, LENGTHS, GOOD, torch.tensor([0.2, 3.0], dtype=torch.float64)
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_finite_differences_and_direction(name: str) -> None:
    x = LOGPROBS.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda y: LOSSES[name](y).losses, x)
    (grad,) = torch.autograd.grad(summed(LOSSES[name](x)).numerator, x)
    assert float(grad[0]) < 0 < float(grad[1])  # up with the desirable, down with the other
