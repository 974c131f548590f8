"""Focus cells by hand: quantile, drift, teacher, probability, likelihood; none of them carries a gradient."""

from __future__ import annotations

import math

import pytest
import torch

from ascent.cells import cell
from ascent.losses import supervised, token_weights
from ascent.losses.objective import file_terms, step_statistics
from ascent.maths.segments import Segments

NAN = float("nan")
ALL = torch.ones(5, dtype=torch.bool)
ENTROPY = torch.tensor([0.1, 0.5, 0.3, 0.9, 0.7], dtype=torch.float64)


def test_the_floor_is_the_interpolated_quantile_of_trained_tokens() -> None:
    assert float(token_weights.entropy_floor(ENTROPY, ALL, share=0.4)) == pytest.approx(0.58)
    rng = torch.Generator().manual_seed(0)
    x = torch.rand(101, generator=rng, dtype=torch.float64)
    for share in (0.0, 0.13, 0.2, 0.5, 1.0):
        ours = token_weights.entropy_floor(x, torch.ones(101, dtype=torch.bool), share=share)
        assert float(ours) == pytest.approx(float(torch.quantile(x, 1 - share)), abs=1e-12)
    masked = torch.tensor([True, True, False, True, False])
    outside = torch.where(masked, ENTROPY, NAN)
    assert float(token_weights.entropy_floor(outside, masked, share=0.5)) == pytest.approx(0.5)
    assert float(token_weights.entropy_floor(ENTROPY, torch.zeros_like(ALL))) == 0.0


def test_top_entropy_keeps_a_share_of_the_step() -> None:
    made = cell(token_weights.top_entropy, share=0.4)
    known = {"entropy_T": ENTROPY.clone().requires_grad_(), "loss_mask_T": ALL}
    keep = made({**known, **step_statistics(known, [made])})
    assert keep.tolist() == [False, False, False, True, True]


def test_near_policy_drops_only_negative_samples_the_policy_has_left() -> None:
    segments = Segments.from_lengths([2, 2, 2])
    trained = torch.tensor([True, True, True, False, True, True])
    rollout = torch.tensor([-1.0, -1.0, -1.0, -1.0, -1.0, NAN])
    now = torch.tensor([-2.0, -2.0, -2.0, 9.0, -1.1, -9.0])
    advantages = torch.tensor([1.0, 1.0, -1.0, NAN, -1.0, -1.0])
    keep = token_weights.near_policy(now, rollout, advantages, trained, segments, max_drift=0.5)
    # 1 nat off but wanted; 1 nat off and unwanted; .1 nats off over two tokens, one of them unknown.
    assert keep[trained].tolist() == [True, True, False, True, True]


def test_teacher_agreement_by_hand() -> None:
    advantages = torch.tensor([-1.0, 1.0, 1.0, -1.0, 0.0], dtype=torch.float64)
    old = torch.full((5,), -1.0, dtype=torch.float64)
    teacher = old + torch.tensor([0.1, 0.1, 5.0, 5.0, 0.1], dtype=torch.float64)
    weight = token_weights.teacher_agreement(advantages, teacher, old, ALL, mix=0.5, radius=0.2)
    expected = [0.5 + 0.5 * math.exp(-0.1), 0.5 + 0.5 * math.exp(0.1), 1.1, 0.9, 1.0]
    assert weight.tolist() == pytest.approx(expected)
    only = token_weights.teacher_agreement(
        advantages, teacher, old, ALL, mix=0.5, radius=0.2, negative_only=True
    )
    assert only.tolist() == pytest.approx([expected[0], 1, 1, 0.9, 1])


def test_probability_makes_sft_ascend_the_probability_itself() -> None:
    """DFT's gradient is that of -pi: weight sg(pi) on -log pi."""
    logprobs = torch.tensor([-0.1, -2.0], dtype=torch.float64, requires_grad=True)
    both = torch.ones(2, dtype=torch.bool)
    known = {"logprobs_T": logprobs, "loss_mask_T": both, "segments": Segments.from_lengths([2])}
    term = file_terms(
        known, loss=cell(supervised.nll), token_weights=(cell(token_weights.probability),)
    )["nll"]
    (grad,) = torch.autograd.grad(term.numerator, logprobs)
    assert grad.tolist() == pytest.approx([-math.exp(-0.1), -math.exp(-2)])
    assert float(term.denominator) == 2


def test_own_likelihood_is_one_for_a_typical_pair() -> None:
    segments = Segments.from_lengths([2, 1])
    logprobs = torch.tensor([-1.0, -3.0, -0.5], dtype=torch.float64, requires_grad=True)
    collision = torch.tensor([-2.0, -2.0, -1.0], dtype=torch.float64)
    three = torch.ones(3, dtype=torch.bool)
    pair = (torch.tensor([0]), torch.tensor([1]))
    weight = token_weights.own_likelihood(logprobs, collision, three, segments, *pair)
    assert weight.tolist() == pytest.approx([math.exp(0) * math.exp(0.5)])
    assert not weight.requires_grad


def test_a_focus_for_another_kind_of_loss_is_refused() -> None:
    known = {"logprobs_T": torch.zeros(3), "loss_mask_T": torch.ones(3, dtype=torch.bool)}
    known["segments"] = Segments.from_lengths([3])

    def per_sequence(logprobs_T: torch.Tensor) -> torch.Tensor:
        return torch.ones(1)

    with pytest.raises(
        ValueError,
        match=r"token_weights per_sequence gives \(1,\) weights for \(3,\) losses of nll",
    ):
        file_terms(known, loss=cell(supervised.nll), token_weights=(cell(per_sequence),))
