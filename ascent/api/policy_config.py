"""The config of a policy outside of a recipe: the keys that it reads, with the schema's defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ascent.config.changes import flatten_mapping
from ascent.config.load import merge_configs, nest_keys, parse_overrides
from ascent.config.schema import Config
from ascent.config.validate import validate
from ascent.models.dtype import default_dtype

# The loop decides all other keys of a recipe.
KEYS = {
    *(
        f"model.{name}"
        for name in (
            "dtype",
            "arithmetic",
            "gradient_checkpointing",
            "lora",
            "lora_alpha",
            "quantize",
        )
    ),
    *(f"model.{name}" for name in ("reference", "trust_remote_code", "routing_replay")),
    *(f"rollouts.{name}" for name in ("max_new_tokens", "temperature", "top_p")),
    *(
        f"update.{name}"
        for name in ("learning_rate", "weight_decay", "adam_beta1", "adam_beta2", "adam_eps")
    ),
    *(f"update.{name}" for name in ("max_grad_norm", "tokens_per_microbatch", "optimizer_offload")),
}


def policy_config(given: Mapping[str, Any], overrides: Sequence[str]) -> Config:
    """The config of these dotted keys, None being the default; ValueError for an override without effect."""
    changes = parse_overrides(overrides)
    merged = merge_configs(
        nest_keys({key: value for key, value in given.items() if value is not None}), changes
    )
    config = validate(merged)
    idle = [key for key, _ in flatten_mapping(changes) if key and key not in KEYS]
    if idle:
        raise ValueError(
            f"{idle[0]} has no effect on a policy: the loop decides it; keys with an effect: {', '.join(sorted(KEYS))}"
        )
    if config.model.dtype == "auto":
        config = validate(merge_configs(merged, {"model": {"dtype": default_dtype()}}))
    return config
