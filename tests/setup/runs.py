"""A recipe that trains in a second, shared by the tests of build and cli."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from ascent.config.load import merge_configs
from ascent.config.validate import validate
from ascent.plan import Plan, find_row, resolve

TINY: dict[str, Any] = {
    "algorithm": "sft",
    "model": {"policy": "tiny:llama", "dtype": "float32"},
    "data": {
        "train": "arithmetic:64",
        "evaluate": "arithmetic@heldout:8",
        "batch_size": 16,
        "max_tokens": 64,
    },
    "update": {"learning_rate": 3e-3, "tokens_per_microbatch": 512},
    "run": {"steps": 4, "save_every": 2, "evaluate_every": 2},
}


def tiny_plan(**changes: Any) -> Plan:
    recipe = merge_configs(TINY, changes)
    row = find_row(recipe["algorithm"])
    if row.needs & {"teacher", "teacher_distribution"}:
        recipe = merge_configs({"model": {"teacher": "tiny:qwen2"}}, recipe)
    if recipe["data"].get("on_policy_fraction", row.defaults.get("data.on_policy_fraction")):
        recipe = merge_configs({"rollouts": {"max_new_tokens": 8}}, recipe)
    if row.source == "steps":
        recipe = merge_configs(
            recipe, {"data": {"train": "running_sum:64", "evaluate": "running_sum@heldout:8"}}
        )
    return resolve(validate(recipe))


def tiny_recipe(folder: Path, **changes: Any) -> str:
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(merge_configs(TINY, changes)))
    return str(path)


def weights_of(run: Path, step: int) -> bytes:
    """The weights in a checkpoint; with LoRA, those of the adapter."""
    (file,) = (run / "checkpoints" / str(step) / "model").glob("*model.safetensors")
    return file.read_bytes()
