"""Preference losses: worked pair, gradients, f-divergences, empty members."""

from __future__ import annotations

import math

import pytest
import torch

from ascent.algorithms import TABLE
from ascent.config.schema import Cells
from ascent.losses import preferences as p
from ascent.losses.loss import summed
from ascent.plan.overrides import with_cells

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
    assert value(p.simpo(LOGPROBS, LENGTHS, W, L, beta=2.5, margin=1.375)) == pytest.approx(
        2.126928, abs=1e-6
    )
    odds = value(p.odds_ratio(LOGPROBS, LENGTHS, W, L))
    assert odds == pytest.approx(math.log1p(math.exp(0.295473)), abs=1e-6)
    assert 0.1 * odds == pytest.approx(0.085176, abs=1e-6)


def test_reference_free_is_dpo_with_a_uniform_reference() -> None:
    free = p.reference_free(LOGPROBS, LENGTHS, W, L, beta=0.1)
    uniform = p.dpo(LOGPROBS, torch.full_like(REFERENCE, -3.0), LENGTHS, W, L, beta=0.1)
    assert value(free) == pytest.approx(value(uniform))
    assert value(free) == pytest.approx(math.log1p(math.exp(-0.4)))


@pytest.mark.parametrize(
    ("name", "referenced", "loss", "slopes"),
    [
        ("reference_free_hinge", "hinge", 0.6, [-0.1, 0.1]),
        ("reference_free_ipo", "ipo_mean", 27.5625, [2 * -5.25 / 5, 2 * 5.25 / 8]),
    ],
)
def test_the_other_losses_without_a_reference(
    name: str, referenced: str, loss: float, slopes: list[float]
) -> None:
    """By hand: sums 4 apart, 1 - .1 * 4; means -2 and -1.75, so (-.25 - 5)^2. A reference of 0 says as much."""
    x = LOGPROBS.clone().requires_grad_()
    each = getattr(p, name)(x, LENGTHS, W, L, beta=0.1)
    zero = getattr(p, referenced)(
        LOGPROBS, torch.zeros(2, dtype=torch.float64), LENGTHS, W, L, beta=0.1
    )
    assert each.losses.tolist() == pytest.approx([loss]) == zero.losses.tolist()
    assert torch.autograd.grad(each.losses.sum(), x)[0].tolist() == pytest.approx(slopes)
    assert {key: tally.value() for key, tally in each.metrics.items()} == pytest.approx(
        {key: tally.value() for key, tally in zero.metrics.items()}
    )


def test_the_reference_free_hinge_is_silent_beyond_its_margin() -> None:
    """Sums 4 apart: past 1 / beta from beta .25 on, where neither the loss nor its gradient is left."""
    x = LOGPROBS.clone().requires_grad_()
    each = p.reference_free_hinge(x, LENGTHS, W, L, beta=0.3)
    assert each.losses.tolist() == [0] and torch.autograd.grad(each.losses.sum(), x)[
        0
    ].tolist() == [0, 0]


@pytest.mark.parametrize("row", ["cpo", "tpo"])
@pytest.mark.parametrize("use", ["reference_free_hinge", "reference_free_ipo"])
def test_a_recipe_puts_them_into_cpo_and_tpo_and_no_reference_is_asked_for(
    row: str, use: str
) -> None:
    made = with_cells(TABLE[row], Cells.model_validate({"loss": {"use": use, "beta": 0.02}}))
    assert made.loss is not None and made.loss.name == use and made.loss.numbers["beta"] == 0.02
    assert made.needs == TABLE[row].needs and made.inputs == TABLE[row].inputs
    assert (
        "reference"
        in with_cells(TABLE[row], Cells.model_validate({"loss": {"use": "hinge"}})).needs
    )


def test_worked_pair_of_the_other_margin_losses() -> None:
    referenced = (LOGPROBS, REFERENCE, LENGTHS, W, L)
    assert value(p.dpo_mean(*referenced)) == pytest.approx(0.670900, abs=1e-6)
    assert value(p.robust(*referenced, label_smoothing=0.1)) == pytest.approx(0.516855, abs=1e-6)
    assert value(p.robust(*referenced, label_smoothing=0.0)) == pytest.approx(
        value(p.dpo(*referenced))
    )
    assert value(p.exo(*referenced, label_smoothing=1e-3)) == pytest.approx(2.258199, abs=1e-6)
    assert value(p.exo(*referenced, label_smoothing=0.1)) == pytest.approx(0.358383, abs=1e-6)
    assert value(p.discopop(*referenced)) == pytest.approx(0.740357, abs=1e-6)


def test_robust_is_unbiased_when_that_share_of_labels_is_flipped() -> None:
    """Expected over flips it is DPO's loss on the true label: the point of its construction."""
    e, right, wrong = (
        0.2,
        (LOGPROBS, REFERENCE, LENGTHS, W, L),
        (LOGPROBS, REFERENCE, LENGTHS, L, W),
    )
    mixed = (1 - e) * value(p.robust(*right, label_smoothing=e)) + e * value(
        p.robust(*wrong, label_smoothing=e)
    )
    assert mixed == pytest.approx(value(p.dpo(*right)))


def test_exo_is_a_kl_and_zero_where_the_model_agrees_with_the_labels() -> None:
    e = 0.2
    agreed = torch.tensor([-11 + math.log((1 - e) / e) / 0.1, -12.0], dtype=torch.float64)
    assert value(p.exo(agreed, REFERENCE, LENGTHS, W, L, label_smoothing=e)) == pytest.approx(
        0, abs=1e-12
    )
    with pytest.raises(ValueError, match=r"label_smoothing=0.*above 0"):
        p.exo(LOGPROBS, REFERENCE, LENGTHS, W, L, label_smoothing=0.0)


@pytest.mark.parametrize(
    ("divergence", "alpha", "expected"),
    [
        ("reverse_kl", 0.5, 0.554355),
        ("forward_kl", 0.5, 0.402484),
        ("jensen_shannon", 0.5, 0.606570),
        ("alpha", 0.5, 0.504106),
        ("alpha", 1.0, 0.554355),
    ],
)
def test_f_divergences_on_the_worked_pair(divergence: str, alpha: float, expected: float) -> None:
    each = p.dpo(LOGPROBS, REFERENCE, LENGTHS, W, L, divergence=divergence, alpha=alpha)
    assert value(each) == pytest.approx(expected, abs=1e-6)
    # Rewards are reported as DPO's, whatever the divergence.
    assert each.metrics["preference/margin"].value() == pytest.approx(0.3)


def test_phi_has_the_slope_of_the_reverse_kl_at_the_reference() -> None:
    """All of them are tangent to u at u = 0, but for Jensen-Shannon, whose slope is a half."""
    u = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    slopes = {
        name: float(torch.autograd.grad(p.phi(u, name, 0.5), u)[0])
        for name in ("reverse_kl", "forward_kl", "jensen_shannon", "alpha")
    }
    assert slopes == pytest.approx(
        {"reverse_kl": 1, "forward_kl": 1, "jensen_shannon": 0.5, "alpha": 1}
    )


def test_discopop_starts_the_wrong_way() -> None:
    """Its slope at z = 0 is positive for tau .05; from tau .1023 on it has the sign of every other loss."""
    for tau, slope in ((0.05, 0.784264), (0.2, -0.366434)):
        x = torch.tensor([-11.0, -12.0], dtype=torch.float64, requires_grad=True)
        each = p.discopop(x, REFERENCE, LENGTHS, W, L, beta=1.0, tau=tau)
        assert torch.autograd.grad(each.losses.sum(), x)[0].tolist() == pytest.approx(
            [slope, -slope], abs=1e-6
        )


@pytest.mark.parametrize("beta", [0.05, 0.1, 3.0])
def test_discopop_pushes_the_wrong_way_within_a_band_that_beta_narrows(beta: float) -> None:
    """Its slope changes sign at z / tau = -2.3714 and 1.4401 (for tau .05), so at h = those times tau / beta: 3.8 nats
    apart at beta .05, .064 at beta 3."""
    for place, wrong in (
        (-2.372, False),
        (-2.371, True),
        (0.0, True),
        (1.440, True),
        (1.441, False),
        (20.0, False),
    ):
        h = place * 0.05 / beta
        x = torch.tensor([-11.0 + h, -12.0], dtype=torch.float64, requires_grad=True)
        each = p.discopop(x, REFERENCE, LENGTHS, W, L, beta=beta, tau=0.05)
        (grad,) = torch.autograd.grad(each.losses.sum(), x)
        assert (float(grad[0]) > 0) == wrong, place


def test_discopop_stays_finite_in_float32_far_below_zero() -> None:
    """beta 3, h = -30: z = -90, the blend is 0 and the loss is the logistic one, 90, whose slope in h is -3."""
    x = torch.tensor([-41.0, -12.0], requires_grad=True)
    each = p.discopop(x, REFERENCE.float(), LENGTHS, W, L, beta=3.0)
    assert float(each.losses.detach()) == pytest.approx(90.0)
    (grad,) = torch.autograd.grad(each.losses.sum(), x)
    assert grad.tolist() == pytest.approx([-3.0, 3.0])


@pytest.mark.parametrize("name", ["dpo", "dpo_mean", "robust", "exo", "hinge", "discopop"])
@pytest.mark.parametrize("u", [(0.0, -89.0), (-89.0, 0.0), (-95.0, -120.0)])
def test_forward_kl_stays_finite_in_float32(name: str, u: tuple[float, float]) -> None:
    x = (REFERENCE.float() + torch.tensor(u)).requires_grad_()
    each = getattr(p, name)(x, REFERENCE.float(), LENGTHS, W, L, divergence="forward_kl")
    (grad,) = torch.autograd.grad(each.losses.sum(), x)
    assert bool(each.losses.isfinite().all()) and bool(grad.isfinite().all())


def test_an_unknown_divergence_is_refused_with_the_list() -> None:
    with pytest.raises(
        ValueError, match=r"divergence='kl', but it must be one of reverse_kl, forward_kl"
    ):
        p.dpo(LOGPROBS, REFERENCE, LENGTHS, W, L, divergence="kl")


def test_alphapo_by_hand_and_its_limit() -> None:
    logprobs, lengths = torch.tensor([-10.0, -14.0], dtype=torch.float64), torch.tensor([5, 8])
    each = p.alphapo(logprobs, lengths, W, L, beta=2.5, margin=0.3, alpha=0.25)
    assert value(each) == pytest.approx(1.540152, abs=1e-6)
    assert p.bent(torch.tensor([-2.0, -1.75], dtype=torch.float64), 0.25).tolist() == pytest.approx(
        [-2.594885, -2.195321], abs=1e-6
    )
    near = p.alphapo(logprobs, lengths, W, L, beta=2.5, margin=1.375, alpha=1e-9)
    assert value(near) == pytest.approx(value(p.simpo(logprobs, lengths, W, L)), abs=1e-6)
    zero = p.alphapo(logprobs, lengths, W, L, beta=2.5, margin=1.375, alpha=0.0)
    assert value(zero) == value(p.simpo(logprobs, lengths, W, L))


LOSSES = {
    "dpo": lambda x: p.dpo(x, REFERENCE, LENGTHS, W, L, label_smoothing=0.1),
    "reference_free": lambda x: p.reference_free(x, LENGTHS, W, L),
    "reference_free_hinge": lambda x: p.reference_free_hinge(x, LENGTHS, W, L),
    "reference_free_ipo": lambda x: p.reference_free_ipo(x, LENGTHS, W, L),
    "hinge": lambda x: p.hinge(x, REFERENCE, LENGTHS, W, L),
    "ipo_sum": lambda x: p.ipo_sum(x, REFERENCE, LENGTHS, W, L),
    "ipo_mean": lambda x: p.ipo_mean(x, REFERENCE, LENGTHS, W, L),
    "simpo": lambda x: p.simpo(x, LENGTHS, W, L, label_smoothing=0.05),
    "odds_ratio": lambda x: p.odds_ratio(x, LENGTHS, W, L),
    "dpo_mean": lambda x: p.dpo_mean(x, REFERENCE, LENGTHS, W, L),
    "robust": lambda x: p.robust(x, REFERENCE, LENGTHS, W, L),
    "exo": lambda x: p.exo(x, REFERENCE, LENGTHS, W, L),
    "discopop": lambda x: p.discopop(x, REFERENCE, LENGTHS, W, L, beta=0.3),
    "alphapo": lambda x: p.alphapo(x, LENGTHS, W, L),
    "forward_kl": lambda x: p.dpo(x, REFERENCE, LENGTHS, W, L, divergence="forward_kl"),
    "jensen_shannon": lambda x: p.hinge(x, REFERENCE, LENGTHS, W, L, divergence="jensen_shannon"),
    "alpha": lambda x: p.ipo_mean(x, REFERENCE, LENGTHS, W, L, divergence="alpha", alpha=2.0),
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
        p.reference_free_hinge(logprobs, lengths, chosen, rejected),
        p.reference_free_ipo(logprobs, lengths, chosen, rejected),
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
        {
            "preference/accuracy": 1,
            "preference/margin": 0.3,
            "preference/reward_chosen": 0.1,
            "preference/reward_rejected": -0.2,
            "preference/logprobs_chosen": -10,
            "preference/logprobs_rejected": -14,
        }
    )


def test_bad_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match=r"beta=0.*above 0"):
        p.dpo(LOGPROBS, REFERENCE, LENGTHS, W, L, beta=0)
    with pytest.raises(ValueError, match=r"label_smoothing=0.5.*below 0.5"):
        p.dpo(LOGPROBS, REFERENCE, LENGTHS, W, L, label_smoothing=0.5)
