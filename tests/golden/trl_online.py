"""TRL losses beside its main trainers: BCO, XPO, Nash-MD (1.12.0), A2PO and GKD (1.16.0).

TRL's conventions: BCO's running mean is kept in float32; XPO and Nash-MD take log-probs that are 0 outside the
completion and sum over the whole width; GKD does not shift, and its temperature only reaches the loss when passed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ascent.advantages import group_baselines
from ascent.cells import cell
from ascent.losses import (
    aggregation,
    distillation,
    kto_bco,
    policy_losses,
    preferences,
    ratios,
    rollout_correction,
    sequence_policy_losses,
    supervised,
)
from ascent.losses.loss import summed
from ascent.losses.objective import file_terms, policy_terms
from ascent.maths.logprobs import next_token_logprobs
from ascent.maths.segments import Segments
from tests.golden.cases import Case, Ours, as_tensor
from tests.golden.conventions import Convention
from tests.golden.packed import Rows, gradient, mean_of, reduced

EVERY_LENGTH = 1  # these losses take sums of log-probs and never a length


def bco(case: Case) -> Ours:
    """Successive calls on one trainer: what has been seen is carried from one to the next."""
    case.expects(match_underlying_distribution=False)
    case.peer_ignores("match_underlying_distribution")
    beta, memory, values = case.params["beta"], None, {}
    for place, step in enumerate(case.inputs["steps"]):
        chosen, rejected = (
            as_tensor(step[f"policy_{side}_logps"]).requires_grad_()
            for side in ("chosen", "rejected")
        )
        reference = [as_tensor(step[f"reference_{side}_logps"]) for side in ("chosen", "rejected")]
        known: dict[str, Any] = {
            "logprobs_B": torch.cat([chosen, rejected]),
            "ref_logprobs_B": torch.cat(reference),
        }
        known["lengths_B"] = torch.full_like(known["ref_logprobs_B"], EVERY_LENGTH)
        known["desirable_B"] = torch.arange(known["lengths_B"].numel()) < chosen.numel()
        made = cell(kto_bco.bco, beta=beta)
        memory = made.statistics["reward_memory"](
            {**known, "reward_memory": memory} if memory is not None else known
        )
        each = made({**known, "reward_memory": memory})
        loss = mean_of(summed(each))
        values |= {f"steps.{place}.losses": each.losses, f"steps.{place}.mean_loss": loss}
        values |= {
            f"steps.{place}.delta": memory[0],
            f"steps.{place}.grad_policy_chosen": gradient(loss, chosen),
        }
        values[f"steps.{place}.grad_policy_rejected"] = gradient(loss, rejected)
    return Ours(values)


def xpo(case: Case) -> Ours:
    """Model rows first, then the reference's; which of the two was preferred is in `chosen_mask`."""
    own, other = case.leaf("model_logprobs_model_data"), case.leaf("model_logprobs_ref_data")
    reference = torch.cat(
        [case.tensor("ref_logprobs_model_data"), case.tensor("ref_logprobs_ref_data")]
    )
    won, beta = case.flags("chosen_mask"), case.params["beta"]
    count = won.numel()
    model_P, other_P = torch.arange(count), torch.arange(count, 2 * count)
    known = {
        "logprobs_B": torch.cat([own, other]).sum(1),
        "ref_logprobs_B": reference.sum(1),
        "lengths_B": torch.full((2 * count,), EVERY_LENGTH),
        "chosen_P": torch.where(won, model_P, other_P),
        "rejected_P": torch.where(won, other_P, model_P),
        "from_reference_B": torch.arange(2 * count) >= count,
    }
    kinds = {"sigmoid": preferences.dpo, "ipo": preferences.ipo_sum}
    made, bonus = (
        cell(kinds[case.params["loss_type"]], beta=beta),
        cell(supervised.reference_likelihood),
    )
    terms = file_terms(known, loss=made, extra_losses=(bonus,))
    loss = reduced(terms, {bonus.name: case.params["alpha"]})
    return Ours(
        {
            "loss": loss,
            "dpo_losses": made(known).losses,
            "xpo_losses": case.params["alpha"] * bonus(known).losses,
            "grad_model_logprobs_model_data": gradient(loss, own),
            "grad_model_logprobs_ref_data": gradient(loss, other),
        }
    )


def nash_md(case: Case) -> Ours:
    """On-policy: the policy that is trained has also sampled."""
    logprobs, chance_B = case.leaf("model_logprobs"), case.tensor("probability")
    rows = Rows(torch.ones_like(logprobs, dtype=torch.bool))
    known = rows.known(
        logprobs_T=logprobs,
        ref_logprobs_T=case.tensor("ref_logprobs"),
        old_logprobs_T=logprobs.detach(),
    )
    credit = cell(group_baselines.against_opponent, beta=case.params["beta"])(
        {**known, "win_prob_B": chance_B}
    )
    known["advantages_T"] = credit.advantages_T
    terms = policy_terms(
        known,
        rollout_correction=cell(rollout_correction.none),
        ratio=cell(ratios.none),
        policy_loss=cell(policy_losses.plain),
        aggregation=cell(aggregation.sequence_mean_token_sum),
    )
    loss = reduced(terms)
    sums_B = rows.segments.sum(known["logprobs_T"])
    return Ours(
        {
            "loss": loss,
            "score": (chance_B - 0.5) * sums_B,
            "kl_div": rows.segments.sum(known["logprobs_T"] - known["ref_logprobs_T"]),
            "grad_model_logprobs": gradient(loss, logprobs),
        }
    )


def a2po(case: Case) -> Ours:
    """The last positions of every row are its completion; logits at a position score the next token."""
    logits, ids = case.leaf("logits"), case.tensor("input_ids").long()
    kept = case.params["logits_to_keep"]
    segments = Segments.from_lengths([ids.shape[1]] * ids.shape[0])
    scored = case.flags("attention_mask") & (torch.arange(ids.shape[1]) >= ids.shape[1] - kept)
    known: dict[str, Any] = {"segments": segments, "loss_mask_T": scored.flatten()}
    known["logprobs_T"] = next_token_logprobs(logits.flatten(0, 1), ids.flatten(), segments)
    # The reference is given as one sum per row: all of it on the first scored token.
    first_T = _first(known["loss_mask_T"], segments)
    known["ref_logprobs_T"] = torch.where(first_T, segments.broadcast(case.tensor("ref_logps")), 0)
    rewards = {"rewards_B": case.tensor("rewards"), "optimal_values_B": case.tensor("v_star")}
    known["advantages_T"] = segments.broadcast(
        cell(group_baselines.against_optimum)(rewards).advantages_B
    )
    terms = policy_terms(
        known,
        rollout_correction=cell(rollout_correction.none),
        ratio=cell(ratios.none),
        policy_loss=cell(sequence_policy_losses.regression, beta=case.params["beta2"]),
        aggregation=cell(aggregation.sequence_mean_token_mean),
    )
    loss = reduced(terms)
    return Ours({"loss": loss, "grad_logits": gradient(loss, logits)})


def _first(loss_mask_T: Tensor, segments: Segments) -> Tensor:
    return loss_mask_T & (
        torch.cumsum(loss_mask_T, 0) - segments.broadcast(_before(loss_mask_T, segments)) == 1
    )


def _before(loss_mask_T: Tensor, segments: Segments) -> Tensor:
    """Trained tokens in earlier sequences."""
    per_B = segments.sum(loss_mask_T)
    return per_B.cumsum(0) - per_B


def gkd(case: Case) -> Ours:
    student, teacher, scored = (
        case.leaf("student_logits"),
        case.tensor("teacher_logits"),
        case.tensor("labels") != -100,
    )
    numbers = {name: case.params[name] for name in ("beta", "temperature")}
    each = distillation.gkd(
        student.flatten(0, 1), teacher.flatten(0, 1), scored.flatten(), **numbers
    )
    count, reduction = case.params["num_items_in_batch"], case.params["reduction"]
    divisors = {"batchmean": None, "sum": 1, "mean": int(scored.sum()) * student.shape[-1]}
    divisor = divisors[reduction] if case.follows(Convention.GKD_SUM) else None
    loss = reduced({"loss": summed(each)}, count=count or divisor)
    return Ours({"loss": loss, "grad_student_logits": gradient(loss, student)})


PREFIX = "trl.experimental."
ADAPTERS: dict[str, Callable[[Case], Ours]] = {
    f"{PREFIX}bco.bco_trainer.BCOTrainer.bco_loss": bco,
    f"{PREFIX}xpo.xpo_trainer.XPOTrainer._compute_losses": xpo,
    f"{PREFIX}nash_md.nash_md_trainer.NashMDTrainer._compute_losses": nash_md,
    f"{PREFIX}a2po.a2po_trainer.A2POTrainer.compute_loss": a2po,
    f"{PREFIX}gkd.gkd_trainer.GKDTrainer.generalized_jsd_loss": gkd,
}
