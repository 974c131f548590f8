"""Every row of the table as a run by recipe in bfloat16 on a GPU: two steps that end well and move the weights.

What rows compute is held by other tests; this one is about what a run has besides: heads of their own, samplers,
references, teachers, float32 masters, and the check that the first ratio of a step is 1.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from ascent.algorithms import TABLE
from ascent.api.train import train_plan
from ascent.config.load import merge_configs
from ascent.config.validate import validate
from ascent.plan.resolve import resolve
from ascent.runs.folder import read_run
from tests.end_to_end.policies import ROWS, Practice, recipe_of
from tests.end_to_end.rewarded import __file__ as REWARDED

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

POLICY = "tiny:llama"
UNLIKE = {
    "grpo_passk": "drawn",
    "grpo_process": "halves",
}  # rewards, where right or wrong says too little
FILES: dict[str, Iterable[Mapping[str, Any]]] = {
    "examples": [{"prompt": f"say {n}", "completion": str(n)} for n in range(8)],
    "pairs": [
        {"prompt": f"say {n}", "chosen": str(n), "rejected": "no", "gold": f"{n}."}
        for n in range(8)
    ],
    "rankings": [
        {"prompt": f"say {n}", "completions": [str(n), "no", "never"], "ranks": [1, 2, 3]}
        for n in range(8)
    ],
    "unpaired": [
        {"prompt": f"say {n}", "completion": str(n), "label": n % 2 == 0} for n in range(8)
    ],
    "steps": [
        {"prompt": "count", "completions": ["1", "2", str(n)], "labels": [1, 1, n == 3]}
        for n in range(8)
    ],
}


def recipe(name: str, folder: Path) -> dict[str, Any]:
    row = TABLE[name]
    if row.samples:
        few = Practice(
            steps=2, sequences=16, group_size=ROWS[name].group_size if name in ROWS else 2
        )
        found = recipe_of(name, few, Path(POLICY), seed=1)
        if "reward_parts" not in row.needs:  # a start that knows nothing must differ in something
            found["rewards"] = [{"use": f"{REWARDED}:{UNLIKE.get(name, 'shuffled')}"}]
    else:
        data = folder / "data.jsonl"
        data.write_text("".join(json.dumps(each) + "\n" for each in FILES[str(row.source)]))
        found = {
            "algorithm": name,
            "model": {"policy": POLICY},
            "data": {"train": str(data), "batch_size": 4},
        }
        found |= {"update": {"learning_rate": 1e-3}, "run": {"steps": 2, "save_every": 2}}
        if row.needs & {"teacher", "teacher_distribution"}:
            found["model"]["teacher"] = "tiny:qwen2"
        if "data.on_policy_fraction" in row.defaults:
            found["rollouts"] = {"max_new_tokens": 4}
    return merge_configs(found, {"model": {"dtype": "bfloat16"}})


@pytest.mark.parametrize("name", list(TABLE))
def test_a_run_ends_well(name: str, tmp_path: Path) -> None:
    train_plan(resolve(validate(recipe(name, tmp_path))), tmp_path / "run", say=lambda line: None)
    done = read_run(tmp_path / "run")
    assert done.state == "finished"
    assert len(done.metrics) == 2
    assert all(math.isfinite(line["loss/total"]) for line in done.metrics)
    assert any(line["optim/grad_norm"] > 0 for line in done.metrics)
