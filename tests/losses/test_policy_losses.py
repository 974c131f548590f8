"""Gates: worked numbers, the phi table against autograd, finite differences, equivalences, stop-gradients."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from ascent.losses import aggregation, policy_losses, ratios
from ascent.losses.policy_losses import PolicyLoss
from ascent.maths.segments import Segments

SEGMENTS = Segments.from_lengths([3, 2])
OLD = torch.tensor([-1.0, -1, -1, -2, -2], dtype=torch.float64)
NOW = torch.tensor([-0.8, -1.3, -0.9, -1.5, -2.1], dtype=torch.float64)
A = torch.tensor([1.0, 1, 1, -1, -1], dtype=torch.float64)
ALL = torch.ones(5, dtype=torch.bool)


def reduced(gated: PolicyLoss, mode=aggregation.token_mean, **numbers) -> float:
    tokens_B = aggregation.tokens_per_sequence(ALL, SEGMENTS, torch.float64)
    weights = mode(tokens_B, **numbers)
    total = aggregation.numerator(gated.loss_T, ALL, weights.weight_B, SEGMENTS)
    return float(total / weights.share_B.sum().clamp(min=1))


def test_golden_numbers_g5() -> None:
    log_ratio = torch.tensor([0.5, 0.9, 1.1, 1.5, 5.0], dtype=torch.float64).log()
    for advantage, value, slope in (
        (2.0, [1, 1.8, 2.2, 2.4, 2.4], [1, 1.8, 2.2, 0, 0]),
        (-2.0, [-1.6, -1.8, -2.2, -3, -10], [0, -1.8, -2.2, -3, -10]),
    ):
        x = log_ratio.clone().requires_grad_()
        objective = -policy_losses.clip(x, torch.full_like(x, advantage), ALL).loss_T
        assert objective.tolist() == pytest.approx(value)
        assert torch.autograd.grad(objective.sum(), x)[0].tolist() == pytest.approx(slope)
    x = log_ratio.clone().requires_grad_()
    objective = -policy_losses.dual_clip(x, torch.full_like(x, -2.0), ALL, cap=3.0).loss_T
    assert objective.tolist() == pytest.approx([-1.6, -1.8, -2.2, -3, -6])
    assert torch.autograd.grad(objective.sum(), x)[0].tolist() == pytest.approx(
        [0, -1.8, -2.2, -3, 0]
    )


def test_the_example_people_learn_from() -> None:
    x = torch.tensor([0.3], dtype=torch.float64)
    gated = policy_losses.clip(x, torch.tensor([0.2], dtype=torch.float64), torch.tensor([True]))
    assert float(x.exp()) == pytest.approx(1.35, abs=1e-3)
    assert float(-gated.loss_T) == pytest.approx(0.24)


def test_the_exact_boundary_takes_the_unclipped_branch() -> None:
    x = torch.tensor([1.5, 0.5], dtype=torch.float64).log().requires_grad_()
    held = x.exp()
    high, low = float(held[0].detach()) - 1, 1 - float(held[1].detach())
    gated = policy_losses.clip(
        x, torch.tensor([1.0, -1.0], dtype=torch.float64), ALL[:2], low=low, high=high
    )
    assert torch.autograd.grad(-gated.loss_T.sum(), x)[0].tolist() == pytest.approx([1.5, -0.5])


def test_golden_numbers_g7_losses_and_aggregations() -> None:
    token = ratios.token(NOW, OLD, ALL)
    clipped = policy_losses.clip(token, A, ALL)
    assert clipped.loss_T.tolist() == pytest.approx(
        [-1.2, -0.740818, -1.105171, 1.648721, 0.904837], abs=1e-6
    )
    assert reduced(clipped) == pytest.approx(-0.098486, abs=1e-6)
    assert reduced(clipped, aggregation.sequence_mean_token_mean) == pytest.approx(
        0.130725, abs=1e-6
    )
    assert reduced(clipped, aggregation.sequence_mean_token_sum) == pytest.approx(
        -0.246215, abs=1e-6
    )
    assert reduced(clipped, aggregation.sequence_mean_token_scaled, length=8) == pytest.approx(
        -0.030777, abs=1e-6
    )
    sequence = ratios.sequence_geometric(NOW, OLD, ALL, SEGMENTS)
    per_sequence = aggregation.sequence_mean_token_mean
    assert reduced(
        policy_losses.clip(sequence, A, ALL, low=3e-4, high=4e-4), per_sequence
    ) == pytest.approx(0.110701, abs=1e-6)
    assert reduced(policy_losses.gmpo(token, A, ALL, SEGMENTS), per_sequence) == pytest.approx(
        0.110701, abs=1e-6
    )
    assert reduced(policy_losses.cispo(NOW, token, A, ALL)) == pytest.approx(-0.287680, abs=1e-6)
    assert reduced(policy_losses.sapo(token, A, ALL), per_sequence) == pytest.approx(
        0.073492, abs=1e-6
    )


def phi_of(name: str, ratio: float, advantage: float) -> float:
    """The table of phi, written down independently of the code."""
    clipped = (advantage > 0 and ratio > 1.3) or (advantage < 0 and ratio < 0.8)
    tau = 1.0 if advantage > 0 else 1.05
    return {
        "plain": 1.0,
        "surrogate": ratio,
        "clip": 0.0 if clipped else ratio,
        "dual_clip": 0.0 if clipped or (advantage < 0 and ratio > 2) else ratio,
        "cispo": min(max(ratio, 0.5), 1.5),
        "sapo": ratio / math.cosh(tau * (ratio - 1) / 2) ** 2,
    }[name]


def proximal_phi(name: str, then: float, now: float, advantage: float) -> float:
    """DPPO's phi, from probabilities: the ratio held at 3, or 0 where the token is too far the way A favours."""
    away = (now - then) * (1 if advantage > 0 else -1)
    far = away > 0.1
    if name == "dppo_kl":
        kl = then * math.log(then / now) + (1 - then) * math.log((1 - then) / (1 - now))
        far = kl > 0.05 and away > 0
    return 0.0 if far else min(now / then, 3.0)


@pytest.mark.parametrize("name", ["dppo_tv", "dppo_kl"])
def test_dppo_bounds_the_probability_and_not_the_ratio(name: str) -> None:
    then = torch.tensor([0.001, 0.5, 0.5, 0.5, 0.3, 0.05], dtype=torch.float64).repeat(2)
    after = torch.tensor([0.004, 0.55, 0.8, 0.2, 0.42, 0.3], dtype=torch.float64).repeat(2)
    advantage = torch.cat([torch.full((6,), 0.7), torch.full((6,), -1.3)]).double()
    keep, now = torch.ones(12, dtype=torch.bool), after.log().requires_grad_()
    radius = 0.1 if name == "dppo_tv" else 0.05
    token = ratios.token(now, then.log(), keep)
    gated = getattr(policy_losses, name)(
        now, then.log(), token, advantage, keep, low=radius, high=radius, cap=3.0
    )
    (grad,) = torch.autograd.grad(gated.loss_T.sum(), now)
    rows = zip(then.tolist(), after.tolist(), advantage.tolist(), strict=True)
    expected = [-proximal_phi(name, *row) * row[2] for row in rows]
    assert grad.tolist() == pytest.approx(expected, abs=1e-6)
    assert (
        gated.clip_masks["policy/clip_frac_cap"].tolist()[0]
        and not gated.clip_masks["policy/clip_frac_divergence"].tolist()[0]
    )  # ratio 4, nothing has moved


def test_the_binary_kl_of_the_worked_example() -> None:
    """From .5 to .6 it is .020411: dropped just below that radius, kept just above."""
    then, now = torch.tensor([0.5]).double().log(), torch.tensor([0.6]).double().log()
    one, keep = torch.ones(1, dtype=torch.float64), torch.ones(1, dtype=torch.bool)
    for radius, far in ((0.0204, True), (0.0205, False)):
        gated = policy_losses.dppo_kl(now, then, now - then, one, keep, low=radius, high=radius)
        assert gated.clip_masks["policy/clip_frac_divergence"].tolist() == [far]


def test_dro_is_a_policy_gradient_on_a_leash() -> None:
    now = NOW.clone().requires_grad_()
    gated = policy_losses.dro(now, OLD, A, ALL, beta=0.5)
    assert gated.loss_T.tolist() == pytest.approx((-A * NOW + 0.25 * (NOW - OLD) ** 2).tolist())
    (grad,) = torch.autograd.grad(gated.loss_T.sum(), now)
    assert grad.tolist() == pytest.approx((-A + 0.5 * (NOW - OLD)).tolist())


GATES = {
    "plain": lambda now, x, a: policy_losses.plain(now, a, torch.ones_like(a, dtype=torch.bool)),
    "surrogate": lambda now, x, a: policy_losses.surrogate(
        x, a, torch.ones_like(a, dtype=torch.bool)
    ),
    "clip": lambda now, x, a: policy_losses.clip(
        x, a, torch.ones_like(a, dtype=torch.bool), low=0.2, high=0.3
    ),
    "dual_clip": lambda now, x, a: policy_losses.dual_clip(
        x, a, torch.ones_like(a, dtype=torch.bool), low=0.2, high=0.3, cap=2.0
    ),
    "cispo": lambda now, x, a: policy_losses.cispo(
        now, x, a, torch.ones_like(a, dtype=torch.bool), floor=0.5, cap=1.5
    ),
    "sapo": lambda now, x, a: policy_losses.sapo(x, a, torch.ones_like(a, dtype=torch.bool)),
}


@pytest.mark.parametrize("name", GATES)
def test_autograd_equals_the_phi_table(name: str) -> None:
    ratio = torch.tensor(
        [0.3, 0.75, 0.9, 1.0, 1.2, 1.4, 1.9, 2.5, 6.0], dtype=torch.float64
    ).repeat(2)
    advantage = torch.cat([torch.full((9,), 0.7), torch.full((9,), -1.3)]).double()
    old = torch.linspace(-3, -0.5, 18, dtype=torch.float64)
    now = (old + ratio.log()).requires_grad_()
    keep = torch.ones(18, dtype=torch.bool)
    loss = GATES[name](now, ratios.token(now, old, keep), advantage).loss_T.sum()
    (grad,) = torch.autograd.grad(loss, now)
    expected = [
        -phi_of(name, float(r), float(a)) * float(a) for r, a in zip(ratio, advantage, strict=True)
    ]
    assert grad.tolist() == pytest.approx(expected, abs=1e-12)


def test_gmpo_gradient_is_the_geometric_ratio_over_length_or_zero_where_clipped() -> None:
    now = NOW.clone().requires_grad_()
    gated = policy_losses.gmpo(ratios.token(now, OLD, ALL), A, ALL, SEGMENTS, low=0.05, high=0.15)
    loss = gated.loss_T[0] + gated.loss_T[3]  # one token stands for its sequence
    (grad,) = torch.autograd.grad(loss, now)
    first = math.exp((0.15 - 0.3 + 0.1) / 3) / 3
    second = math.exp((0.5 - 0.05) / 2) / 2
    assert grad.tolist() == pytest.approx([0, -first, -first, second, 0])
    assert gated.clip_masks["policy/clip_frac_high"].tolist() == [True, False, False, False, False]
    assert gated.clip_masks["policy/clip_frac_low"].tolist() == [False, False, False, False, True]


@pytest.mark.parametrize(
    "name", ["plain", "surrogate", "clip", "dual_clip", "sapo", "gmpo", "gspo", "rloo_product"]
)
def test_gradients_by_finite_differences(name: str) -> None:
    """Where nothing is detached by definition (CISPO, GSPO-token), autograd must be the derivative of the value."""

    def loss(now: Tensor) -> Tensor:
        token = ratios.token(now, OLD, ALL)
        if name == "gmpo":
            return policy_losses.gmpo(token, A, ALL, SEGMENTS).loss_T
        if name == "gspo":
            return policy_losses.clip(
                ratios.sequence_geometric(now, OLD, ALL, SEGMENTS), A, ALL, low=0.1, high=0.1
            ).loss_T
        if name == "rloo_product":
            return policy_losses.surrogate(
                ratios.sequence_product(now, OLD, ALL, SEGMENTS), A, ALL
            ).loss_T
        return GATES[name](now, token, A).loss_T

    assert torch.autograd.gradcheck(loss, NOW.clone().requires_grad_())


def test_gspo_equals_gspo_token_while_advantages_are_constant() -> None:
    tokens_B = aggregation.tokens_per_sequence(ALL, SEGMENTS, torch.float64)
    weights = aggregation.sequence_mean_token_mean(tokens_B)
    found = []
    for level in (ratios.sequence_geometric, ratios.sequence_geometric_token):
        now = NOW.clone().requires_grad_()
        gated = policy_losses.clip(level(now, OLD, ALL, SEGMENTS), A, ALL, low=0.1, high=0.3)
        value = aggregation.numerator(gated.loss_T, ALL, weights.weight_B, SEGMENTS)
        found.append((float(value.detach()), torch.autograd.grad(value, now)[0].tolist()))
    assert found[0][0] == pytest.approx(found[1][0], abs=1e-12)
    assert found[0][1] == pytest.approx(found[1][1], abs=1e-12)


def test_dual_clip_is_the_two_sided_delta_clip() -> None:
    """min(min(ratio, delta) A, clip(ratio) A) is dual clip with cap delta, for delta above 1 + high."""
    x = torch.linspace(-2, 2, 41, dtype=torch.float64)
    keep = torch.ones(41, dtype=torch.bool)
    for sign in (1.0, -1.0):
        a = torch.full_like(x, sign)
        delta = torch.minimum(x.exp().clamp(max=4.0) * a, x.exp().clamp(0.8, 1.2) * a)
        torch.testing.assert_close(-policy_losses.dual_clip(x, a, keep, cap=4.0).loss_T, delta)


def test_advantages_never_carry_a_gradient_and_nan_outside_the_mask_stays_there() -> None:
    keep = torch.tensor([True, True, False, True, True])
    for name in GATES:
        a = torch.tensor([1.0, 1, float("nan"), -1, -1], dtype=torch.float64, requires_grad=True)
        now = torch.tensor(
            [-0.8, -1.3, float("nan"), -1.5, -2.1], dtype=torch.float64, requires_grad=True
        )
        token = ratios.token(now, OLD, keep)
        gated = {
            "plain": lambda now=now, a=a: policy_losses.plain(now, a, keep),
            "cispo": lambda now=now, token=token, a=a: policy_losses.cispo(now, token, a, keep),
        }.get(
            name, lambda token=token, a=a, name=name: getattr(policy_losses, name)(token, a, keep)
        )()
        found = torch.autograd.grad(gated.loss_T.sum(), [now, a], allow_unused=True)
        assert found[1] is None, name
        assert (
            found[0] is not None
            and bool(torch.isfinite(found[0]).all())
            and float(found[0][2]) == 0
        ), name


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda x, a, k: policy_losses.clip(x, a, k, low=-0.1), r"low=-0.1.*at least 0"),
        (lambda x, a, k: policy_losses.dual_clip(x, a, k, cap=1.0), r"cap=1.*above 1"),
        (lambda x, a, k: policy_losses.cispo(x, x, a, k, floor=3, cap=2), "floor=3 > cap=2"),
        (lambda x, a, k: policy_losses.sapo(x, a, k, tau_positive=0), r"tau_positive=0.*above 0"),
    ],
)
def test_bad_numbers_are_refused(call, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        call(NOW, A, ALL)
