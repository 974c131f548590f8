"""Runs of a tiny mixture of experts whose routes are replayed: they learn, and end in the same bits however they got
there."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from ascent.api.train import resume_run, train_plan
from ascent.config.load import nest_keys
from ascent.config.validate import validate
from ascent.models.tiny import create
from ascent.plan.resolve import resolve
from ascent.records import Rollout
from ascent.runs.folder import read_run
from tests.end_to_end import rewarded


def low(rollout: Rollout) -> float:
    """The share of sampled tokens with a small number: half of them, to begin with."""
    tokens = [token for turn in rollout.turns for token in turn.completion.tokens]
    return sum(token < 128 for token in tokens) / len(tokens)


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mixture whose routers nearly tie, so that updates move routes."""
    return create(
        tmp_path_factory.mktemp("model") / "tiny", family="qwen3_moe", hidden=32, layers=2, seed=0
    )


def run(folder: Path, policy: Path, **more: Any) -> Any:
    settings = {
        "algorithm": "grpo",
        "model.policy": str(policy),
        "model.routing_replay": True,
        "data.train": "sort_digits:16",
        "rewards": [{"use": f"{__file__}:low"}],
        "rollouts.prompts_per_step": 4,
        "rollouts.group_size": 4,
        "rollouts.max_new_tokens": 6,
        "update.learning_rate": 3e-3,
        "run.steps": 4,
        "run.save_every": 2,
        **{key.replace("__", "."): value for key, value in more.items()},
    }
    train_plan(resolve(validate(nest_keys(settings))), folder, say=lambda line: None)
    return read_run(folder)


def weights(folder: Path, step: int) -> dict[str, torch.Tensor]:
    return load_file(folder / f"checkpoints/{step}/model/model.safetensors")


def test_grpo_learns(tmp_path: Path, policy: Path) -> None:
    more = {"rollouts__prompts_per_step": 8, "update__epochs": 2, "update__minibatches": 2}
    done = run(tmp_path / "run", policy, run__steps=20, run__save_every=20, **more)
    rewards = [line["reward/mean"] for line in done.metrics]
    print(f"reward {rewards[0]:.3f} first, {rewards[-1]:.3f} last")
    assert rewards[0] < 0.6 and rewards[-1] > 0.8
    changed = [line["policy/routes_changed_frac"] for line in done.metrics]
    assert (
        all(0 <= each < 1 for each in changed) and max(changed) > 0
    )  # the second update finds other routers


@pytest.mark.filterwarnings(
    "ignore:The following (rank|alpha)_pattern keys"
)  # peft: no linear layer in experts
@pytest.mark.parametrize(
    "more",
    [{}, {"model__lora": 2, "model__gradient_checkpointing": True}],
    ids=["all weights", "lora"],
)
def test_turns_keep_their_routes(tmp_path: Path, policy: Path, more: dict[str, Any]) -> None:
    """A second turn reads the first one again; the first token that it draws follows one that was never run before."""
    env = {"use": f"{rewarded.__file__}:again", "max_turns": 3}
    done = run(tmp_path / "run", policy, env=env, run__steps=2, rollouts__max_new_tokens=48, **more)
    for line in done.metrics:
        assert line["policy/routes_changed_frac"] == 0
        assert line["policy/ratio_max"] == pytest.approx(1, abs=1e-5)
        assert line["policy/ratio_min"] == pytest.approx(1, abs=1e-5)
    assert max(line["env/turns"] for line in done.metrics) > 1


@pytest.mark.parametrize(
    "more",
    [{"update__epochs": 2, "update__minibatches": 2}, {"rollouts__max_staleness": 1}],
    ids=["minibatches", "staleness"],
)
def test_a_resumed_run_ends_in_the_same_bits(
    tmp_path: Path, policy: Path, more: dict[str, Any]
) -> None:
    done = run(tmp_path / "whole", policy, **more)
    assert all(line["policy/routes_changed_frac"] >= 0 for line in done.metrics)
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    shutil.rmtree(tmp_path / "cut/checkpoints/4")
    (tmp_path / "cut/outcome.json").unlink()
    resume_run(tmp_path / "cut", say=lambda line: None)
    whole, cut = (weights(tmp_path / name, 4) for name in ("whole", "cut"))
    assert all(torch.equal(whole[name], cut[name]) for name in whole)
    lines = [
        [
            {name: value for name, value in line.items() if not name.startswith("time")}
            for line in read_run(tmp_path / name).metrics
        ]
        for name in ("whole", "cut")
    ]
    assert lines[0] == lines[1]


def test_how_an_update_is_cut_changes_rounding_only(tmp_path: Path, policy: Path) -> None:
    """In one micro-batch, where prompts are shared, and in pieces of two or three answers."""
    more = {"run__steps": 1, "run__save_every": 1, "rollouts__max_staleness": 0}
    runs = {
        budget: run(tmp_path / str(budget), policy, update__tokens_per_microbatch=budget, **more)
        for budget in (4096, 80)
    }
    start = load_file(policy / "model.safetensors")
    ours, other = (weights(tmp_path / str(budget), 1) for budget in (4096, 80))
    moved = max(float((ours[name] - start[name]).abs().max()) for name in start)
    apart = max(float((ours[name] - other[name]).abs().max()) for name in start)
    assert moved > 1e-3 and apart < 1e-2 * moved
    assert all(
        each.metrics[0]["policy/ratio_max"] == pytest.approx(1, abs=1e-5) for each in runs.values()
    )
