"""Features of runs that sample, in pairs: whatever is combined, a run that was killed ends in the same bits, and what
it made is a plain model.

Adapters, a value head, a critic with weights of its own, a reward model, rollouts that wait, refills, half precision,
the best checkpoint, a coefficient that moves, several updates a step.
"""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from ascent.api.export import export
from ascent.api.train import resume_run, train_plan
from ascent.config.load import nest_keys
from ascent.config.validate import validate
from ascent.models.load import load
from ascent.plan.resolve import resolve
from tests.end_to_end.crashing import REWARD
from tests.setup.world import SMALL, create

pytest.importorskip("peft")

BASE: dict[str, Any] = {
    "algorithm": "ppo",
    "data.train": "sort_digits:8",
    "rewards": [{"use": REWARD}],
    "run.steps": 2,
    "rollouts.prompts_per_step": 4,
    "rollouts.max_new_tokens": 4,
    "update.learning_rate": 1e-2,
    "run.save_every": 1,
}
# Feature -> what it sets; "scored" stands for a reward model's folder. Refills need groups, so they come with a row.
FEATURES: dict[str, dict[str, Any]] = {
    "lora": {"model.lora": 2},
    "head": {"model.critic": "head"},
    "critic": {"model.critic": "separate", "update.critic_warmup_steps": 1},
    "reward model": {"model.reward_model": "scored", "rewards": []},
    "staleness": {"rollouts.max_staleness": 1},
    "refills": {
        "algorithm": "rlvr",
        "rollouts.group_size": 2,
        "rollouts.dynamic_sampling_tries": 2,
    },
    "half": {"model.dtype": "bfloat16"},
    "best": {
        "data.evaluate": "sort_digits@heldout:2",
        "run.evaluate_every": 1,
        "run.keep_best": 1,
        "run.best_metric": "reward/mean",
    },
    "kl_controller": {"cells.kl_controller": {"use": "ziegler_sequence", "horizon": 16}},
    "updates": {"update.epochs": 2, "update.minibatches": 2},
}
# What cannot be combined: two critics; the row with refills has neither a critic nor KL.
APART = {
    ("head", "critic"),
    ("head", "refills"),
    ("critic", "refills"),
    ("refills", "kl_controller"),
}
# Few runs, in which every pair that can be combined is.
RUNS = [
    ("lora", "head", "reward model", "staleness", "half", "best", "kl_controller"),
    ("lora", "critic", "reward model", "staleness", "half", "best", "updates"),
    ("lora", "reward model", "staleness", "refills", "half", "best", "updates"),
    ("head", "kl_controller", "updates"),
    ("lora", "critic", "kl_controller"),
    ("lora", "head"),
]


def test_every_pair_is_in_a_run() -> None:
    pairs = {pair for pair in itertools.combinations(FEATURES, 2) if pair not in APART}
    assert {
        pair
        for run in RUNS
        for pair in itertools.combinations(sorted(run, key=[*FEATURES].index), 2)
    } == pairs


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    create(folder / "policy", seed=0, **SMALL)
    load(create(folder / "trunk", seed=5, **SMALL), head="scalar", seed=9).save(folder / "scored")
    return folder


@pytest.mark.parametrize("features", RUNS, ids=" and ".join)
def test_killed_and_resumed_it_ends_in_the_same_bits_and_is_exported(
    features: tuple[str, ...], models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "ascent.runs.folder.draw", lambda *_, **__: None
    )  # it takes longer than the training
    settings = {**BASE, "model.policy": str(models / "policy")}
    for name in features:
        settings |= FEATURES[name]
    if "model.reward_model" in settings:
        settings["model.reward_model"] = str(models / "scored")
    run = tmp_path / "run"
    train_plan(resolve(validate(nest_keys(settings))), run, say=lambda line: None)
    last = run / "checkpoints/2"
    files = json.loads((last / "manifest.json").read_text())["files"]
    shutil.rmtree(last)
    resume_run(run, say=lambda line: None)
    assert json.loads((last / "manifest.json").read_text())["files"] == files
    plain = export(str(run), tmp_path / "plain")
    AutoModelForCausalLM.from_pretrained(plain)
    assert load(plain, head="both" if "head" in features else "tokens").notes == ()
