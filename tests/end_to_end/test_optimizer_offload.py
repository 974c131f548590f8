"""update.optimizer_offload in a run: the same checkpoints to the byte, for policy and critic, and across a resume that
switches it on or off."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

import pytest

from ascent.api.check import check
from ascent.api.train import assemble, resume_run, train_plan
from ascent.config.load import nest_keys
from ascent.config.validate import validate
from ascent.models import tiny
from ascent.plan.resolve import Plan, resolve
from ascent.update.learner import LocalLearner
from ascent.update.offloaded_optim import OffloadedAdamW
from tests.end_to_end.crashing import REWARD
from tests.setup.runs import tiny_plan

PPO: dict[str, Any] = {
    "algorithm": "ppo",
    "model.dtype": "bfloat16",
    "data.train": "sort_digits:8",
    "rewards": [{"use": REWARD}],
    "rollouts.prompts_per_step": 4,
    "rollouts.max_new_tokens": 5,
    "update.learning_rate": 1e-3,
    "update.epochs": 2,
    "run.steps": 2,
    "run.save_every": 1,
}
KEY = "update.optimizer_offload"


def quiet(text: str) -> None: ...


def ppo(offload: bool, model: Path) -> Plan:
    return resolve(validate(nest_keys({**PPO, "model.policy": str(model), KEY: offload})))


def digests(run: Path, step: int) -> dict[str, str]:
    """Of weights and optimizer state; the rest of a checkpoint names the recipe."""
    folder = run / "checkpoints" / str(step)
    files = sorted(folder.rglob("*.safetensors"))
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in files
    }


def test_policy_and_critic_have_the_same_checkpoints_and_a_resume_may_switch(
    tmp_path: Path,
) -> None:
    # Narrow: where the processor has no bfloat16 instructions, a product takes 200 times as long as in float32.
    model = tiny.create(tmp_path / "narrow", hidden=16, heads=2, intermediate=32)
    for name, offload in (("beside", False), ("offloaded", True)):
        train_plan(ppo(offload, model), tmp_path / name, say=quiet)
    expected = digests(tmp_path / "beside", 2)
    assert expected.keys() == {
        "critic/model.safetensors",
        "model/model.safetensors",
        "optimizer.safetensors",
    }
    assert digests(tmp_path / "offloaded", 2) == expected != digests(tmp_path / "offloaded", 1)
    for name, offload in (("beside", True), ("offloaded", False)):
        shutil.rmtree(tmp_path / name / "checkpoints" / "2")
        config = tmp_path / name / "config.yaml"
        old, new = (f"optimizer_offload: {str(value).lower()}" for value in (not offload, offload))
        assert old in config.read_text()
        config.write_text(config.read_text().replace(old, new))
        resume_run(tmp_path / name, say=quiet)
        assert digests(tmp_path / name, 2) == expected


@pytest.mark.parametrize("model", [{"dtype": "float32"}, {"dtype": "bfloat16", "lora": 4}])
def test_float32_and_adapters_have_the_same_checkpoints(
    model: dict[str, Any], tmp_path: Path
) -> None:
    if "lora" in model:
        pytest.importorskip("peft")
    for name, offload in (("beside", False), ("offloaded", True)):
        changes = {
            "model": model,
            "update": {"optimizer_offload": offload, "weight_decay": 0.1},
            "run": {"steps": 2},
        }
        train_plan(tiny_plan(**changes), tmp_path / name, say=quiet)
    assert digests(tmp_path / "offloaded", 2) == digests(tmp_path / "beside", 2)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_forecast_counts_host_memory_as_it_is(dtype: str, tmp_path: Path) -> None:
    made = {
        offload: tiny_plan(model={"dtype": dtype}, update={KEY[7:]: offload})
        for offload in (False, True)
    }
    beside, offloaded = (check(each, progress=False).memory for each in made.values())
    assert (offloaded.masters, offloaded.moments, beside.host, beside.staging) == (0, 0, 0, 0)
    assert offloaded.host == beside.masters + beside.moments > 0
    assert beside.total - offloaded.total == offloaded.host - offloaded.staging
    learner = assemble(made[True], tmp_path).learner
    assert isinstance(learner, LocalLearner) and isinstance(learner.optimizer, OffloadedAdamW)
    assert sum(each.values.nbytes for each in learner.optimizer._host) == pytest.approx(
        offloaded.host, rel=0.01
    )
    assert sum(slot.planes.nbytes for slot in learner.optimizer._slots) == pytest.approx(
        offloaded.staging, rel=0.01
    )
