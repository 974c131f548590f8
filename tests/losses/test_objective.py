"""The composed objective: terms, denominators, the metrics every run logs, and where weights do and do not act."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from ascent.cells import Cell, cell
from ascent.losses import (
    aggregation,
    covariance,
    entropy,
    kl,
    policy_losses,
    preferences,
    ratios,
    rollout_correction,
    supervised,
    token_weights,
    values,
)
from ascent.losses.objective import file_terms, policy_terms, step_statistics
from ascent.maths.segments import Segments
from ascent.update.microbatch import step_of

SEGMENTS = Segments.from_lengths([3, 2])
CELLS: dict[str, Cell] = {
    "rollout_correction": cell(rollout_correction.none),
    "ratio": cell(ratios.token),
    "policy_loss": cell(policy_losses.clip),
    "aggregation": cell(aggregation.token_mean),
}


def batch() -> dict[str, Any]:
    old = torch.tensor([-1.0, -1, -1, -2, -2], dtype=torch.float64)
    return {
        "segments": SEGMENTS,
        "loss_mask_T": torch.ones(5, dtype=torch.bool),
        "old_logprobs_T": old,
        "sampler_logprobs_T": torch.tensor([-2.5, -1, -1, -2, -1.6], dtype=torch.float64),
        "ref_logprobs_T": old - 0.1,
        "logprobs_T": torch.tensor(
            [-0.8, -1.3, -0.9, -1.5, -2.1], dtype=torch.float64, requires_grad=True
        ),
        "advantages_T": torch.tensor([1.0, 1, 1, -1, -1], dtype=torch.float64),
        "entropy_T": torch.tensor([1.0, 2, 3, 4, 5], dtype=torch.float64, requires_grad=True),
        "values_T": torch.zeros(5, dtype=torch.float64, requires_grad=True),
        "returns_T": torch.ones(5, dtype=torch.float64),
    }


def test_the_sum_of_terms_with_their_weights() -> None:
    extra = {
        "kl": cell(kl.k3, weight=0.5),
        "entropy_bonus": cell(entropy.bonus, weight=0.01),
        "value_loss": cell(values.mse),
    }
    terms = policy_terms(batch(), **CELLS, **extra)
    step = step_of([terms], {"kl": 0.5, "entropy_bonus": 0.01, "value_loss": 0.1})
    assert float(step.terms["policy"].detach()) == pytest.approx(-0.098486, abs=1e-6)
    assert float(step.terms["entropy_bonus"].detach()) == pytest.approx(-3.0)
    assert float(step.terms["value_loss"].detach()) == pytest.approx(0.5)
    parts = {name: float(value.detach()) for name, value in step.terms.items()}
    whole = (
        parts["policy"]
        + 0.5 * parts["kl"]
        + 0.01 * parts["entropy_bonus"]
        + 0.1 * parts["value_loss"]
    )
    assert float(step.value.detach()) == pytest.approx(whole)


def test_mismatch_weights_scale_the_policy_term_only_and_keep_the_count() -> None:
    rejecting = {
        **CELLS,
        "rollout_correction": cell(rollout_correction.token_mask, low=0.5, high=2.0),
    }
    plain = policy_terms(batch(), **CELLS, kl=cell(kl.k3))
    weighted = policy_terms(batch(), **rejecting, kl=cell(kl.k3))
    assert float(weighted["kl"].numerator.detach()) == pytest.approx(
        float(plain["kl"].numerator.detach())
    )
    assert float(weighted["policy"].denominator) == 5
    expected = -0.740818 - 1.105171 + 1.648721 + 0.67032 * 0.904837
    assert float(weighted["policy"].numerator.detach()) == pytest.approx(expected, abs=1e-5)
    assert weighted["policy"].metrics["sampler/is_rejected_frac"].value() == pytest.approx(0.2)


def test_bypass_measures_the_ratio_against_the_sampler() -> None:
    terms = policy_terms(
        batch(),
        **{
            **CELLS,
            "rollout_correction": cell(rollout_correction.bypass),
            "policy_loss": cell(policy_losses.surrogate),
        },
    )
    ratio = (torch.tensor([1.7, -0.3, 0.1, 0.5, -0.5], dtype=torch.float64)).exp()
    expected = float((-ratio * batch()["advantages_T"]).sum())
    assert float(terms["policy"].numerator.detach()) == pytest.approx(expected)
    assert terms["policy"].metrics["sampler/logprob_diff"].value() == pytest.approx(
        (1.5 + 0.4) / 5
    )  # it is still there to see


@pytest.mark.parametrize(
    "use", [rollout_correction.none, rollout_correction.token_truncate, rollout_correction.bypass]
)
def test_tokens_without_a_log_prob_of_the_sampler_hide_no_mismatch_and_break_no_ratio(
    use: Any,
) -> None:
    """Of the first and the last but one it is unknown: of gaps 1.5 0 0 0 .4 there are left 0 0 .4."""
    known, some = batch(), torch.tensor([True, False, False, True, False])
    known["sampler_logprobs_T"] = known["sampler_logprobs_T"].masked_fill(some, torch.nan)
    cells = {**CELLS, "rollout_correction": cell(use), "policy_loss": cell(policy_losses.surrogate)}
    policy = policy_terms(known, **cells)["policy"]
    found = {name: each.value() for name, each in policy.metrics.items()}
    assert found["sampler/unknown_frac"] == pytest.approx(2 / 5)
    assert found["sampler/logprob_diff"] == pytest.approx(0.4 / 3)
    assert found["sampler/logprob_diff_max"] == pytest.approx(0.4)
    weights = [1, 1, math.exp(-0.4)]
    assert found["sampler/is_weight"] == pytest.approx(sum(weights) / 3)
    assert found["sampler/is_ess"] == pytest.approx(
        sum(weights) ** 2 / (3 * sum(w**2 for w in weights))
    )
    assert math.isfinite(found["policy/approx_kl"]) and math.isfinite(found["policy/ratio_max"])
    (grad,) = torch.autograd.grad(policy.numerator, known["logprobs_T"])
    assert bool(torch.isfinite(grad).all()) and bool((grad[some] != 0).all())


def test_without_any_log_prob_of_the_sampler_the_mismatch_is_unknown() -> None:
    known = {**batch(), "sampler_logprobs_T": torch.full((5,), torch.nan, dtype=torch.float64)}
    found = {
        name: each.value() for name, each in policy_terms(known, **CELLS)["policy"].metrics.items()
    }
    assert found["sampler/unknown_frac"] == 1
    assert all(
        math.isnan(found[f"sampler/{name}"])
        for name in ("logprob_diff", "logprob_diff_max", "is_weight")
    )


def test_without_old_log_probs_the_ratio_is_exactly_one() -> None:
    known = batch()
    del known["old_logprobs_T"]
    terms = policy_terms(known, **CELLS)
    assert terms["policy"].metrics["policy/ratio_max"].value() == 1.0
    (grad,) = torch.autograd.grad(terms["policy"].numerator, known["logprobs_T"])
    assert grad.tolist() == [-1.0, -1.0, -1.0, 1.0, 1.0]


def test_the_metrics_every_run_logs() -> None:
    metrics = policy_terms(batch(), **CELLS, value_loss=cell(values.mse))["policy"].metrics
    found = {name: tally.value() for name, tally in metrics.items()}
    d = torch.tensor([0.2, -0.3, 0.1, 0.5, -0.1], dtype=torch.float64)
    assert found["policy/approx_kl"] == pytest.approx(float((d.exp() - 1 - d).mean()))
    assert found["policy/ratio_max"] == pytest.approx(1.648721, abs=1e-6)
    assert found["policy/ratio_min"] == pytest.approx(0.740818, abs=1e-6)
    assert (
        found["policy/clip_frac_high"],
        found["policy/clip_frac_low"],
        found["policy/ratio_clamped_frac"],
    ) == (
        0.2,
        0.0,
        0.0,
    )
    assert found["sampler/logprob_diff"] == pytest.approx((1.5 + 0.4) / 5)
    assert found["sampler/logprob_diff_max"] == pytest.approx(1.5)
    assert found["policy/ref_kl_k1"] == pytest.approx(float((d + 0.1).mean()))
    weight = torch.tensor([1.5, 0, 0, 0, -0.4], dtype=torch.float64).exp()  # trainer over sampler
    assert found["sampler/is_weight"] == pytest.approx(float(weight.mean()))
    assert found["sampler/is_ess"] == pytest.approx(
        float(weight.sum() ** 2 / (5 * (weight**2).sum()))
    )
    assert found["policy/entropy"] == pytest.approx(3.0)


def test_explained_variance_is_formed_over_the_step() -> None:
    known = {
        **batch(),
        "values_T": torch.tensor([1.0, 0, 0, 0, 0], dtype=torch.float64),
        "returns_T": torch.tensor([2.0, 0, 0, 0, 0], dtype=torch.float64),
    }
    metrics = policy_terms(known, **CELLS, value_loss=cell(values.mse))["value_loss"].metrics
    assert metrics["critic/explained_variance"].value() == pytest.approx(0.75)
    assert metrics["critic/return"].value() == pytest.approx(0.4)


def test_only_the_policy_critic_and_entropy_get_gradients() -> None:
    known = batch()
    frozen = ("old_logprobs_T", "sampler_logprobs_T", "ref_logprobs_T", "advantages_T", "returns_T")
    for name in frozen:
        known[name] = known[name].clone().requires_grad_()
    extra = {
        "kl": cell(kl.rho_k3),
        "entropy_bonus": cell(entropy.bonus),
        "value_loss": cell(values.mse),
    }
    step = step_of(
        [
            policy_terms(
                known,
                **{**CELLS, "rollout_correction": cell(rollout_correction.token_truncate)},
                **extra,
            )
        ],
        {},
    )
    assert all(
        g is None
        for g in torch.autograd.grad(
            step.value, [known[n] for n in frozen], allow_unused=True, retain_graph=True
        )
    )
    live = torch.autograd.grad(
        step.value, [known[n] for n in ("logprobs_T", "entropy_T", "values_T")]
    )
    assert all(float(g.abs().max()) > 0 for g in live)


def test_a_focus_weighs_the_policy_term_alone_and_leaves_denominators() -> None:
    """The first sequence has A > 0 and stays; the second has drifted .15 on average, more than allowed."""
    extra = {"kl": cell(kl.k3, weight=0.5), "entropy_bonus": cell(entropy.bonus, weight=0.01)}
    known = {
        **batch(),
        "sampler_logprobs_T": torch.tensor([-1.0, -1, -1, -1.2, -2.1], dtype=torch.float64),
    }
    plain, kept = (
        policy_terms(known, **CELLS, **extra),
        cell(token_weights.near_policy, max_drift=0.1),
    )
    focused = policy_terms(known, **CELLS, **extra, token_weights=(kept,))
    gated = policy_losses.clip(
        ratios.token(known["logprobs_T"], known["old_logprobs_T"], known["loss_mask_T"]),
        known["advantages_T"],
        known["loss_mask_T"],
    )
    assert focused["policy"].numerator.item() == pytest.approx(gated.loss_T[:3].sum().item())
    assert float(focused["policy"].denominator) == float(plain["policy"].denominator) == 5
    assert focused["policy"].metrics["policy/dropped_frac_near_policy"].value() == pytest.approx(
        0.4
    )
    for name in ("kl", "entropy_bonus"):
        assert focused[name].numerator.item() == plain[name].numerator.item()


def test_focus_cells_multiply() -> None:
    def half(loss_mask_T: torch.Tensor) -> torch.Tensor:
        return torch.where(loss_mask_T, 0.5, 0.0).double()

    once = policy_terms(batch(), **CELLS, token_weights=(cell(half),))["policy"].numerator.item()
    twice = policy_terms(batch(), **CELLS, token_weights=(cell(half), cell(half)))[
        "policy"
    ].numerator.item()
    assert (once, twice) == pytest.approx(
        (0.5 * (whole := policy_terms(batch(), **CELLS)["policy"].numerator.item()), 0.25 * whole)
    )


def test_statistics_see_the_ratio_that_the_gate_will_see() -> None:
    """Under bypass the ratio is to the sampler, also where clip_cov looks for tokens that are not clipped."""
    made = cell(covariance.clip_cov, share=1.0, least=-1e9, most=1e9)
    bypass = {**CELLS, "rollout_correction": cell(rollout_correction.bypass), "policy_loss": made}
    found = step_statistics(
        batch(), [made], rollout_correction=bypass["rollout_correction"], ratio=bypass["ratio"]
    )["draining_T"]
    ratio_T = (batch()["logprobs_T"] - batch()["sampler_logprobs_T"]).exp()
    clipped_T = torch.tensor(
        [ratio_T[0] > 1.2, ratio_T[1] > 1.2, ratio_T[2] > 1.2, ratio_T[3] < 0.8, ratio_T[4] < 0.8]
    )
    assert found.tolist() == (~clipped_T).tolist()


def test_a_focus_on_pairs_weighs_every_loss_of_pairs_and_no_text() -> None:
    """Both answers are half as likely as their distributions expect: every pair counts .25."""
    segments = Segments.from_lengths([1, 2])
    known = {
        "logprobs_T": torch.tensor([-1.0, -2.0, -2.0], dtype=torch.float64, requires_grad=True),
        "ref_logprobs_T": torch.tensor([-1.5, -1.5, -1.5], dtype=torch.float64),
        "loss_mask_T": torch.ones(3, dtype=torch.bool),
        "segments": segments,
        "chosen_P": torch.tensor([0]),
        "rejected_P": torch.tensor([1]),
    }
    known["log_collision_T"] = known["logprobs_T"].detach() + math.log(2)
    cells = {
        "loss": cell(preferences.dpo, beta=0.1),
        "extra_losses": (cell(preferences.hinge), cell(supervised.chosen_nll)),
    }
    plain = file_terms(known, **cells)
    weighed = file_terms(known, **cells, token_weights=(cell(token_weights.own_likelihood),))
    for name, factor in (("dpo", 0.25), ("hinge", 0.25), ("chosen_nll", 1.0)):
        assert float(weighed[name].numerator.detach()) == pytest.approx(
            factor * float(plain[name].numerator.detach())
        )
        assert float(plain[name].numerator.detach()) > 0
