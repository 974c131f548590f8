"""Recipe keys and values of before: an error names the new one."""

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
VALUES = {
    ("cells.advantage.use", "centre"): "group_mean_baseline",
    ("cells.advantage_norm.use", "batch_std_centred"): "batch_std_centered",
    ("cells.rollout_correction.use", "token_normalised"): "token_normalized",
    ("cells.rollout_correction.use", "product_normalised"): "product_normalized",
}


def refuse_renamed(recipe: Mapping[str, Any]) -> None:
    """ValueError that names every renamed key and value in the recipe, and what it is called now."""
    found = []
    for key, value in _walk(recipe, ""):
        plain = re.sub(r"\[\d+\]", "[]", key)
        if plain in KEYS:
            name = KEYS[plain].rpartition(".")[2]
            found.append(f"{key} is now called {key.rpartition('.')[0]}.{name}")
        elif isinstance(value, str) and (plain, value) in VALUES:
            found.append(f"{key}: {value} is now called {VALUES[plain, value]}")
    if found:
        raise ValueError("; ".join(found))


def _walk(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if path:
        yield path, value
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _walk(inner, f"{path}.{name}" if path else str(name))
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from _walk(inner, f"{path}[{place}]")
