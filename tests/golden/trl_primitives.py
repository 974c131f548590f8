"""TRL 1.16.0 primitives: log-probs and entropy from logits, NaN-aware statistics, and masks."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ascent.advantages import reward_shaping
from ascent.losses import token_weights
from ascent.maths import divergence, masked, metrics
from ascent.maths.logprobs import token_logprobs
from tests.golden.cases import Case, Ours
from tests.golden.conventions import Convention
from tests.golden.packed import Rows, gradient
from tests.golden.trl_policy import near_policy, rows_kept


def logprobs_from_logits(case: Case) -> Ours:
    """Positions outside the row mask are not computed by TRL; there both answers are 0."""
    logits, labels = case.leaf("logits"), case.tensor("labels").long()
    keep = (
        case.flags("row_mask")
        if case.has("row_mask")
        else torch.ones_like(labels, dtype=torch.bool)
    )
    temperature = case.params["temperature"]
    found = {
        "logprobs": masked.kept(token_logprobs(logits, labels, temperature=temperature), keep),
        "entropy": masked.kept(divergence.entropy(logits, temperature=temperature), keep),
    }
    slopes = {f"grad_sum_{name}": gradient(x.sum(), logits) for name, x in found.items()}
    return Ours({name: x for name, x in (found | slopes).items() if name in case.expected})


def nan_stats(case: Case) -> Ours:
    """TRL answers NaN where fewer than two numbers are known; we answer 0."""
    values = case.tensor("values")
    known = ~values.isnan()
    rows = torch.stack([_std(case, row, keep) for row, keep in zip(values, known, strict=True)])
    return Ours(
        {
            "nanstd_all": _std(case, values, known),
            "nanstd_dim1": rows,
            "nanmin": metrics.min_of(values, known).value(),
            "nanmax": metrics.max_of(values, known).value(),
        }
    )


def _std(case: Case, x: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
    ours = masked.variance(x, known).sqrt()
    return (
        torch.where(known.sum() < 2, float("nan"), ours)
        if case.follows(Convention.STD_OF_ONE)
        else ours
    )


def off_policy_mask(case: Case) -> Ours:
    rows = Rows(case.flags("mask"))
    logprobs_T, sampled_T = (
        rows.pack(case.tensor(f"{who}per_token_logps")) for who in ("", "sampling_")
    )
    advantages_B, threshold = (
        case.tensor("advantages").squeeze(1),
        case.params["off_policy_threshold"],
    )
    keep_T = near_policy(
        rows, logprobs_T, sampled_T, rows.segments.broadcast(advantages_B), threshold
    )
    return Ours({"keep": rows_kept(rows, keep_T).double()[:, None]})


def soft_overlong_punishment(case: Case) -> Ours:
    lengths_B = case.tensor("completion_lengths")
    rewards_B = reward_shaping.soft_overlong(
        torch.zeros_like(lengths_B),
        lengths_B,
        max_length=case.params["max_completion_len"],
        cache=case.params["soft_punish_cache"],
    )
    return Ours({"rewards": rewards_B})


def high_entropy_mask(case: Case) -> Ours:
    """The floor in float32, the comparison in the entropies' own type."""
    rows = Rows(case.flags("mask"))
    entropy_T = rows.pack(case.tensor("entropies"))
    floor = token_weights.entropy_floor(
        entropy_T.float(), rows.loss_mask_T, share=1 - case.params["threshold"]
    )
    keep_T = (
        token_weights.top_entropy(entropy_T, rows.loss_mask_T, floor.double()) & rows.loss_mask_T
    )
    return Ours({"mask": rows.unpack(keep_T.double())})


ADAPTERS: dict[str, Callable[[Case], Ours]] = {
    "trl.trainer.utils.selective_log_softmax(_and_entropy)": logprobs_from_logits,
    "trl.trainer.utils.nanstd/nanmin/nanmax": nan_stats,
    "trl.trainer.grpo_trainer.GRPOTrainer.get_off_policy_mask": off_policy_mask,
    "trl.rewards.get_soft_overlong_punishment": soft_overlong_punishment,
    "trl.trainer.grpo_trainer.GRPOTrainer.get_high_entropy_mask": high_entropy_mask,
}
