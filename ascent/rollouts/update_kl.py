"""How far the updates of a step moved the policy, and the error when no step after them has a signal.

A step with one update never evaluates the updated policy on its own rollouts, so a few of them are run once more.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ascent.maths.batch import PackedBatch
from ascent.metrics import healthy
from ascent.protocols import Stats
from ascent.rollouts.kl_control import kl_from_old
from ascent.rollouts.microbatches import chunk_rows

UPDATE_KL_LIMIT = healthy("policy/update_kl")[1]
MAX_TOKENS = 512  # run again after an update; at least one sequence


def update_kl_rows(batch: PackedBatch) -> list[int]:
    """The rows that `update_kl` is measured on: the first MAX_TOKENS tokens."""
    return chunk_rows(batch, MAX_TOKENS)[0]


def update_kl(some: PackedBatch, logprobs_T: Tensor) -> float:
    """KL per token from the policy that sampled to the updated one (k3), whose log-probs these are."""
    sampled = some.copy()
    sampled.setdefault("old_logprobs_T", some["sampler_logprobs_T"])
    sampled["loss_mask_T"] = some["loss_mask_T"] & ~torch.isnan(sampled["old_logprobs_T"])  # it may give no log-prob
    return kl_from_old(sampled, logprobs_T)["kl_per_token"]


def no_signal_error(steps: int, metrics: Stats, last_update: tuple[int, float] | None) -> ValueError:
    """Why a run ends after `steps` steps without a signal. `last_update` is the last step that trained, and its KL."""
    start = f"no group of {steps} steps in a row had scored answers of different quality, so there was nothing to learn"
    if last_update is not None and not last_update[1] <= UPDATE_KL_LIMIT:  # NaN too
        return ValueError(
            f"{start} from. The last update, in step {last_update[0]}, moved the policy by {last_update[1]:.3g} nats "
            f"per token, which destroys a policy (at most {UPDATE_KL_LIMIT:g} is usual); start again, or resume from a "
            "checkpoint before it, with a lower update.learning_rate"
        )
    failed, truncated = (metrics[f"{name}_frac"].value() for name in ("reward/failure", "completion/truncated"))
    return ValueError(
        f"{start} from; in the last of them {failed:.0%} of the answers could not be scored, and {truncated:.0%} were "
        "truncated. Fix the reward if the first is many; raise rollouts.max_new_tokens if the second is; else use "
        "easier or harder prompts, more samples of each (rollouts.group_size), or a reward with partial credit"
    )
