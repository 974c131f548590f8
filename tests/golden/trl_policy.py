"""TRL policy losses: GRPO with all its loss types, GMPO, RLOO (1.16.0) and GSPO-token (1.12.0).

TRL's conventions: no guard on any log-ratio; fully masked rows count in sequence means; every loss is divided by the
gradient accumulation steps, except those whose denominator is the token count of the generation batch; CISPO's
epsilon_high is the cap itself; k3 without a cap, weighted by the ratio if asked; the entropy bonus is a token mean.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ascent.cells import Cell, cell
from ascent.losses import (
    aggregation,
    entropy,
    kl,
    policy_losses,
    ratios,
    rollout_correction,
    sequence_policy_losses,
    token_weights,
)
from ascent.losses.loss import Terms
from ascent.losses.objective import policy_terms
from ascent.maths import masked
from tests.golden import conventions
from tests.golden.cases import Case, Ours
from tests.golden.conventions import Convention
from tests.golden.packed import NO_GUARD, Rows, gradient, reduced, shares_of_rows

LEVELS = {
    "token": ratios.token,
    "sequence": ratios.sequence_geometric,
    "sequence_token": ratios.sequence_geometric_token,
}
GENERATION_BATCH = ("dapo", "cispo", "vespo")


def grpo(case: Case) -> Ours:
    rows, logprobs = _rows(case), case.leaf("per_token_logps")
    known = _known(case, rows, logprobs)
    focuses = _focus(case, rows, known)
    known["weight_T"] = _weights(case, rows)
    known["sampler_logprobs_T"] = conventions.sampler_of(
        known.get("old_logprobs_T", known["logprobs_T"]), known["weight_T"]
    )
    cells = {"ratio": _ratio(case), "policy_loss": _gate(case)}
    terms = policy_terms(
        known,
        rollout_correction=conventions.READY_MADE,
        aggregation=_mode(case),
        token_weights=focuses,
        kl=_kl(case),
        entropy_bonus=cell(entropy.bonus) if case.params.get("entropy_coef") else None,
        **cells,
    )
    loss = _reduced(case, {name: term for name, term in terms.items() if name != "entropy_bonus"})
    if "entropy_bonus" in terms:
        # TRL takes the mean over the tokens it trains: those of high entropy alone, if it was told so.
        kept = "top_T" in known and case.follows(Convention.ENTROPY_OF_KEPT)
        open_T = rows.loss_mask_T & known["top_T"] if kept else rows.loss_mask_T
        minus = masked.mean(entropy.bonus(known["entropy_T"], open_T), open_T)
        loss = loss + case.params["entropy_coef"] * minus / _steps(case)
    metrics = _clip_metrics(
        rows, known, **cells, per_sequence=case.params["importance_sampling_level"] != "token"
    )
    if "kl" in terms:
        metrics["kl"] = terms["kl"].metrics["policy/kl_loss"].value()
    values = {"loss": loss, "grad_per_token_logps": gradient(loss, logprobs)}
    if "entropy_bonus" in terms:
        values["grad_entropies"] = gradient(loss, known["entropies"])
    return Ours(values, metrics)


def gmpo(case: Case) -> Ours:
    """Sequence-level clip of log-ratios. KL is never weighted by the ratio; mismatch weights are not read."""
    rows, logprobs = _rows(case), case.leaf("per_token_logps")
    case.expects(entropy_coef=0.0, delta=None, off_policy_mask_threshold=None)
    case.peer_ignores(
        "importance_sampling_level", "use_bias_correction_kl", "importance_sampling_ratio"
    )
    case.peer_ignores(
        "loss_type",
        "max_completion_length",
        "num_items_in_batch",
        "num_processes",
        "steps_per_generation",
    )
    known = _known(case, rows, logprobs)
    trained, trained_known = _top_rows(case, rows, known, logprobs)
    cells = {
        "ratio": cell(ratios.token, guard=NO_GUARD),
        "policy_loss": cell(
            policy_losses.gmpo, low=case.params["epsilon_low"], high=case.params["epsilon_high"]
        ),
    }
    every_row = cell(aggregation.sequence_mean_token_mean, count_empty=True)
    shared = {"rollout_correction": cell(rollout_correction.none), "aggregation": every_row}
    focuses = (cell(given_focus),) if "top_T" in trained_known else ()
    terms = dict(policy_terms(trained_known, token_weights=focuses, **shared, **cells))
    if case.params["beta"]:
        terms["kl"] = policy_terms(known, **shared, **cells, kl=cell(kl.k3, guard=NO_GUARD))["kl"]
    loss = reduced(terms, {"kl": case.params["beta"]}) + _ratio_one_of_empty_rows(case, trained)
    loss = loss / _steps(case)
    metrics = _clip_metrics(rows, known, **cells, per_sequence=False)
    if "kl" in terms:
        metrics["kl"] = terms["kl"].metrics["policy/kl_loss"].value()
    return Ours({"loss": loss, "grad_per_token_logps": gradient(loss, logprobs)}, metrics)


def rloo(case: Case) -> Ours:
    """The ratio of the whole completion, clipped once per completion; `old_logps` is the masked sum of the old ones."""
    rows, logprobs = _rows(case), case.leaf("per_token_logps")
    case.peer_ignores("old_logps")
    known = _known(case, rows, logprobs)
    cells = {
        "ratio": cell(ratios.sequence_product, guard=NO_GUARD),
        "policy_loss": cell(
            policy_losses.clip, low=case.params["epsilon_low"], high=case.params["epsilon_high"]
        ),
    }
    terms = policy_terms(
        known,
        rollout_correction=cell(rollout_correction.none),
        aggregation=cell(aggregation.sequence_mean_token_mean, count_empty=True),
        **cells,
    )
    loss = reduced(terms) + _ratio_one_of_empty_rows(case, rows)
    values = {"loss": loss, "grad_per_token_logps": gradient(loss, logprobs)}
    return Ours(values, _clip_metrics(rows, known, **cells, per_sequence=True))


def _rows(case: Case) -> Rows:
    mask_BL = case.flags("completion_mask")
    return Rows(mask_BL & case.flags("tool_mask") if case.has("tool_mask") else mask_BL)


def _known(case: Case, rows: Rows, logprobs: Tensor) -> dict[str, Any]:
    padded = {"logprobs_T": logprobs, "advantages_T": case.tensor("advantages")}
    optional = {"old_logprobs_T": "old_per_token_logps", "ref_logprobs_T": "ref_per_token_logps"}
    padded |= {ours: case.tensor(theirs) for ours, theirs in optional.items() if case.has(theirs)}
    known = rows.known(**padded)
    if case.has("entropies"):
        known["entropies"] = case.leaf("entropies")
        known["entropy_T"] = rows.pack(known["entropies"])
    return known


def _weights(case: Case, rows: Rows) -> Tensor:
    """Ready-made mismatch weights."""
    if not case.has("importance_sampling_ratio"):
        return torch.ones(rows.segments.total, dtype=case.dtype)
    given = case.tensor("importance_sampling_ratio")
    weight_T = rows.pack(given)
    once = case.params["loss_type"] == "vespo" and given.shape[1] == 1
    if once and case.follows(Convention.ONE_WEIGHT):  # one weight per row enters its product once
        return torch.where(
            rows.segments.broadcast(first_of(rows)) == torch.arange(rows.segments.total),
            weight_T,
            1.0,
        )
    return weight_T


def first_of(rows: Rows) -> Tensor:
    """Where each row's first trained token lies; beyond the end for a row without any."""
    places_T = torch.where(rows.loss_mask_T, torch.arange(rows.segments.total), rows.segments.total)
    start_B = torch.full((rows.count,), rows.segments.total)
    return start_B.scatter_reduce(0, rows.segments.ids_T, places_T, "amin")


def _focus(case: Case, rows: Rows, known: dict[str, Any]) -> tuple[Cell, ...]:
    """Sequences that have drifted, tokens of low entropy: no loss, still in the denominator. Adds what they need.

    Both are found here: the sampler's log-probs belong to the drift alone, weights come ready-made beside them.
    """
    cells: list[Cell] = []
    threshold = case.params.get("off_policy_mask_threshold")
    if threshold is None:
        case.peer_ignores("sampling_per_token_logps")
    else:
        sampled = (
            "sampling_per_token_logps"
            if case.has("sampling_per_token_logps")
            else "old_per_token_logps"
        )
        near = cell(token_weights.near_policy, max_drift=threshold)
        known["near_T"] = near({**known, "sampler_logprobs_T": rows.pack(case.tensor(sampled))})
        cells.append(cell(_given_rows))
    if case.params.get("top_entropy_quantile", 1.0) < 1.0:
        known["top_T"] = top_tokens(case, rows, known["entropy_T"])
        cells.append(cell(given_focus))
    return tuple(cells)


def given_focus(top_T: Tensor) -> Tensor:
    return top_T


def _given_rows(near_T: Tensor) -> Tensor:
    return near_T


def top_tokens(case: Case, rows: Rows, entropy_T: Tensor) -> Tensor:
    """The floor in float32, as TRL and ms-swift take it, and the comparison in the entropies' own type."""
    floor = token_weights.entropy_floor(
        entropy_T.float(), rows.loss_mask_T, share=case.params["top_entropy_quantile"]
    )
    return token_weights.top_entropy(entropy_T, rows.loss_mask_T, floor.double())


def _top_rows(
    case: Case, rows: Rows, known: dict[str, Any], logprobs: Tensor
) -> tuple[Rows, dict[str, Any]]:
    """GMPO drops tokens of low entropy from its geometric mean: to it they are not trained."""
    if case.params.get("top_entropy_quantile", 1.0) == 1.0:
        return rows, known
    if not case.follows(Convention.GMPO_OF_KEPT):
        return rows, {**known, "top_T": top_tokens(case, rows, known["entropy_T"])}
    keep_T = top_tokens(case, rows, known["entropy_T"]) & rows.loss_mask_T
    trained = Rows(rows.unpack(keep_T.double()) > 0)
    return trained, _known(case, trained, logprobs)


def near_policy(
    rows: Rows, logprobs_T: Tensor, sampled_T: Tensor, advantages_T: Tensor, threshold: float
) -> Tensor:
    return token_weights.near_policy(
        logprobs_T, sampled_T, advantages_T, rows.loss_mask_T, rows.segments, max_drift=threshold
    )


def rows_kept(rows: Rows, keep_T: Tensor) -> Tensor:
    """Which rows a token mask keeps; one without tokens has not drifted."""
    return rows.empty_B | (rows.segments.sum(keep_T & rows.loss_mask_T) > 0)


def _one_per_row(case: Case) -> Tensor:
    advantages = case.tensor("advantages")
    if advantages.ndim == 2 and advantages.shape[1] > 1:
        raise ValueError(
            "the off-policy sequence mask with an advantage per token is not something we express"
        )
    return advantages.reshape(-1)


def _ratio(case: Case) -> Cell:
    return cell(LEVELS[case.params["importance_sampling_level"]], guard=NO_GUARD)


def _gate(case: Case) -> Cell:
    low, high, cap = (
        case.params["epsilon_low"],
        case.params["epsilon_high"],
        case.params.get("delta"),
    )
    kind = case.params["loss_type"]
    if kind == "cispo":
        return cell(policy_losses.cispo, floor=0.0, cap=high)
    if kind == "sapo":
        taus = {
            f"tau_{name}": case.params[f"sapo_temperature_{name[:3]}"]
            for name in ("positive", "negative")
        }
        return cell(policy_losses.sapo, **taus)
    if kind == "vespo":
        names = {"power": "k", "decay": "lambda"}
        numbers = {
            f"{ours}_{side}": max(case.params[f"vespo_{theirs}_{side[:3]}"], 1e-4)
            for ours, theirs in names.items()
            for side in ("positive", "negative")
        }
        return cell(sequence_policy_losses.vespo, **numbers)
    if kind not in ("grpo", "bnpo", "dr_grpo", "dapo", "luspo"):
        raise KeyError(f"loss_type {kind!r} is not one this adapter knows")
    return (
        cell(policy_losses.clip, low=low, high=high) if cap is None else two_sided(low, high, cap)
    )


def two_sided(low: float, high: float, delta: float) -> Cell:
    """-min(min(ratio, delta) A, clip(ratio) A) is a dual clip at delta; below 1 + high the two bounds trade places."""
    return cell(
        policy_losses.dual_clip, low=low, high=min(high, delta - 1), cap=max(delta, 1 + high)
    )


def _kl(case: Case) -> Cell | None:
    weighted = case.params.get("use_bias_correction_kl")
    return (
        cell(kl.rho_k3 if weighted else kl.k3, guard=NO_GUARD) if case.params.get("beta") else None
    )


def _mode(case: Case) -> Cell:
    kind, longest = case.params["loss_type"], case.params["max_completion_length"]
    if kind in ("grpo", "sapo"):
        return cell(aggregation.sequence_mean_token_mean, count_empty=True)
    if kind == "luspo":
        return cell(aggregation.sequence_mean_token_sum, count_empty=True)
    if kind == "dr_grpo":
        return cell(aggregation.sequence_mean_token_scaled, length=longest, count_empty=True)
    return cell(aggregation.token_mean)


def _reduced(case: Case, terms: Terms) -> Tensor:
    """dapo and cispo divide by the tokens of the whole generation batch, scaled to one accumulation window."""
    weights = {"kl": case.params.get("beta", 0.0)}
    items, processes = case.params["num_items_in_batch"], case.params.get("num_processes", 1)
    per_generation = case.params.get("steps_per_generation", 1)
    if case.params["loss_type"] not in GENERATION_BATCH:
        return reduced(terms, weights) / _steps(case)
    window = _steps(case) / (per_generation if case.params.get("train_mode", True) else 1)
    return reduced(terms, weights, count=max(items, 1) / processes) / window


def _steps(case: Case) -> int:
    """Gradient accumulation divides the loss in training, not in evaluation."""
    steps, training = (
        case.params.get("current_gradient_accumulation_steps", 1),
        case.params.get("train_mode", True),
    )
    return steps if training and case.follows(Convention.ACCUMULATED) else 1


def _ratio_one_of_empty_rows(case: Case, rows: Rows) -> Tensor:
    """A constant: TRL's row losses give a fully masked row its -A. The gradient does not see it; ours adds nothing."""
    constant = -_one_per_row(case)[rows.empty_B].sum() / rows.count
    return constant if case.follows(Convention.EMPTY_ROWS) else torch.zeros_like(constant)


def _clip_metrics(
    rows: Rows, known: Mapping[str, Any], ratio: Cell, policy_loss: Cell, per_sequence: bool
) -> dict[str, float]:
    """Means over tokens, or over rows (empty ones too) where the ratio is one per row; extremes over rows."""
    known = {**known, "old_logprobs_T": known.get("old_logprobs_T", known["logprobs_T"].detach())}
    marks = policy_loss(
        {**known, "log_ratio_T": ratio(known), "correction_T": known.get("weight_T")}
    ).clip_masks
    if "policy/clip_frac_low" not in marks or bool(rows.empty_B.all()):
        return {}
    by_row = shares_of_rows(rows, marks)
    low_B, high_B = by_row["policy/clip_frac_low"], by_row["policy/clip_frac_high"]
    counted_B = torch.ones_like(rows.empty_B) if per_sequence else ~rows.empty_B
    if per_sequence:
        low, high = low_B.mean(), high_B.mean()
    else:
        low, high = (
            masked.mean(marks[f"policy/clip_frac_{end}"].double(), rows.loss_mask_T)
            for end in ("low", "high")
        )
    found = {"low_mean": low, "high_mean": high, "region_mean": low + high}
    found |= {"low_min": low_B[counted_B].min(), "high_max": high_B[counted_B].max()}
    return {f"clip_ratio/{name}": float(value) for name, value in found.items()}


ADAPTERS: dict[str, Callable[[Case], Ours]] = {
    "trl.trainer.grpo_trainer.GRPOTrainer._compute_loss": grpo,
    "trl.experimental.gspo_token.grpo_trainer.GRPOTrainer._compute_loss": grpo,
    "trl.experimental.gmpo.gmpo_trainer.GMPOTrainer._compute_loss": gmpo,
    "trl.trainer.rloo_trainer.RLOOTrainer._compute_loss": rloo,
}
