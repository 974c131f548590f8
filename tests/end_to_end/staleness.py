"""How old may rollouts be? GRPO on the sorting task with synchronous and with stale rollouts, corrected and not.

All arms of a seed share the start, the data and every key but those that they name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ascent.config.load import merge_configs, nest_keys
from tests.end_to_end.policies import LONG, SORTING, beginning, judged, lists, quietly, recipe_of

PRACTICE = replace(LONG, learning_rate=4e-4, sequences=256, minibatches=2, steps=60)
CORRECTED = {"cells.rollout_correction.use": "token_truncate"}
PARTIAL = {"rollouts.max_staleness": 2, "rollouts.partial_rollouts": True}
ARMS: dict[str, dict[str, Any]] = {
    "synchronous": {},
    "staleness-1": {"rollouts.max_staleness": 1},
    "staleness-2": {"rollouts.max_staleness": 2},
    "staleness-1-corrected": {"rollouts.max_staleness": 1, **CORRECTED},
    "staleness-2-corrected": {"rollouts.max_staleness": 2, **CORRECTED},
    "partial-2": PARTIAL,
    "partial-2-corrected": {**PARTIAL, **CORRECTED},
}


def study(root: Path, arm: str, seed: int) -> dict[str, Any]:
    """Greedy accuracy on held-out lists, before and after, and the training accuracy of every step."""
    start, folder = beginning(root, seed), root / f"stale-{arm}-{seed}"
    recipe: Mapping[str, Any] = recipe_of("grpo", PRACTICE, start, seed)
    keys = {
        "data.train": lists(root, SORTING.practised, "train", SORTING.prompts, seed),
        "model.dtype": "float32",
        "update.schedule": "linear",
        "update.warmup_steps": PRACTICE.steps // 10,
    }
    spent = quietly(merge_configs(recipe, nest_keys({**keys, **ARMS[arm]})), folder)
    steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [each for each in steps if each.get("step", 0) > 0]
    last = steps[-20:]
    return {
        **judged(root, start, folder, spent, SORTING),
        "correct": sum(each["reward/correct"] for each in last) / len(last),
        "staleness": sum(each.get("sampler/staleness", 0.0) for each in last) / len(last),
        "curve": [round(each["reward/correct"], 4) for each in steps],
    }
