"""Clip-Cov and KL-Cov: covariances, candidates and choices by hand, gradients, one choice for the whole step."""

from __future__ import annotations

import math

import pytest
import torch

from ascent.cells import cell
from ascent.losses import covariance, policy_losses, ratios, rollout_correction
from ascent.losses.objective import step_statistics
from ascent.maths.segments import Segments

ALL = torch.ones(4, dtype=torch.bool)
SEGMENTS = Segments.from_lengths([4])
OLD = torch.tensor([-1.0, -3.0, -2.0, -2.0], dtype=torch.float64)
ADVANTAGES = torch.tensor([2.0, -2.0, 0.0, 0.0], dtype=torch.float64)


def test_covariances_by_hand_and_only_over_trained_tokens() -> None:
    found = covariance.covariances(
        torch.tensor([-1.0, -3.0, -2.0, math.nan]).double(),
        torch.tensor([1.0, -1.0, 0.0, math.nan]).double(),
        torch.tensor([True, True, True, False]),
    )
    assert found.tolist() == [1.0, 1.0, 0.0, 0.0]


def chosen(noise: torch.Tensor, **numbers: float) -> list[bool]:
    zero = torch.zeros_like(OLD)
    return covariance.draining(OLD, zero, ADVANTAGES, ALL, OLD, noise, **numbers).tolist()


def test_clip_cov_drops_its_share_of_the_candidates_by_noise() -> None:
    """Covariances are 2, 2, 0, 0: two candidates between 1 and 5; half of four tokens is two, a tenth at least one."""
    noise = torch.tensor([0.9, 0.1, 0.0, 0.0]).double()
    assert chosen(noise, share=0.1) == [False, True, False, False]
    assert chosen(1 - noise, share=0.1) == [True, False, False, False]
    assert chosen(noise, share=0.5) == [True, True, False, False]
    assert chosen(noise, share=1.0) == [
        True,
        True,
        False,
        False,
    ]  # never more than there are candidates
    assert chosen(noise, share=0.5, least=2.0) == [False] * 4  # bounds are strict


def test_a_clipped_token_is_no_candidate() -> None:
    log_ratio = torch.tensor([0.5, 0.0, 0.0, 0.0], dtype=torch.float64)
    found = covariance.candidates(
        OLD, log_ratio, ADVANTAGES, ALL, low=0.2, high=0.2, least=1.0, most=5.0
    )
    assert found.tolist() == [False, True, False, False]


def test_without_noise_a_hash_of_the_old_log_prob_decides() -> None:
    values = torch.linspace(-5, -0.01, 4096, dtype=torch.float64)
    noise = covariance.hashed(values)
    assert bool(((noise >= 0) & (noise < 1)).all()) and noise.unique().numel() == 4096
    assert float(noise.mean()) == pytest.approx(0.5, abs=0.02)
    assert float(torch.corrcoef(torch.stack([noise, values]))[0, 1]) == pytest.approx(0, abs=0.05)
    assert covariance.hashed(values.flip(0)).flip(0).tolist() == noise.tolist()


def test_a_log_prob_of_zero_is_dropped_no_sooner_than_another() -> None:
    zero, minus = torch.zeros(1, dtype=torch.float64), torch.full((1,), -0.0, dtype=torch.float64)
    assert 0.01 < float(covariance.hashed(zero)) < 0.99 and covariance.hashed(
        minus
    ) == covariance.hashed(zero)
    # Two tokens of each of 512 advantages, one at 0 and one below it: which comes first is a coin's toss.
    advantages = torch.linspace(-2, 2, 512, dtype=torch.float64)
    certain, other = (covariance.hashed(zero.expand(512) + old, advantages) for old in (0.0, -0.3))
    assert float((certain < other).double().mean()) == pytest.approx(0.5, abs=0.07)
    assert certain.unique().numel() == 512 and float(certain.mean()) == pytest.approx(0.5, abs=0.05)


def test_of_many_candidates_those_at_zero_are_dropped_in_proportion() -> None:
    rng = torch.Generator().manual_seed(0)
    old = torch.where(
        torch.rand(4096, generator=rng) < 0.6, 0.0, -4 * torch.rand(4096, generator=rng)
    ).double()
    advantages = torch.randn(4096, generator=rng, dtype=torch.float64)
    every = torch.ones(4096, dtype=torch.bool)
    bounds = {"low": 0.2, "high": 0.2, "least": 0.1, "most": 5.0}
    among = covariance.candidates(old, old * 0, advantages, every, **bounds)
    dropped = covariance.draining(old, old * 0, advantages, every, old, share=0.1, **bounds)
    expected = float((old[among] == 0).double().mean())
    assert 0.2 < expected < 0.9 and int(dropped.sum()) == 409
    assert float((old[dropped] == 0).double().mean()) == pytest.approx(expected, abs=0.1)


def gated_of(name: str, now: torch.Tensor, **numbers: float) -> policy_losses.PolicyLoss:
    made, level, none = (
        cell(getattr(covariance, name), **numbers),
        cell(ratios.token),
        cell(rollout_correction.none),
    )
    known = {
        "logprobs_T": now,
        "old_logprobs_T": OLD,
        "advantages_T": ADVANTAGES,
        "loss_mask_T": ALL,
        "segments": SEGMENTS,
    }
    known |= step_statistics(known, [made], rollout_correction=none, ratio=level)
    return made({**known, "log_ratio_T": level(known)})


def test_a_dropped_token_has_no_gradient_and_the_rest_is_the_clip() -> None:
    now = (OLD + torch.tensor([0.1, -0.1, 0.1, 0.1])).requires_grad_()
    gated = gated_of("clip_cov", now, share=0.25)
    (grad,) = torch.autograd.grad(gated.loss_T.sum(), now)
    dropped = gated.clip_masks["policy/clip_frac_covariance"]
    assert int(dropped.sum()) == 1
    expected = torch.where(dropped, 0, -ADVANTAGES * (now - OLD).detach().exp())
    torch.testing.assert_close(grad, expected)


def test_kl_cov_charges_the_largest_covariances() -> None:
    now = torch.tensor([-0.7, -3.2, -1.9, -2.2], dtype=torch.float64, requires_grad=True)
    gated = gated_of("kl_cov", now, share=0.5, beta=0.3)
    assert gated.clip_masks["policy/clip_frac_covariance"].tolist() == [True, True, False, False]
    moved = now - OLD
    expected = (
        -ADVANTAGES * moved.exp()
        + 0.3 * moved.abs() * gated.clip_masks["policy/clip_frac_covariance"]
    )
    torch.testing.assert_close(gated.loss_T, expected)
    assert torch.autograd.gradcheck(
        lambda y: gated_of("kl_cov", y, share=0.5, beta=0.3).loss_T, now
    )


def test_a_log_ratio_that_is_only_rounding_is_not_charged() -> None:
    """At 0 the gradient of |x| is 0, and beside it 1 or -1: rounding must not choose."""
    for off in (1e-8, 0.0, -1e-8):
        now = (OLD + off).requires_grad_()
        (grad,) = torch.autograd.grad(
            gated_of("kl_cov", now, share=1.0, beta=10.0).loss_T.sum(), now
        )
        torch.testing.assert_close(grad, -ADVANTAGES, rtol=1e-6, atol=1e-6)


def test_rounding_does_not_decide_which_of_equal_tokens_kl_cov_charges() -> None:
    """Covariances are 2, 2, 0, 0 up to rounding: the noise decides between the first two."""
    noise = torch.tensor([0.9, 0.1, 0.0, 0.5])
    for off in (1e-7, -1e-7):
        logprobs = OLD + torch.tensor([off, 0.0, 0.0, 0.0])
        found = covariance.most_covariant(logprobs, ADVANTAGES, ALL, noise, share=0.25)
        assert found.tolist() == [False, True, False, False]
        assert covariance.most_covariant(logprobs, ADVANTAGES, ALL, share=0.25).tolist() == [
            True,
            False,
            False,
            False,
        ]


def test_nothing_trained_chooses_nothing() -> None:
    none = torch.zeros_like(ALL)
    assert not bool(covariance.most_covariant(OLD, ADVANTAGES, none).any())
    assert not bool(covariance.draining(OLD, OLD * 0, ADVANTAGES, none, OLD).any())
