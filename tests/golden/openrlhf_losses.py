"""OpenRLHF 0.11.0 losses (KTO, KD and PRM from 0.9.6).

Its conventions: PPO log-ratios held within +-20; the sample level divides by n + 1e-8; GSPO is always per sample, and
with a sampler correction its ratio is taken against the sampler instead; `seq-mask-tis` does not cap its weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ascent.cells import Cell, cell
from ascent.losses import (
    aggregation,
    distillation,
    kto_bco,
    policy_losses,
    preferences,
    process,
    ranking,
    ratios,
    rollout_correction,
    supervised,
    values,
)
from ascent.losses.loss import ItemLosses, Loss, summed
from ascent.losses.objective import policy_terms
from ascent.maths import masked
from ascent.maths.logprobs import next_token_logprobs
from ascent.maths.segments import Segments
from tests.golden import conventions
from tests.golden.cases import METRIC, Case, Ours
from tests.golden.conventions import Convention
from tests.golden.packed import NO_GUARD, Rows, gradient, mean_of, reduced
from tests.golden.trl_preferences import pairs

PPO_CLAMP = 20.0
EVERY_LENGTH = 1  # these losses take sums of log-probs and never a length


def policy_loss(case: Case) -> Ours:
    rows, logprobs = Rows(case.flags("action_mask")), case.leaf("log_probs")
    known = rows.known(
        logprobs_T=logprobs,
        old_logprobs_T=case.tensor("old_log_probs"),
        advantages_T=case.tensor("advantages"),
    )
    if case.has("rollout_log_probs"):
        known["sampler_logprobs_T"] = rows.pack(case.tensor("rollout_log_probs"))
    gspo = case.params["policy_loss_type"] == "gspo"
    if not gspo:
        case.expects(policy_loss_type="ppo")
    ratio = (
        cell(ratios.sequence_geometric, guard=NO_GUARD)
        if gspo
        else cell(ratios.token, guard=PPO_CLAMP)
    )
    low, high, cap = (case.params[name] for name in ("clip_eps_low", "clip_eps_high", "dual_clip"))
    gate = (
        cell(policy_losses.clip, low=low, high=high)
        if cap is None
        else cell(policy_losses.dual_clip, low=low, high=high, cap=cap)
    )
    mode, count, ranks = _reduction(case, per_token=case.params["token_level_loss"] and not gspo)
    terms = policy_terms(
        known,
        rollout_correction=_correction(case, gspo),
        ratio=ratio,
        policy_loss=gate,
        aggregation=mode,
    )
    loss, found = reduced(terms, count=count, ranks=ranks), terms["policy"].metrics
    moved_T = ratios.differences(
        known["logprobs_T"].detach(), known["old_logprobs_T"], rows.loss_mask_T
    )
    answer: dict[str, Any] = {
        "loss": loss,
        "grad_log_probs": gradient(loss, logprobs),
        "clip_ratio": found["policy/clip_frac_low"].value()
        + found["policy/clip_frac_high"].value(),
        "ppo_kl": masked.mean(-moved_T, rows.loss_mask_T),
    }
    answer["vllm_kl"] = None
    if case.params["enable_vllm_is_correction"] and not gspo:
        gap_T = ratios.differences(
            known["sampler_logprobs_T"], known["old_logprobs_T"], rows.loss_mask_T
        )
        answer["vllm_kl"] = masked.mean(gap_T, rows.loss_mask_T)
    return Ours(answer, tolerances={"clip_ratio": METRIC})


def _correction(case: Case, gspo: bool) -> Cell:
    if not case.params["enable_vllm_is_correction"]:
        return cell(rollout_correction.none)
    if gspo:
        case.peer_ignores("vllm_is_truncated_threshold", "vllm_is_correction_type")
        return cell(rollout_correction.bypass)
    low, high = case.params["vllm_is_truncated_threshold"]
    cells: dict[str, Callable[[], Cell]] = {
        "tis": lambda: cell(rollout_correction.token_truncate, floor=low, cap=high),
        "icepop": lambda: cell(rollout_correction.token_mask, low=low, high=high),
        "seq-mask-tis": lambda: cell(
            rollout_correction.geometric_mask, low=low, high=high, cap=NO_GUARD
        ),
    }
    return cells[case.params["vllm_is_correction_type"]]()


def _reduction(case: Case, *, per_token: bool) -> tuple[Cell, float | None, int]:
    """The mode, the global count that replaces ours, and the data-parallel factor."""
    tokens, samples = case.params.get("batch_num_tokens"), case.params.get("global_batch_size")
    ranks = case.params.get("dp_size") or 1
    if per_token:
        return cell(aggregation.token_mean), tokens, ranks
    return conventions.mean_in_rows(case), samples, ranks


def value_loss(case: Case) -> Ours:
    rows, predicted = Rows(case.flags("action_mask")), case.leaf("values")
    values_T, returns_T = rows.pack(predicted), rows.pack(case.tensor("returns"))
    if case.params["clip_eps"] is None:
        case.peer_ignores("old_values")
        loss_T = values.mse(values_T, returns_T, rows.loss_mask_T)
    else:
        old_logprobs_T = rows.pack(case.tensor("old_values"))
        loss_T = values.clipped(
            values_T, old_logprobs_T, returns_T, rows.loss_mask_T, radius=case.params["clip_eps"]
        )
    loss = _aggregated(case, rows, loss_T, Convention.LIKE_POLICY)
    return Ours({"loss": loss, "grad_values": gradient(loss, predicted)})


def sft_loss(case: Case) -> Ours:
    rows, logprobs = Rows(case.flags("loss_mask")), case.leaf("per_token_logps")
    loss_T = supervised.nll(rows.pack(logprobs), rows.loss_mask_T).losses
    loss = _aggregated(case, rows, loss_T, Convention.SFT_PER_ROW)
    return Ours({"loss": loss, "grad_per_token_logps": gradient(loss, logprobs)})


def _aggregated(case: Case, rows: Rows, loss_T: Tensor, per_row: Convention) -> Tensor:
    """A token mean, which is ours; or a mean over rows, which would be a convention."""
    mode, count, ranks = _reduction(
        case, per_token=case.params["token_level_loss"] or not case.follows(per_row)
    )
    tokens_B = aggregation.tokens_per_sequence(rows.loss_mask_T, rows.segments, loss_T.dtype)
    weights = mode({"tokens_B": tokens_B})
    total = aggregation.numerator(loss_T, rows.loss_mask_T, weights.weight_B, rows.segments)
    return reduced({"loss": Loss(total, weights.share_B.sum(), {})}, count=count, ranks=ranks)


def lm_loss(case: Case) -> Ours:
    """Cross-entropy of shifted labels, mean over all scored tokens."""
    logits, labels = case.leaf("logits"), case.tensor("labels").long()
    scored = labels != case.params["ignore_index"]
    scored[:, 0] = False
    segments = Segments.from_lengths([labels.shape[1]] * labels.shape[0])
    logprobs_T = next_token_logprobs(logits.flatten(0, 1), labels.clamp(min=0).flatten(), segments)
    loss = mean_of(summed(supervised.nll(logprobs_T, scored.flatten())))
    return Ours({"loss": loss, "grad_logits": gradient(loss, logits)})


def pairwise(case: Case) -> Ours:
    margins = case.tensor("margin") if case.has("margin") else None
    return _bradley_terry(case, margins)


def log_exp(case: Case) -> Ours:
    """The same loss; its margin argument is not read."""
    case.peer_ignores("margin")
    return _bradley_terry(case, None)


def _bradley_terry(case: Case, margins: Tensor | None) -> Ours:
    chosen, rejected = case.leaf("chosen_reward"), case.leaf("reject_reward")
    each = ranking.bradley_terry(
        torch.cat([chosen, rejected]), **pairs(2 * chosen.numel()), margins_P=margins
    )
    loss = mean_of(summed(each))
    return Ours(
        {
            "loss": loss,
            "grad_chosen": gradient(loss, chosen),
            "grad_reject": gradient(loss, rejected),
        }
    )


def dpo_loss(case: Case) -> Ours:
    chosen, rejected, known = _sums(case)
    beta, smoothing = case.params["beta"], case.params["label_smoothing"]
    if case.params["ipo"]:
        loss_cell = cell(preferences.ipo_sum, beta=beta)
    else:
        loss_cell = cell(preferences.dpo, beta=beta, label_smoothing=smoothing)
    each = loss_cell({**known, **pairs(known["logprobs_B"].numel())})
    return _judged(case, each, chosen, rejected, known)


def kto_loss(case: Case) -> Ours:
    chosen, rejected, known = _sums(case)
    count = chosen.numel()
    point = (case.tensor("policy_KL_logps") - case.tensor("reference_KL_logps")).mean()
    known |= {
        "desirable_B": torch.arange(count + rejected.numel()) < count,
        "mismatched_score": point,
    }
    numbers = {
        name: case.params[name] for name in ("beta", "desirable_weight", "undesirable_weight")
    }
    ours = _judged(case, cell(kto_bco.kto, **numbers)(known), chosen, rejected, known)
    return Ours({**ours.values, "kl": point.clamp(min=0)})


def _sums(case: Case) -> tuple[Tensor, Tensor, dict[str, Any]]:
    chosen, rejected = case.leaf("policy_chosen_logps"), case.leaf("policy_rejected_logps")
    reference = [case.tensor(f"reference_{which}_logps") for which in ("chosen", "rejected")]
    known = {"logprobs_B": torch.cat([chosen, rejected]), "ref_logprobs_B": torch.cat(reference)}
    known["lengths_B"] = torch.full_like(known["ref_logprobs_B"], EVERY_LENGTH)
    return chosen, rejected, known


def _judged(
    case: Case, each: ItemLosses, chosen: Tensor, rejected: Tensor, known: dict[str, Any]
) -> Ours:
    loss = mean_of(summed(each))
    reward_B = case.params["beta"] * (known["logprobs_B"] - known["ref_logprobs_B"])
    return Ours(
        {
            "loss": loss,
            "chosen_rewards": reward_B[: chosen.numel()],
            "rejected_rewards": reward_B[chosen.numel() :],
            "grad_policy_chosen": gradient(loss, chosen) if chosen.numel() else None,
            "grad_policy_rejected": gradient(loss, rejected) if rejected.numel() else None,
        }
    )


def kd_loss(case: Case) -> Ours:
    """Cross-entropy from the teacher's distribution to the student's, mean over scored positions; no shift."""
    logits, scored = case.leaf("logits"), case.tensor("label") != -100
    each = distillation.kd(
        logits.flatten(0, 1), case.tensor("teacher_logits").flatten(0, 1), scored.flatten()
    )
    loss = mean_of(summed(each))
    return Ours({"loss": loss, "grad_logits": gradient(loss, logits)})


def prm_loss(case: Case) -> Ours:
    """Placeholders end the steps; the classes are a few words of the vocabulary, or all of it."""
    logits, ends = (
        case.leaf("logits"),
        case.tensor("input_ids") == case.params["placeholder_token_id"],
    )
    words, labels = case.params["reward_token_ids"], case.tensor("labels")
    kind = case.params["labels"]
    chosen = logits if words is None else logits[..., words]
    if kind == "soft":
        each = process.prm_soft(chosen.flatten(0, 1), labels.flatten(), ends.flatten())
    else:
        known = labels.long()
        if words is not None:
            known = (
                sum(torch.where(known == word, place + 1, 0) for place, word in enumerate(words))
                - 1
            )
        each = process.prm_hard(chosen.flatten(0, 1), known.flatten(), ends.flatten())
    loss = mean_of(summed(each))
    return Ours(
        {
            "loss": loss,
            "acc": each.metrics["steps/accuracy"].value(),
            "grad_logits": gradient(loss, logits),
        }
    )


PREFIX = "openrlhf.models.loss."
ADAPTERS: dict[str, Callable[[Case], Ours]] = {
    f"{PREFIX}PolicyLoss": policy_loss,
    f"{PREFIX}ValueLoss": value_loss,
    f"{PREFIX}SFTLoss": sft_loss,
    f"{PREFIX}GPTLMLoss": lm_loss,
    f"{PREFIX}PairWiseLoss": pairwise,
    f"{PREFIX}LogExpLoss": log_exp,
    f"{PREFIX}DPOLoss": dpo_loss,
    f"{PREFIX}KTOLoss": kto_loss,
    f"{PREFIX}KDLoss": kd_loss,
    f"{PREFIX}PRMLoss": prm_loss,
}
