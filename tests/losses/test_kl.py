"""KL estimators: worked numbers, what each one's gradient is in expectation on a categorical policy, no clamp."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ascent.losses import kl
from ascent.losses.ratios import none as no_ratio
from ascent.losses.ratios import token
from ascent.maths.divergence import kl as exact_kl

NOW = torch.tensor([-1.0, -2.0, -0.5, -0.1], dtype=torch.float64)
REF = torch.tensor([-1.2, -1.5, -0.5, -0.3], dtype=torch.float64)
ALL = torch.ones(4, dtype=torch.bool)


def test_golden_numbers_g4() -> None:
    assert kl.k1(NOW, REF, ALL).tolist() == pytest.approx([0.2, -0.5, 0, 0.2])
    assert kl.k2(NOW, REF, ALL).tolist() == pytest.approx([0.02, 0.125, 0, 0.02])
    assert kl.k3(NOW, REF, ALL).tolist() == pytest.approx(
        [0.018731, 0.148721, 0, 0.018731], abs=1e-6
    )


RNG = torch.Generator().manual_seed(0)
LOGITS = 0.5 * torch.randn(6, dtype=torch.float64, generator=RNG)
REF_LOGITS = LOGITS + 0.4 * torch.randn(6, dtype=torch.float64, generator=RNG)
OLD_LOGITS = LOGITS + 0.3 * torch.randn(6, dtype=torch.float64, generator=RNG)
EVERY = torch.ones(6, dtype=torch.bool)


def gradient(value_of, sampler: Tensor) -> Tensor:
    """The gradient of the expected estimator: every action, weighted by the sampler's (detached) probability."""
    logits = LOGITS.clone().requires_grad_()
    logs = logits.log_softmax(-1)
    expected = (sampler.softmax(-1) * value_of(logs)).sum()
    return torch.autograd.grad(expected, logits)[0]


def exact(first: Tensor, second: Tensor, wrt_first: bool) -> Tensor:
    logits = (first if wrt_first else second).clone().requires_grad_()
    pair = (logits, second) if wrt_first else (first, logits)
    return torch.autograd.grad(exact_kl(pair[0][None], pair[1][None]).sum(), logits)[0]


REVERSE = exact(LOGITS, REF_LOGITS, True)  # grad KL(pi || ref)
FORWARD = exact(REF_LOGITS, LOGITS, False)  # grad KL(ref || pi)
REF_LOGS = REF_LOGITS.log_softmax(-1)
OLD_LOGS = OLD_LOGITS.log_softmax(-1)


def test_k1_in_the_loss_has_no_gradient_in_expectation() -> None:
    found = gradient(lambda logs: kl.k1(logs, REF_LOGS, EVERY), LOGITS)
    assert float(found.abs().max()) < 1e-12


def test_k2_and_straight_through_follow_the_reverse_kl() -> None:
    for estimator in (kl.k2, kl.k3_straight_through, kl.k1_straight_through):
        torch.testing.assert_close(
            gradient(lambda logs, e=estimator: e(logs, REF_LOGS, EVERY), LOGITS), REVERSE
        )


def test_k3_follows_the_forward_kl() -> None:
    found = gradient(lambda logs: kl.k3(logs, REF_LOGS, EVERY), LOGITS)
    torch.testing.assert_close(found, FORWARD)
    assert float((found - REVERSE).abs().max()) > 1e-3


def test_ratio_weighted_estimators_follow_the_reverse_kl_off_policy_too() -> None:
    for estimator in (kl.rho_k3, kl.rho_k1):

        def off_policy(logs: Tensor, e=estimator) -> Tensor:
            return e(logs, REF_LOGS, token(logs, OLD_LOGS, EVERY), EVERY)

        def on_policy(logs: Tensor, e=estimator) -> Tensor:
            return e(logs, REF_LOGS, no_ratio(logs, EVERY), EVERY)

        torch.testing.assert_close(gradient(off_policy, OLD_LOGITS), REVERSE)
        torch.testing.assert_close(gradient(on_policy, LOGITS), REVERSE)


def test_to_old_is_kl_from_old_to_pi_in_value_and_gradient() -> None:
    value = (OLD_LOGITS.softmax(-1) * kl.to_old(LOGITS.log_softmax(-1), OLD_LOGS, EVERY)).sum()
    assert float(value) == pytest.approx(float(exact_kl(OLD_LOGITS[None], LOGITS[None])))
    found = gradient(lambda logs: kl.to_old(logs, OLD_LOGS, EVERY), OLD_LOGITS)
    torch.testing.assert_close(found, exact(OLD_LOGITS, LOGITS, False))


def test_unbiased_values() -> None:
    truth = float(exact_kl(LOGITS[None], REF_LOGITS[None]))
    logs, weights = LOGITS.log_softmax(-1), LOGITS.softmax(-1)
    for estimator in (kl.k1, kl.k3, kl.k3_straight_through, kl.k1_straight_through):
        assert float((weights * estimator(logs, REF_LOGS, EVERY)).sum()) == pytest.approx(truth)


def test_the_penalty_does_not_vanish_where_drift_is_worst() -> None:
    """Peers that cap k3 at 10 have gradient 0 beyond 2.6 nats; here it keeps growing."""
    now = torch.tensor([-8.0], dtype=torch.float64, requires_grad=True)
    value = kl.k3(now, torch.tensor([-1.0], dtype=torch.float64), torch.tensor([True]))
    assert float(value.detach()) > 1000
    assert float(torch.autograd.grad(value.sum(), now)[0]) < -1000


def test_a_cap_holds_the_value_and_ends_the_gradient_only_where_a_row_asks_for_it() -> None:
    """x = log ref - log pi = 7 and .5: k3 is 1088.6 and .148721."""
    now = torch.tensor([-8.0, -2.0], dtype=torch.float64, requires_grad=True)
    ref, both = torch.tensor([-1.0, -1.5], dtype=torch.float64), torch.tensor([True, True])
    value = kl.k3(now, ref, both, cap=10.0)
    assert value.tolist() == pytest.approx([10, 0.148721], abs=1e-6)
    assert torch.autograd.grad(value.sum(), now)[0].tolist() == pytest.approx(
        [0, 1 - 1.648721], abs=1e-6
    )
    straight = kl.k3_straight_through(now, ref, both, cap=10.0)
    assert straight.tolist() == pytest.approx([10, 0.148721], abs=1e-6)
    assert torch.autograd.grad(straight.sum(), now)[0].tolist() == pytest.approx([-7, -0.5])


def test_k1_straight_through_has_the_value_of_one_and_the_slope_of_the_other() -> None:
    now = NOW.clone().requires_grad_()
    value = kl.k1_straight_through(now, REF, ALL)
    assert value.tolist() == pytest.approx([0.2, -0.5, 0, 0.2])
    assert torch.autograd.grad(value.sum(), now)[0].tolist() == pytest.approx([0.2, -0.5, 0, 0.2])


def test_the_mismatch_weight_makes_the_value_that_of_the_trainers_own_samples() -> None:
    """Drawn from another sampler and weighted by pi / sampler, the expected k3 is that of pi; no gradient in w."""
    logs, sampled = LOGITS.log_softmax(-1), OLD_LOGITS.softmax(-1)
    weight = (logs - OLD_LOGS).exp().requires_grad_()
    value = (sampled * kl.weighted_k3(logs, REF_LOGS, weight, EVERY)).sum()
    assert float(value) == pytest.approx(float(exact_kl(LOGITS[None], REF_LOGITS[None])))
    assert not value.requires_grad
    keep = torch.tensor([True, False, True, True])
    found = kl.weighted_k3(
        NOW, REF, torch.tensor([2.0, float("nan"), 1, 0], dtype=torch.float64), keep
    )
    assert found.tolist() == pytest.approx([2 * 0.018731, 0, 0, 0], abs=1e-6)


def test_finite_differences_and_masks() -> None:
    now = NOW.clone().requires_grad_()
    keep = torch.tensor([True, True, False, True])
    ratio = lambda x: token(x, REF, keep)  # noqa: E731
    for estimator in (kl.k1, kl.k2, kl.k3, kl.to_old):
        assert torch.autograd.gradcheck(lambda x, e=estimator: e(x, REF, keep), now)
        assert float(estimator(now, REF, keep)[2].detach()) == 0
    for estimator in (kl.rho_k1, kl.rho_k3):
        assert torch.autograd.gradcheck(lambda x, e=estimator: e(x, REF, ratio(x), keep), now)


def test_small_kl_keeps_its_digits_in_float32() -> None:
    now, ref = torch.tensor([-1.0]), torch.tensor([-1.0001])
    truth = 0.5 * (float(now) - float(ref)) ** 2
    assert float(kl.k3(now, ref, torch.tensor([True]))) == pytest.approx(truth, rel=1e-2)
