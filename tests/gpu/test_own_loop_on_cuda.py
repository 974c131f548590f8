"""A loop of one's own on a GPU gives the recipe's losses, bit for bit, in both dtypes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import ascent

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def letters(rollout: ascent.Rollout) -> float:
    return float(sum(map(str.isalpha, rollout.text)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("parts", [1, 2])
def test_grpo(dtype: str, parts: int, tmp_path: Path) -> None:
    recipe = {
        "algorithm": "grpo", "model": {"policy": "tiny:llama", "dtype": dtype}, "data.train": "sort_digits:64",
        "rewards": [letters], "rollouts": {"prompts_per_step": 4, "group_size": 8, "max_new_tokens": 8},
        "update": {"learning_rate": 1e-2, "minibatches": parts}, "run.steps": 3,
    }  # fmt: skip
    run = ascent.train(recipe, run=tmp_path / "run", progress=False)
    policy = ascent.Policy("tiny:llama", dtype=dtype, learning_rate=1e-2, max_new_tokens=8)
    prompts = ascent.load_data("sort_digits:64")
    for row, chosen in zip(run.metrics, ascent.batches(prompts, 4), strict=False):
        rollouts = policy.sample(chosen, n=8)
        batch = policy.pack(rollouts, [letters(each) for each in rollouts])
        if parts > 1:
            batch["old_logprobs_T"] = policy.logprobs(batch)
        batch["ref_logprobs_T"] = policy.reference_logprobs(batch)
        norms = [
            policy.step(update, "grpo")["optim/grad_norm"]
            for update in policy.minibatches(ascent.add_advantages(batch), parts)
        ]
        assert sum(norms) / parts == pytest.approx(row["optim/grad_norm"], rel=1e-12)
