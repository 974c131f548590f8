"""verl 0.9.1 policy losses and the actor's whole loss.

verl's conventions: log-ratios held within +-20 (gspo: at most 10), dual clip always on, CISPO bounds as radii around 1,
n + 1e-8 inside sequence means, global counts and the data-parallel width handed in, entropy and KL reduced like the
policy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ascent.cells import Cell, cell
from ascent.losses import (
    aggregation,
    covariance,
    entropy,
    kl,
    policy_losses,
    ratios,
    rollout_correction,
)
from ascent.losses.loss import Loss
from ascent.losses.objective import policy_terms, step_statistics
from ascent.maths import masked
from tests.golden import conventions
from tests.golden.cases import Case, Ours, Tolerance
from tests.golden.conventions import Convention
from tests.golden.packed import NO_GUARD, Rows, gradient, reduced
from tests.golden.verl_rollout import correction, kept

PPO_CLAMP = 20.0
GSPO_CAP = 10.0
LARGEST_KL = 10.0
BYPASS = "core_algos.compute_policy_loss_bypass_mode"


MODES = (
    *("vanilla", "gspo", "sapo", "gpg", "geo_mean", "cispo", "reinforce"),
    *("dppo_tv", "dppo_kl", "dro", "clip_cov", "kl_cov"),
)


class Reduction(NamedTuple):
    """How verl turns one loss per token into a number: a mode, the count that replaces ours, and the rank factor."""

    mode: Cell
    count: float | None
    ranks: int


def reduction(case: Case, width: int) -> Reduction:
    info: dict[str, Any] = dict(case.params.get("global_batch_info") or {})
    for name in ("dp_size", "batch_num_tokens", "global_batch_size", "loss_scale_factor"):
        if case.params.get(name) is not None:
            info[name] = case.params[name]
    mode = case.params["loss_agg_mode"]
    length = info.pop("loss_scale_factor", None) or width
    modes = {
        "token-mean": (cell(aggregation.token_mean), info.pop("batch_num_tokens", None)),
        "token-sum": (cell(aggregation.token_sum), None),
        "seq-mean-token-sum": (
            cell(aggregation.sequence_mean_token_sum),
            info.get("global_batch_size"),
        ),
        "seq-mean-token-sum-norm": (
            cell(aggregation.sequence_mean_token_scaled, length=length),
            info.get("global_batch_size"),
        ),
        "seq-mean-token-mean": (conventions.mean_in_rows(case), info.get("global_batch_size")),
    }
    unknown = set(info) - {"dp_size", "global_batch_size", "batch_num_tokens"}
    if unknown:
        raise KeyError(
            f"global_batch_info holds {sorted(unknown)}, which this adapter does not know"
        )
    return Reduction(*modes[mode], info.get("dp_size", 1))


class Row(NamedTuple):
    """The cells that express one of verl's loss modes."""

    ratio: Cell
    policy_loss: Cell
    clamp: float = NO_GUARD
    clipped: tuple[str, ...] = ("policy/clip_frac_high", "policy/clip_frac_low")
    lower: str = "policy/clip_frac_dual"
    signed: bool = True


def policy_loss(case: Case) -> Ours:
    """compute_policy_loss_*: the policy term alone."""
    rows = Rows(case.flags("response_mask"))
    logprobs = case.leaf("log_prob")
    loss, metrics = _policy(case, rows, logprobs)
    inside = case.params["loss_mode"] == "geo_mean" and case.follows(Convention.PLUS_1E8)
    tolerances = _room_in_the_exponent(case, rows) if inside else {}
    return Ours(
        {"loss": loss, "grad_log_prob": gradient(loss, logprobs)}, metrics, tolerances=tolerances
    )


def bypass(case: Case) -> Ours:
    """Bypass mode: the sampler's log-probs are the old policy, weights come from the policy being trained."""
    rows = Rows(case.flags("response_mask"))
    logprobs = case.leaf("log_prob")
    case.peer_ignores("loss_mode")
    options = dict(case.params["rollout_correction"])
    kind = options.pop("loss_type")
    known = rows.known(
        logprobs_T=logprobs,
        sampler_logprobs_T=case.tensor("old_log_prob"),
        advantages_T=case.tensor("advantages"),
    )
    current = {
        **known,
        "old_logprobs_T": known["logprobs_T"].detach(),
    }  # as in the first update of a batch
    anchor, weighted = cell(rollout_correction.bypass), correction(options)
    if kind == "reinforce":
        anchor, known["weight_T"] = cell(_of_all_tokens), weighted(current).weight_T
    known["kept_T"] = kept(options, current)
    if case.follows(Convention.DROPPED_LEAVE):
        known["loss_mask_T"] = rows.loss_mask_T & known["kept_T"]
    row = _row(case, {"ppo_clip": "vanilla", "reinforce": "reinforce"}[kind])
    how = reduction(case, rows.width)
    shared = {"ratio": row.ratio, "policy_loss": row.policy_loss, "aggregation": how.mode}
    terms = policy_terms(known, rollout_correction=anchor, token_weights=(cell(_kept),), **shared)
    loss = reduced(terms, count=how.count, ranks=how.ranks)
    return Ours(
        {"loss": loss, "grad_log_prob": gradient(loss, logprobs)},
        _metrics(row, known, terms["policy"]),
    )


def _of_all_tokens(old_logprobs_T: Tensor, weight_T: Tensor) -> rollout_correction.Correction:
    """Weights that a cell of ours has computed before anything was rejected."""
    return rollout_correction.Correction(weight_T, old_logprobs_T.detach(), {})


def _kept(kept_T: Tensor) -> Tensor:
    """What cells of ours keep."""
    return kept_T


def kept_in_bypass(case: Case) -> Tensor:
    """The tokens that survive rejection in bypass mode."""
    case = case.fresh()
    rows = Rows(case.flags("response_mask"))
    known = rows.known(
        old_logprobs_T=case.tensor("log_prob"), sampler_logprobs_T=case.tensor("old_log_prob")
    )
    names = ("rollout_rs", "rollout_rs_threshold")
    given = case.params["rollout_correction"]
    return rows.loss_mask_T & kept({name: given[name] for name in names if name in given}, known)


def actor_loss(case: Case) -> Ours:
    """ppo_loss: policy - entropy_coeff agg(entropy) + kl_loss_coef agg(KL), all reduced the same way."""
    rows = Rows(case.flags("response_mask"))
    logprobs, entropies = case.leaf("log_prob"), case.leaf("entropy")
    how = reduction(case, rows.width)
    policy, _ = _policy(case, rows, logprobs)
    known = rows.known(logprobs_T=logprobs, entropy_T=entropies)
    bonus_T = entropy.bonus(known["entropy_T"], rows.loss_mask_T)
    loss = policy + case.params["entropy_coeff"] * aggregated(
        bonus_T, rows, beside_policy(case, rows.width)
    )
    if case.has("ref_log_prob") and case.params["kl_loss_type"]:
        known["ref_logprobs_T"] = rows.pack(case.tensor("ref_log_prob"))
        kl_T = estimator(case, case.params["kl_loss_type"])(known)
        loss = loss + case.params["kl_loss_coef"] * aggregated(kl_T, rows, how)
    else:
        case.peer_ignores("kl_loss_coef")
    return Ours(
        {
            "loss": loss,
            "grad_log_prob": gradient(loss, logprobs),
            "grad_entropy": gradient(loss, entropies),
        }
    )


def spread_out(loss_T: Tensor, rows: Rows, mode: Cell) -> Loss:
    """Any loss per token, aggregated by one of our modes."""
    tokens_B = aggregation.tokens_per_sequence(rows.loss_mask_T, rows.segments, loss_T.dtype)
    weights = mode({"tokens_B": tokens_B})
    return Loss(
        aggregation.numerator(loss_T, rows.loss_mask_T, weights.weight_B, rows.segments),
        weights.share_B.sum(),
        {},
    )


def aggregated(loss_T: Tensor, rows: Rows, how: Reduction) -> Tensor:
    return reduced({"loss": spread_out(loss_T, rows, how.mode)}, count=how.count, ranks=how.ranks)


def beside_policy(case: Case, width: int) -> Reduction:
    """How entropy and value losses are reduced: as the policy term is, or to a token mean."""
    how = reduction(case, width)
    if case.follows(Convention.LIKE_POLICY):
        return how
    tokens = (case.params.get("global_batch_info") or {}).get(
        "batch_num_tokens", case.params.get("batch_num_tokens")
    )
    return Reduction(cell(aggregation.token_mean), tokens, how.ranks)


def estimator(case: Case, kind: str) -> Cell:
    """verl's KL names; a trailing + keeps the value and takes the gradient of k2."""
    name = {"kl": "k1", "mse": "k2", "low_var_kl": "k3"}.get(
        kind.removesuffix("+"), kind.removesuffix("+")
    )
    if name == "abs" and case.follows(Convention.NO_KL):
        return cell(_distance_straight_through if kind.endswith("+") else _distance)
    if name == "k3":
        return cell(kl.k3_straight_through if kind.endswith("+") else kl.k3, cap=LARGEST_KL)
    if name in ("k1", "abs"):
        return cell(kl.k1_straight_through if kind.endswith("+") else kl.k1)
    return cell({"k2": kl.k2}[name])


def _distance(logprobs_T: Tensor, ref_logprobs_T: Tensor, loss_mask_T: Tensor) -> Tensor:
    return kl.k1(logprobs_T, ref_logprobs_T, loss_mask_T).abs()


def _distance_straight_through(
    logprobs_T: Tensor, ref_logprobs_T: Tensor, loss_mask_T: Tensor
) -> Tensor:
    value_T, slope_T = (
        each(logprobs_T, ref_logprobs_T, loss_mask_T) for each in (_distance, kl.k2)
    )
    return value_T.detach() + slope_T - slope_T.detach()


def _policy(case: Case, rows: Rows, logprobs: Tensor) -> tuple[Tensor, dict[str, float]]:
    known = rows.known(
        logprobs_T=logprobs,
        old_logprobs_T=case.tensor("old_log_prob"),
        advantages_T=case.tensor("advantages"),
    )
    mode = case.params["loss_mode"]
    row, how = _row(case, mode), reduction(case, rows.width)
    if mode == "gspo" and case.follows(Convention.GSPO_CAP):
        known["logprobs_T"] = _capped_rows(known)
    if mode == "sapo":  # whatever loss_agg_mode says
        how = Reduction(conventions.mean_in_rows(case), how.count, how.ranks)
    if (
        mode == "geo_mean"
    ):  # a plain mean over all rows of the call; modes and global counts are not read
        how = Reduction(conventions.mean_in_rows(case, count_empty=True), None, 1)
    anchor = cell(rollout_correction.none)
    if case.has("rollout_is_weights"):
        anchor = conventions.READY_MADE
        known["sampler_logprobs_T"] = conventions.sampler_of(
            known["old_logprobs_T"], rows.pack(case.tensor("rollout_is_weights"))
        )
        if mode == "geo_mean":  # one weight per sequence: the geometric mean of its token weights
            anchor = cell(rollout_correction.geometric_truncate, cap=NO_GUARD)
    if mode == "clip_cov":
        known["noise_T"] = _noise(case, row, known)
    known |= step_statistics(known, [row.policy_loss], rollout_correction=anchor, ratio=row.ratio)
    terms = policy_terms(
        known,
        rollout_correction=anchor,
        ratio=row.ratio,
        policy_loss=row.policy_loss,
        aggregation=how.mode,
    )
    return reduced(terms, count=how.count, ranks=how.ranks), _metrics(row, known, terms["policy"])


def _noise(case: Case, row: Row, known: dict[str, Any]) -> Tensor:
    """verl shuffles the candidates, listed row by row, and drops the first: places in the shuffle are the noise."""
    numbers = {name: row.policy_loss.numbers[name] for name in ("low", "high", "least", "most")}
    names = ("logprobs_T", "advantages_T", "loss_mask_T")
    log_ratio_T = row.ratio(known)
    found_T = covariance.candidates(
        known[names[0]], log_ratio_T, *(known[name] for name in names[1:]), **numbers
    )
    noise_T = torch.zeros_like(known["advantages_T"])
    order = case.inputs["randperm_over_candidates"] if case.has("randperm_over_candidates") else []
    if len(order) != int(found_T.sum()):
        raise ValueError(f"{int(found_T.sum())} candidates, and a permutation of {len(order)}")
    places = found_T.nonzero().flatten()
    for rank, candidate in enumerate(order):
        noise_T[places[int(candidate)]] = rank
    return noise_T


def _room_in_the_exponent(case: Case, rows: Rows) -> dict[str, Tolerance]:
    """geo_mean has its n + 1e-8 inside exp: one part in 1e8 of a row's loss, which the mean over rows may cancel."""
    known = rows.known(
        **{f"{name}_T": case.tensor(name) for name in ("log_prob", "old_log_prob", "advantages")}
    )
    known["log_ratio_T"] = ratios.token(
        known["log_prob_T"], known["old_log_prob_T"], rows.loss_mask_T, guard=NO_GUARD
    )
    by_row_B = rows.unpack(_row(case, "geo_mean").policy_loss(known).loss_T.abs()).amax(1)
    return {
        "loss": Tolerance(1e-8, 1e-8 * float(by_row_B.max())),
        "grad_log_prob": Tolerance(1e-8, 1e-12 + 1e-8 * by_row_B),
    }


def _row(case: Case, mode: str) -> Row:
    low, high, cap = (case.params[f"clip_ratio_{end}"] for end in ("low", "high", "c"))
    if mode == "vanilla":
        return Row(
            cell(ratios.token, guard=PPO_CLAMP),
            cell(policy_losses.dual_clip, low=low, high=high, cap=cap),
            PPO_CLAMP,
        )
    if mode == "gspo":
        return Row(
            cell(ratios.sequence_geometric_token, guard=NO_GUARD),
            cell(policy_losses.clip, low=low, high=high),
        )
    if mode == "sapo":
        taus = {"tau_positive": case.params["tau_pos"], "tau_negative": case.params["tau_neg"]}
        return Row(
            cell(ratios.token, guard=PPO_CLAMP), cell(policy_losses.sapo, **taus), PPO_CLAMP, ()
        )
    if mode == "cispo":
        gate = cell(policy_losses.cispo, floor=max(0.0, 1 - low), cap=1 + high)
        return Row(
            cell(ratios.token, guard=PPO_CLAMP),
            gate,
            PPO_CLAMP,
            ("policy/clip_frac_cap", "policy/clip_frac_floor"),
        )
    if mode in ("reinforce", "gpg"):
        return Row(cell(ratios.none), cell(policy_losses.plain), clipped=())
    if mode == "geo_mean":
        return Row(
            cell(ratios.token, guard=NO_GUARD),
            cell(policy_losses.gmpo, low=low, high=high),
            clipped=("unlike ours",),
        )
    if mode in ("dppo_tv", "dppo_kl"):
        gate = cell(getattr(policy_losses, mode), low=low, high=high, cap=cap)
        return Row(
            cell(ratios.token, guard=PPO_CLAMP),
            gate,
            PPO_CLAMP,
            ("policy/clip_frac_divergence",),
            "policy/clip_frac_cap",
        )
    if mode == "dro":
        return Row(
            cell(ratios.none), cell(policy_losses.dro, beta=case.params["dro_beta"]), clipped=()
        )
    if mode == "clip_cov":
        names = {"share": "clip_cov_ratio", "least": "clip_cov_lb", "most": "clip_cov_ub"}
        numbers = {ours: case.params[theirs] for ours, theirs in names.items()}
        gate = cell(covariance.clip_cov, low=low, high=high, **numbers)
        return Row(
            cell(ratios.token, guard=NO_GUARD), gate, clipped=("policy/clip_frac_covariance",)
        )
    if mode == "kl_cov":
        gate = cell(
            covariance.kl_cov, share=case.params["kl_cov_ratio"], beta=case.params["ppo_kl_coef"]
        )
        return Row(cell(ratios.token, guard=NO_GUARD), gate, clipped=(), signed=False)
    raise KeyError(f"loss mode {mode!r} is not one this adapter knows")


def _capped_rows(known: dict[str, Any]) -> Tensor:
    """gspo holds the mean log-ratio at 10 from above, without gradient: such rows get the constant old + 10 instead."""
    difference_T = ratios.differences(
        known["logprobs_T"], known["old_logprobs_T"], known["loss_mask_T"]
    ).detach()
    over_B = known["segments"].mean(difference_T, known["loss_mask_T"]) > GSPO_CAP
    return torch.where(
        known["segments"].broadcast(over_B), known["old_logprobs_T"] + GSPO_CAP, known["logprobs_T"]
    )


def _metrics(row: Row, known: dict[str, Any], policy: Loss) -> dict[str, float]:
    old_logprobs_T = known.get("old_logprobs_T", known.get("sampler_logprobs_T"))
    moved_T = ratios.token(
        known["logprobs_T"].detach(), old_logprobs_T, known["loss_mask_T"], guard=row.clamp
    )
    metrics = {
        "actor/ppo_kl": float(
            masked.mean(-moved_T if row.signed else moved_T.abs(), known["loss_mask_T"])
        )
    }
    if row.clipped != ("unlike ours",):
        metrics["actor/pg_clipfrac"] = sum(policy.metrics[name].value() for name in row.clipped)
        lower = policy.metrics.get(row.lower)
        metrics["actor/pg_clipfrac_lower"] = lower.value() if lower else 0.0
    return metrics


ADAPTERS: dict[str, Callable[[Case], Ours]] = {
    **{f"core_algos.compute_policy_loss_{mode}": policy_loss for mode in MODES},
    BYPASS: bypass,
    "verl.workers.utils.losses.ppo_loss": actor_loss,
}
