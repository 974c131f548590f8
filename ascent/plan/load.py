"""Load a recipe with overrides: a shipped recipe, a YAML file, a mapping of keys, or an algorithm by its name.

`load_config("grpo", ["model=tiny:llama", "data=sort_digits", "cells.policy_loss.high=0.25"])`
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ascent.advantages.reward_shaping import soft_overlong
from ascent.algorithms import Row
from ascent.config.iterate import KEY as ROUNDS
from ascent.config.load import (
    merge_configs,
    nest_keys,
    parse_overrides,
    read_recipe,
    shipped_recipes,
)
from ascent.config.schema import Config
from ascent.config.validate import validate
from ascent.plan.resolve import find_unused
from ascent.plan.rows import find_row, row_names
from ascent.tasks.named import is_task

COMPLETIONS, NEW_TOKENS = 512, 512  # per step, and per completion, of an algorithm by its name
# Two keys for one thing: an override of one replaces the recipe's other.
ALTERNATIVES = (("run.steps", "data.epochs"), ("data.epochs", "run.steps"))


def load_config(recipe: str | Path | Mapping[str, Any], overrides: Sequence[str] = ()) -> Config:
    """The recipe with overrides, validated against the schema (`ascent.plan.resolve` checks the rest).

    An override that empties a key, such as data.evaluate=null, also removes the recipe's keys that have no effect
    without it, such as run.evaluate_every.
    """
    over = parse_overrides(overrides)
    base = nest_keys(recipe) if isinstance(recipe, Mapping) else _read(str(recipe), over)
    if ROUNDS in base:
        raise ValueError(
            f"{recipe} is a recipe of ascent iterate; run ascent iterate {recipe} --run DIR"
        )
    if base.get("cells") and over.get("algorithm", base.get("algorithm")) != base.get("algorithm"):
        raise ValueError(
            f"algorithm={over['algorithm']} on top of {recipe} would keep the cells that {recipe} sets for "
            f"{base.get('algorithm')}; start from a recipe without a cells section"
        )
    for key, other in ALTERNATIVES:
        if _get(over, key) is not None:
            base = _without(base, {other})
    config = validate(merge_configs(base, over))
    rest = _without_empty(over)
    if rest == over:
        return config
    before = validate(merge_configs(base, rest))
    return validate(merge_configs(_without(base, find_unused(config) - find_unused(before)), over))


def algorithm_recipe(row: Row, over: Mapping[str, Any]) -> dict[str, Any]:
    """The recipe of an algorithm by its name: its row's defaults, and what a first run on one GPU needs besides.

    Rollouts are scored by the reward model, if one is given; a built-in task has a verifier; other answers are compared
    as mathematics.
    """
    if not row.samples:
        data = {"epochs": 3.0 if row.source == "examples" else 1.0, "evaluate": "5%"}
        run = {"save_every": 100, "evaluate_every": 100}
        return {"algorithm": row.name, "data": data, "update": {"schedule": "cosine"}, "run": run}
    given = _get(over, "rollouts.max_new_tokens")
    budget = given if isinstance(given, int) and given > 0 else NEW_TOKENS
    rollouts = {
        "max_new_tokens": budget,
        "prompts_per_step": COMPLETIONS // row.defaults.get("rollouts.group_size", 8),
    }
    found: dict[str, Any] = {
        "algorithm": row.name,
        "data": {"evaluate": "5%", "max_prompt_tokens": 512},
        "rollouts": rollouts,
        "run": {"steps": 200},
    }
    for each in [each for each in row.reward_shaping if each.function is soft_overlong]:
        cache = max(
            1, round(budget * float(each.numbers["cache"]) / float(each.numbers["max_length"]))
        )
        found["cells"] = {"reward_shaping": {each.name: {"max_length": budget, "cache": cache}}}
    if _get(over, "model.reward_model") is None:
        name = _get(over, "data.train")
        found["rewards"] = [
            {"use": "verifier" if isinstance(name, str) and is_task(name) else "mathematics"}
        ]
    return found


def _read(recipe: str, over: Mapping[str, Any]) -> dict[str, Any]:
    names = row_names()
    if recipe in names and recipe not in shipped_recipes():
        return algorithm_recipe(find_row(recipe), over)
    return read_recipe(recipe, names)


def _get(tree: Mapping[str, Any], key: str) -> Any:
    for part in key.split("."):
        tree = tree.get(part) if isinstance(tree, Mapping) else None  # type: ignore[assignment]
    return tree


def _without(tree: Mapping[str, Any], keys: Collection[str], prefix: str = "") -> dict[str, Any]:
    return {
        name: _without(value, keys, f"{prefix}{name}.") if isinstance(value, Mapping) else value
        for name, value in tree.items()
        if prefix + name not in keys
    }


def _without_empty(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Without null, false, 0 and empty lists."""
    return {
        name: _without_empty(value) if isinstance(value, Mapping) else value
        for name, value in tree.items()
        if value not in (None, 0, [])
    }
