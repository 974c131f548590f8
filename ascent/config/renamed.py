"""Keys and values of recipes that were renamed. A recipe with an old one is refused with the new name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

KEYS = {
    "cells.shape": "cells.reward_shaping",
    "cells.credit": "cells.advantage",
    "cells.normalise": "cells.advantage_norm",
    "cells.mismatch": "cells.rollout_correction",
    "cells.gate": "cells.policy_loss",
    "cells.focus": "cells.token_weights",
    "cells.aggregate": "cells.aggregation",
    "cells.controller": "cells.kl_controller",
    "cells.value": "cells.value_loss",
    "cells.entropy": "cells.entropy_bonus",
    "cells.auxiliary": "cells.extra_losses",
    "cells.filter.varied": "cells.filter.nonzero_variance",
    "cells.filter.finished": "cells.filter.not_truncated",
    "cells.token_weights.shared_length": "cells.token_weights.length_desensitized",
    "rollouts.refill_tries": "rollouts.dynamic_sampling_tries",
    "rollouts.truncation": "rollouts.truncated_reward",
    "data.own_answers": "data.on_policy_fraction",
    "data.demonstrations": "data.centering_data",
    "data.bad_rows": "data.invalid_rows",
    "data.long_prompts": "data.prompt_overflow",
    "model.recompute": "model.gradient_checkpointing",
    "run.stop_at_kl": "run.max_ref_kl",
    "run.best_by": "run.best_metric",
    "rewards[].stop_on": "rewards[].on_error",
    "rewards[].patience": "rewards[].retry",
    "env.patience": "env.reply_timeout",
}
# Options of single rewards; the same word may be an option of a reward of the user.
REWARD_OPTIONS = {"rewards[].patience": ("remote", "judge")}
VALUES = {
    ("cells.advantage.use", "centre"): "group_mean_baseline",
    ("cells.advantage_norm.use", "batch_std_centred"): "batch_std_centered",
    ("cells.rollout_correction.use", "token_normalised"): "token_normalized",
    ("cells.rollout_correction.use", "product_normalised"): "product_normalized",
}


def check_renamed(recipe: Mapping[str, Any], owner: str = "") -> None:
    """ValueError with one line for each renamed key or value. `owner` is the section that holds the recipe."""
    lines = list(_find_renamed(recipe, "", ""))
    if lines:
        raise ValueError("\n".join(f"{owner}{line}" for line in lines))


def _find_renamed(value: Any, path: str, current: str) -> Iterator[str]:
    """Messages for everything below `path`; `current` is the same path in the names of today."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            key, new = (f"{prefix}.{name}".removeprefix(".") for prefix in (path, current))
            pattern = re.sub(r"\[\d+\]", "[]", new)
            if pattern in KEYS and value.get("use") in REWARD_OPTIONS.get(
                pattern, (value.get("use"),)
            ):
                new = f"{current}.{KEYS[pattern].rpartition('.')[2]}"
                yield f"{key} is now called {new}"
            yield from _find_renamed(inner, key, new)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _find_renamed(inner, f"{path}[{index}]", f"{current}[{index}]")
    elif isinstance(value, str) and (current, value) in VALUES:
        yield f"{path}: {value} is now called {VALUES[current, value]}"
