"""Preference losses: worked pair, gradients, empty members, KTO's reference point."""

from __future__ import annotations

import math

import pytest
import torch

from ascent.losses import preferences as p
from ascent.losses.loss import summed
from ascent.losses.objective import mismatched_score
from ascent.maths.segments import Segments

LOGPROBS = torch.tensor([-10.0, -14.0], dtype=torch.float64)
REFERENCE = torch.tensor([-11.0, -12.0], dtype=torch.float64)
LENGTHS = torch.tensor([5, 8])
W, L = torch.tensor([0]), torch.tensor([1])


def value(each) -> float:
    return float(each.losses[0])


def test_golden_numbers_g9() -> None:
    referenced = (LOGPROBS, REFERENCE, LENGTHS, W, L)
    assert value(p.dpo(*referenced)) == pytest.approx(0.554355, abs=1e-6)
    assert value(p.dpo(*referenced, label_smoothing=0.1)) == pytest.approx(0.584355, abs=1e-6)
    assert value(p.hinge(*referenced)) == pytest.approx(0.7)
    assert value(p.ipo_sum(*referenced)) == pytest.approx(4.0)
    assert value(p.ipo_mean(*referenced)) == pytest.approx(20.7025)
    assert value(p.simpo(LOGPROBS, LENGTHS, W, L, beta=2.5, margin=1.375)) == pytest.approx(2.126928, abs=1e-6)
    odds = value(p.odds_ratio(LOGPROBS, LENGTHS, W, L))
    assert odds == pytest.approx(math.log1p(math.exp(0.295473)), abs=1e-6)
    assert 0.1 * odds == pytest.approx(0.085176, abs=1e-6)
    kto = p.kto(LOGPROBS, REFERENCE, LENGTHS, torch.tensor([True, False]), torch.tensor(0.3))
    assert kto.losses.tolist() == pytest.approx([0.482507, 0.442752], abs=1e-6)


def test_reference_free_is_dpo_with_a_uniform_reference() -> None:
    free = p.reference_free(LOGPROBS, LENGTHS, W, L, beta=0.1)
    uniform = p.dpo(LOGPROBS, torch.full_like(REFERENCE, -3.0), LENGTHS, W, L, beta=0.1)
    assert value(free) == pytest.approx(value(uniform))
    assert value(free) == pytest.approx(math.log1p(math.exp(-0.4)))


def test_kto_reference_point_is_never_negative_and_carries_no_gradient() -> None:
    desirable, score = torch.tensor([True, False]), torch.tensor(-5.0, dtype=torch.float64, requires_grad=True)
    below = p.kto(LOGPROBS, REFERENCE, LENGTHS, desirable, score)
    zero = p.kto(LOGPROBS, REFERENCE, LENGTHS, desirable, torch.tensor(0.0))
    torch.testing.assert_close(below.losses, zero.losses)
    assert not below.losses.requires_grad


def test_kto_statistic_adds_over_pieces() -> None:
    now, ref = torch.tensor([-1.0, -2.0, -3.0]), torch.tensor([-1.5, -2.0, -4.0])
    trained = torch.tensor([True, True, True])
    whole = mismatched_score(now, ref, trained, Segments.from_lengths([2, 1]))
    parts = mismatched_score(now[:2], ref[:2], trained[:2], Segments.from_lengths([2])) + mismatched_score(
        now[2:], ref[2:], trained[2:], Segments.from_lengths([1])
    )
    torch.testing.assert_close(whole, parts)
    assert whole.tolist() == pytest.approx([1.5, 2.0])


def test_kto_weights_the_classes() -> None:
    desirable = torch.tensor([True, False])
    plain = p.kto(LOGPROBS, REFERENCE, LENGTHS, desirable, torch.tensor(0.0))
    heavy = p.kto(LOGPROBS, REFERENCE, LENGTHS, desirable, torch.tensor(0.0), undesirable_weight=3.0)
    assert (heavy.losses / plain.losses).tolist() == pytest.approx([1.0, 3.0])


LOSSES = {
    "dpo": lambda x: p.dpo(x, REFERENCE, LENGTHS, W, L, label_smoothing=0.1),
    "reference_free": lambda x: p.reference_free(x, LENGTHS, W, L),
    "hinge": lambda x: p.hinge(x, REFERENCE, LENGTHS, W, L),
    "ipo_sum": lambda x: p.ipo_sum(x, REFERENCE, LENGTHS, W, L),
    "ipo_mean": lambda x: p.ipo_mean(x, REFERENCE, LENGTHS, W, L),
    "simpo": lambda x: p.simpo(x, LENGTHS, W, L, label_smoothing=0.05),
    "odds_ratio": lambda x: p.odds_ratio(x, LENGTHS, W, L),
    "kto": lambda x: p.kto(x, REFERENCE, LENGTHS, torch.tensor([True, False]), torch.tensor(0.3)),
}


@pytest.mark.parametrize("name", LOSSES)
def test_finite_differences_and_direction(name: str) -> None:
    x = LOGPROBS.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda y: LOSSES[name](y).losses, x)
    (grad,) = torch.autograd.grad(summed(LOSSES[name](x)).numerator, x)
    assert float(grad[0]) < 0 < float(grad[1])  # up with the chosen, down with the rejected


def test_a_pair_with_an_empty_member_is_not_counted() -> None:
    logprobs = torch.tensor([-10.0, 0.0, -4.0, -5.0], dtype=torch.float64, requires_grad=True)
    lengths, reference = torch.tensor([5, 0, 2, 2]), torch.zeros(4, dtype=torch.float64)
    chosen, rejected = torch.tensor([0, 2]), torch.tensor([1, 3])
    for each in (
        p.dpo(logprobs, reference, lengths, chosen, rejected),
        p.odds_ratio(logprobs, lengths, chosen, rejected),
        p.simpo(logprobs, lengths, chosen, rejected),
    ):
        loss = summed(each)
        assert float(loss.denominator) == 1
        (grad,) = torch.autograd.grad(loss.numerator, logprobs)
        assert grad[:2].tolist() == [0.0, 0.0] and bool(torch.isfinite(grad).all())


def test_the_reference_gets_no_gradient() -> None:
    reference = REFERENCE.clone().requires_grad_()
    assert not p.dpo(LOGPROBS, reference, LENGTHS, W, L).losses.requires_grad


def test_metrics() -> None:
    metrics = p.dpo(LOGPROBS, REFERENCE, LENGTHS, W, L).metrics
    assert {name: tally.value() for name, tally in metrics.items()} == pytest.approx(
        {"accuracy": 1, "margin": 0.3, "reward_chosen": 0.1, "reward_rejected": -0.2,
         "logprobs_chosen": -10, "logprobs_rejected": -14}
    )  # fmt: skip


def test_bad_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match=r"beta=0.*above 0"):
        p.dpo(LOGPROBS, REFERENCE, LENGTHS, W, L, beta=0)
    with pytest.raises(ValueError, match=r"label_smoothing=0.5.*below 0.5"):
        p.dpo(LOGPROBS, REFERENCE, LENGTHS, W, L, label_smoothing=0.5)
