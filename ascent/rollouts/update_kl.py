"""How far an update moved the policy, and what to say when the rollouts after it teach nothing any more.

A step with one update never sees its own policy again: its ratio is 1 by construction, and where the update destroyed
the policy no later step trains either. So a few of the step's tokens are run once more when it is over.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ascent.metrics import healthy
from ascent.rollouts.advantages import Infer, add_model_outputs
from ascent.rollouts.batch import Batch, select
from ascent.rollouts.kl_control import to_old

UPDATE_KL_LIMIT = healthy("policy/update_kl")[1]
TOKENS = 512  # run again after an update; at least one sequence


def update_kl(batch: Batch, infer: Infer) -> float:
    """KL per token from the policy that sampled to the one after the step's updates (k3), on some of its tokens."""
    rows, used = [0], int(batch["segments"].lengths_B[0])
    for row, length in enumerate(batch["segments"].lengths_B.tolist()[1:], 1):
        used += length
        if used > TOKENS:
            break
        rows.append(row)
    some = select(batch, rows)
    some.setdefault("old_logprobs_T", some["sampler_logprobs_T"])
    some["loss_mask_T"] = some["loss_mask_T"] & ~torch.isnan(some["old_logprobs_T"])  # a sampler may give no log-prob
    return to_old(some, add_model_outputs(some, infer, frozenset({"logprobs_T"}), used)["logprobs_T"])["kl_per_token"]


def nothing_to_learn(steps: int, report: Mapping[str, Any], last: tuple[int, float] | None) -> str:
    """Why a run ends after `steps` steps without a signal; `last` is the last step that trained and its KL."""
    start = f"no group of {steps} steps in a row had scored answers of different quality, so there was nothing to learn"
    if last is not None and not last[1] <= UPDATE_KL_LIMIT:  # NaN too
        return (
            f"{start} from. The last update, in step {last[0]}, moved the policy by {last[1]:.3g} nats a token, which "
            f"is how a policy is destroyed (at most {UPDATE_KL_LIMIT:g} is usual); start again, or resume from a "
            "checkpoint before it, with a lower update.learning_rate"
        )
    return (
        f"{start} from; in the last of them {report['reward/failure_frac'].value():.0%} of the answers could not be "
        "scored. Mend the reward if that is many; else use easier or harder prompts, more samples of each "
        "(rollouts.group_size), or a reward with partial credit"
    )
