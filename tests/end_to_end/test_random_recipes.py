"""Recipes drawn at random: any row, with keys that it accepts. Each is trained, or refused with a reason; what was
trained resumes and replays to the same bits."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ascent.algorithms import TABLE, VOCABULARY
from ascent.api.replay import replay
from ascent.api.train import resume_run, train_plan
from ascent.config.schema import MULTI_CELL_SLOTS
from ascent.plan.resolve import Plan
from ascent.runs.folder import read_run
from tests.end_to_end import ranked

ACCEPTED = 6  # keys that a recipe sets besides what its row needs
FEW, MANY = range(16), range(1000, 1400)
OPTIONS: dict[str, tuple[Any, ...]] = {
    "model.critic": ("head", "separate"),
    "model.gradient_checkpointing": (True,),
    "model.lora": (1, 2),
    "data.batch_size": (1, 3, 5),
    "data.epochs": (0.5, 2.5),
    "data.evaluate": ("25%", None),
    "data.max_prompt_tokens": (64,),
    "data.pretraining": ("arithmetic:20",),
    "data.prompt_overflow": ("truncate",),
    "data.shuffle": (False,),
    "data.train_on": ("completion", "all"),
    "env": ({"use": f"{ranked.REWARDED}:again", "max_turns": 2, "max_tokens": 60},),
    "rewards": tuple(
        [{"use": f"{ranked.REWARDED}:{each}"}]
        for each in ("sometimes", "ended", "even", "shuffled")
    ),
    "rollouts.dynamic_sampling_tries": (1, 3),
    "rollouts.engine": ("hf",),
    "rollouts.group_size": (1, 2, 3),
    "rollouts.max_new_tokens": (1, 2, 12),
    "rollouts.max_staleness": (1, 2),
    "rollouts.partial_rollouts": (True,),
    "rollouts.prompts_per_step": (1, 2, 3),
    "rollouts.temperature": (0.3, 1.5),
    "rollouts.top_p": (0.1, 0.7),
    "rollouts.truncated_reward": ("bootstrap",),
    "run.keep_best": (1,),
    "run.max_ref_kl": (1e-9, 10.0),
    "update.critic_learning_rate": (1e-2,),
    "update.critic_warmup_steps": (1,),
    "update.epochs": (2, 3),
    "update.max_grad_norm": (1e-3, 100.0),
    "update.minibatches": (2, 3),
    "update.optimizer_offload": (True,),
    "update.schedule": ("linear", "cosine"),
    "update.target_kl": (1e-6, 0.1),
    "update.tokens_per_microbatch": (128, 1024),
    "update.warmup_steps": (1,),
    "update.weight_decay": (0.1,),
}
for slot, known in VOCABULARY.items():
    several = slot in MULTI_CELL_SLOTS
    named = tuple({name: {}} if several else {"use": name} for name in known)
    OPTIONS[f"cells.{slot}"] = (
        (*named, *({name: False} for name in known)) if several else (False, *named)
    )


def drawn(
    seed: int, policy: Path, rows: Sequence[str] = tuple(TABLE)
) -> tuple[Plan, dict[str, Any]]:
    """A plan, and what it sets at random. A key that the recipe so far refuses is left out."""
    coins = random.Random(seed)
    row = coins.choice(rows)
    base = {"model.policy": str(policy)} if TABLE[row].samples else {}
    accepted: dict[str, Any]
    plan, accepted = ranked.plan_of(row, base), {}
    for key in coins.sample(list(OPTIONS), len(OPTIONS)):
        trial = {**accepted, key: coins.choice(OPTIONS[key])}
        try:
            plan = ranked.plan_of(row, {**base, **trial})
        except ValueError:
            continue
        accepted = trial
        if len(accepted) == ACCEPTED:
            break
    return plan, {"algorithm": row, **accepted}


def files_of(checkpoint: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((checkpoint / "manifest.json").read_text())["files"]
    return found


def train_resume_replay(plan: Plan, settings: Mapping[str, Any], folder: Path) -> bool:
    """False if it was refused, which must happen before a step is trained, and with a ValueError."""
    run, copy = folder / "run", folder / "copy"
    try:
        train_plan(plan, run, say=lambda line: None)
    except ValueError:
        trained = [line["step"] for line in read_run(run).metrics] if run.exists() else []
        assert not any(trained), settings
        return False
    steps = sorted(int(path.name) for path in (run / "checkpoints").iterdir())
    last = run / f"checkpoints/{steps[-1]}"
    files = files_of(last)
    shutil.copytree(run, copy)
    if len(steps) > 1:
        shutil.rmtree(last)
        resume_run(run, say=lambda line: None)
        assert files_of(last) == files, settings
    assert replay(str(copy), steps[-1]).exact, settings
    return True


def all_but_few_train(seeds: range, tmp_path: Path) -> None:
    policy = ranked.create_policy(tmp_path / "policy")
    trained = 0
    for seed in seeds:
        trained += train_resume_replay(*drawn(seed, policy), tmp_path / str(seed))
        shutil.rmtree(tmp_path / str(seed), ignore_errors=True)
    assert trained > 0.8 * len(seeds), trained


@pytest.fixture(autouse=True)
def without_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "ascent.runs.folder.draw", lambda *_, **__: None
    )  # it takes longer than the training


def test_some_recipes(tmp_path: Path) -> None:
    all_but_few_train(FEW, tmp_path)


@pytest.mark.learning
@pytest.mark.parametrize("first", MANY[::50])
def test_many_recipes(first: int, tmp_path: Path) -> None:
    all_but_few_train(range(first, first + 50), tmp_path)
