"""Runs that learn from rollouts, built and trained by recipe; what cannot be built is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ascent.build.plan import resolve
from ascent.build.training import train
from ascent.config.load import nested
from ascent.config.validate import validate
from ascent.runs.folder import read_run
from tests.end_to_end.crashing import REWARD

SETTINGS = {
    "model.policy": "tiny:llama", "data.train": "sort_digits:8", "rewards": [{"use": REWARD}],
    "rollouts.prompts_per_step": 2, "rollouts.max_new_tokens": 5, "run.steps": 2, "run.save_every": 2,
}  # fmt: skip


OVERLONG = {"soft_overlong": {"max_length": 5, "cache": 2}}


def run(folder: Path, row: str, **more: Any) -> Any:
    settings = {**SETTINGS, "algorithm": row, **{key.replace("__", "."): value for key, value in more.items()}}
    train(resolve(validate(nested(settings))), folder, say=lambda line: None)
    return read_run(folder)


@pytest.mark.parametrize(
    ("row", "more"),
    [
        ("rlvr", {"rollouts__group_size": 4}),
        ("grpo", {"rollouts__group_size": 4, "model__lora": 2}),
        ("dapo", {"rollouts__group_size": 4, "update__minibatches": 2, "cells__shape": OVERLONG}),
        ("remax", {}),
        ("ppo", {"model__critic": "head"}),
        ("vpg", {"model__critic": "head"}),
        ("reinforce_pp", {"rollouts__engine": "hf"}),
    ],
)
def test_a_row_trains_and_leaves_its_samples(tmp_path: Path, row: str, more: dict[str, Any]) -> None:
    done = run(tmp_path / "run", row, **more)
    assert done.state == "finished"
    assert len(done.metrics) == 2
    assert {"reward", "length", "truncated", "groups_without_signal", "updates"} <= set(done.metrics[-1])
    sample = done.samples[0]
    assert sample["step"] == 1
    assert len(sample["logprobs"]) >= 1
    assert sample["stop"] in ("eos", "length")


def test_held_out_prompts_are_answered_greedily(tmp_path: Path) -> None:
    done = run(
        tmp_path / "run", "rlvr", rollouts__group_size=4, data__evaluate="sort_digits@heldout:4", run__evaluate_every=1
    )
    assert all("evaluate/reward" in line for line in done.metrics)


@pytest.mark.parametrize(
    ("row", "more", "message"),
    [
        ("ppo", {}, "use model.critic: head"),
        ("ppo_penalty", {"model__critic": "head"}, "cells.controller ppo_penalty is not built yet"),
        ("rlvr", {"rollouts__group_size": 4, "rollouts__engine": "vllm"}, "use native or hf"),
        ("rlvr", {"rollouts__group_size": 4, "rollouts__max_staleness": 1}, "not built yet; use 0"),
    ],
)
def test_what_is_not_built_is_refused_before_anything_runs(
    tmp_path: Path, row: str, more: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        run(tmp_path / "run", row, **more)
    assert not (tmp_path / "run").exists()
