"""How far the updates of a step moved the policy, and the error when no step after them has a signal.

A step with one update never evaluates the updated policy on its own rollouts, so a few of them are run once more.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from ascent.maths.batch import PackedBatch, select
from ascent.metrics import healthy
from ascent.protocols import Stats
from ascent.rollouts.kl_control import kl_from_old
from ascent.rollouts.microbatches import chunk_rows

UPDATE_KL_LIMIT = healthy("policy/update_kl")[1]
MAX_TOKENS = 512  # run again after an update; at least one sequence


def update_kl_rows(batch: PackedBatch) -> list[int]:
    """The rows that `update_kl` is measured on: those that the policy sampled and that it is trained on, up to
    MAX_TOKENS tokens; none if there are none."""
    measured_B = batch["segments"].sum(_measured(batch)) > 0
    if "from_reference_B" in batch:
        measured_B &= ~batch["from_reference_B"]
    rows: list[int] = measured_B.nonzero()[:, 0].tolist()
    if not rows:
        return []
    read = ("tokens_T", "segments", "routed_experts_TLC")
    some = select(
        cast(PackedBatch, {name: batch.get(name) for name in read if name in batch}), rows
    )
    return [rows[place] for place in chunk_rows(some, MAX_TOKENS)[0]]


def update_kl(some: PackedBatch, logprobs_T: Tensor) -> float:
    """KL per token from the policy that sampled to the updated one (k3), whose log-probs these are."""
    sampled = some.copy()
    sampled["old_logprobs_T"], sampled["loss_mask_T"] = _old_logprobs(some), _measured(some)
    return kl_from_old(sampled, logprobs_T)["kl_per_token"]


def _old_logprobs(batch: PackedBatch) -> Tensor:
    return batch["old_logprobs_T"] if "old_logprobs_T" in batch else batch["sampler_logprobs_T"]


def _measured(batch: PackedBatch) -> Tensor:
    """The trained tokens whose old log-prob is known: a sampler may give none."""
    return batch["loss_mask_T"] & ~torch.isnan(_old_logprobs(batch))


def no_signal_error(
    steps: int, metrics: Stats, last_update: tuple[int, float] | None
) -> ValueError:
    """Why a run ends after `steps` steps without a signal. `last_update` is the last step that trained, and its KL."""
    start = f"no group of {steps} steps in a row had scored answers of different quality, so there was nothing to learn"
    if last_update is not None and not last_update[1] <= UPDATE_KL_LIMIT:  # NaN too
        return ValueError(
            f"{start} from. The last update, in step {last_update[0]}, moved the policy by {last_update[1]:.3g} nats "
            f"per token, which destroys a policy (at most {UPDATE_KL_LIMIT:g} is usual); start again, or resume from a "
            "checkpoint before it, with a lower update.learning_rate"
        )
    failed, truncated = (
        metrics[f"{name}_frac"].value() for name in ("reward/failure", "completion/truncated")
    )
    return ValueError(
        f"{start} from; in the last of them {failed:.0%} of the answers could not be scored, and {truncated:.0%} were "
        "truncated. Fix the reward if the first is many; raise rollouts.max_new_tokens if the second is; else use "
        "easier or harder prompts, more samples of each (rollouts.group_size), or a reward with partial credit"
    )
