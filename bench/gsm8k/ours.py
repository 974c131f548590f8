"""Our side of every stage: a recipe, a run, and what its metrics say. One process for one stage and seed."""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evaluate import Evaluator, peak_gb, test_points
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from settings import DPO_CELLS, LEARNING_RATES, LOW_RATE, VARIANTS, Study
from torch import Tensor

import ascent
from ascent.runs.folder import Run, read_run, state_of

REWARD = f"{Path(__file__).with_name('reward.py')}:correct"
# What makes the rows equal where the study does not compare them: no KL, one update on all rollouts, no further
# sampling for dropped groups.
ROWS: Mapping[str, Mapping[str, Any]] = {
    "grpo": {"cells.kl": False, "cells.kl_controller": False},
    "rloo": {"cells.reward_shaping.kl_penalty": False, "cells.kl_controller": False},
    "dapo": {"rollouts.dynamic_sampling_tries": 0},
    "ppo": {
        "model.critic": "separate",
        "cells.reward_shaping.kl_penalty": False,
        "cells.reward_shaping.eos_replace": False,
        "cells.kl_controller": False,
    },
}
# Of a step's metrics. The parts of the verifier are the truth where a reward model gives the score.
KEPT = {
    "step",
    "loss/total",
    "reward/mean",
    "tokens/trained",
    "completion/length_mean",
    "policy/entropy",
    "optim/grad_norm",
    "policy/ref_kl",
    "policy/ref_kl_k1",
    "critic/explained_variance",
    *(f"reward/verifier/{part}" for part in ("correct", "facts", "faithful", "brief")),
}
LAM1, SLOW = (
    {"cells.advantage.lam": 1.0},
    {"update.learning_rate": LOW_RATE, "run.save_every": 10**6},
)
OTHER_NUMBERS: Mapping[str, Mapping[str, Any]] = {
    "ppo_lam1": LAM1,
    "grpo_low_rate": SLOW,
    "rloo_low_rate": SLOW,
    "dapo_low_rate": SLOW,
    "ppo_lam1_low_rate": LAM1 | SLOW,
}


def train(recipe: Mapping[str, Any], folder: Path) -> Run:
    """A new run, the rest of one that was stopped, or one that had finished when its stage was stopped."""
    if state_of(folder) == "finished":
        return read_run(folder)
    if (folder / "config.yaml").exists():
        return ascent.resume(folder, progress=False)
    return ascent.train(dict(recipe), run=folder, progress=False)


def common(study: Study) -> dict[str, Any]:
    return {"model.dtype": study.settings.dtype, "data.shuffle": False, "run.save_every": 10**6}


def sft_recipe(study: Study, data: Path | str, model: Path, steps: int) -> dict[str, Any]:
    settings = study.settings
    return {
        **common(study),
        "algorithm": "sft",
        "model.policy": str(model),
        "data.train": str(data),
        "data.batch_size": settings.sft_batch,
        "data.max_tokens": settings.max_tokens,
        "update.learning_rate": settings.sft_learning_rate,
        "update.schedule": "linear",
        "run.steps": steps,
    }


def rl_recipe(
    study: Study,
    algorithm: str,
    seed: int,
    model: Path,
    data: Path,
    steps: int,
    learning_rate: float,
) -> dict[str, Any]:
    """`data` are the prompts; what scores them and what is held out is the caller's."""
    settings = study.settings
    return {
        **common(study),
        "algorithm": algorithm,
        "seed": seed,
        "model.policy": str(model),
        "data.train": str(data),
        "rollouts.group_size": settings.group,
        "rollouts.prompts_per_step": settings.prompts,
        "rollouts.max_new_tokens": settings.max_new_tokens,
        "rollouts.temperature": 1.0,
        "update.epochs": 1,
        "update.minibatches": 1,
        "update.learning_rate": learning_rate,
        "run.steps": steps,
        **ROWS.get(algorithm, {}),
    }


def keep(study: Study, stage: str, seed: int | None, folder: Path) -> None:
    """Moves the models of a run's checkpoints to where they are tested, in float32; the optimizer's state is
    gigabytes."""
    target = study.points(stage, seed)
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for checkpoint in (folder / "checkpoints").iterdir():
        weights = float32_weights(checkpoint)
        shutil.move(checkpoint / "model", target / checkpoint.name)
        save_file(
            weights, target / checkpoint.name / "model.safetensors", metadata={"format": "pt"}
        )
    shutil.rmtree(folder)


def float32_weights(checkpoint: Path) -> dict[str, Tensor]:
    """The policy's masters by the names of its weights; a float32 weight is its own."""
    weights, mark = load_file(checkpoint / "model/model.safetensors"), "optimizer/master.module."
    with safe_open(checkpoint / "optimizer.safetensors", framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 - not a mapping
            learner, found, weight = name.partition(mark)
            if found and learner in ("learner/", "learners/policy/"):
                weights[weight] = file.get_tensor(name)
    return weights


def sft(study: Study) -> dict[str, Any]:
    """Leaves the model that RL and DPO start from."""
    folder = study.folder("sft")
    run = train(
        sft_recipe(study, study.work / "data/sft.jsonl", study.model, study.settings.sft_steps),
        folder,
    )
    for target in (study.sft, study.sft_bfloat16):
        shutil.rmtree(target, ignore_errors=True)
    ascent.export(folder, study.sft_bfloat16)
    weights = study.sft_bfloat16 / "model.safetensors"
    found = {**curve(run), "sha256": hashlib.sha256(weights.read_bytes()).hexdigest()}
    keep(study, "sft", None, folder)
    shutil.copytree(study.points("sft") / str(study.settings.sft_steps), study.sft)
    shutil.copytree(study.model, study.points("sft") / "0")
    return found


def pilot(study: Study, place: int) -> dict[str, Any]:
    """One learning rate, on training questions alone."""
    settings, folder = study.settings, study.folder("pilot", place)
    recipe = gsm8k_recipe(study, "grpo", 0, LEARNING_RATES[place], settings.extra_steps)
    run = train(recipe, folder)
    accuracy = Evaluator(study, folder, "pilot.jsonl").scores(settings.pilot_samples)
    shutil.rmtree(folder)
    found = {"learning_rate": LEARNING_RATES[place], "accuracy": sum(accuracy) / len(accuracy)}
    return {**found, **curve(run)}


def gsm8k_recipe(
    study: Study, algorithm: str, seed: int, learning_rate: float, steps: int
) -> dict[str, Any]:
    settings = study.settings
    prompts = study.work / f"data/prompts-{seed}.jsonl"
    recipe = rl_recipe(study, algorithm, seed, study.sft, prompts, steps, learning_rate)
    recipe |= {
        "rewards": [{"use": REWARD}],
        "run.save_every": settings.save_every,
        "run.keep": steps,
    }
    if algorithm == "dapo":
        cache = max(1, settings.max_new_tokens // 6)
        recipe["cells.reward_shaping.soft_overlong"] = {
            "max_length": settings.max_new_tokens,
            "cache": cache,
        }
        recipe["update.tokens_per_microbatch"] = 16384
    if algorithm == "ppo":
        recipe["update.critic_learning_rate"] = settings.critic_learning_rate
    return recipe


def rl(study: Study, stage: str, seed: int) -> dict[str, Any]:
    """Trained; rows that are not compared with TRL's are tested at once."""
    folder, algorithm = study.folder(stage, seed), VARIANTS.get(stage, stage)
    recipe = gsm8k_recipe(study, algorithm, seed, study.learning_rate, study.settings.steps)
    if (
        stage != "grpo"
    ):  # models of earlier steps are not tested, and a checkpoint of PPO has gigabytes
        recipe["run.save_every"] = study.settings.trl_steps
    found = curve(train(recipe | OTHER_NUMBERS.get(stage, {}), folder))
    keep(study, stage, seed, folder)
    return found if stage == "grpo" else {**found, "points": test_points(study, stage, seed)}


def dpo_recipe(study: Study, cell: int) -> dict[str, Any]:
    settings = study.settings
    return {
        **common(study),
        "algorithm": "dpo",
        "model.policy": str(study.dpo_start(cell)),
        "model.dtype": DPO_CELLS[cell][0],
        "data.train": str(study.work / "data/pairs.jsonl"),
        "data.batch_size": settings.dpo_batch,
        "data.max_tokens": settings.max_tokens,
        "cells.loss.beta": settings.dpo_beta,
        "update.learning_rate": settings.dpo_learning_rate,
        "data.epochs": 1,
    }


def dpo(study: Study, cell: int) -> dict[str, Any]:
    folder, (dtype, start) = study.folder("dpo", cell), DPO_CELLS[cell]
    found = curve(train(dpo_recipe(study, cell), folder))
    keep(study, "dpo", cell, folder)
    return {"dtype": dtype, "start": start, **found, "points": test_points(study, "dpo", cell)}


def curve(run: Run) -> dict[str, Any]:
    """Loss or reward of every step, accuracy where it was evaluated, and seconds of training up to there.

    Writing metrics and samples counts, as in TRL's steps: a row has the time of its step, and for writing the last one.
    """
    steps, points, seconds = [], [], 0.0
    for row in run.metrics:
        if "time/step" in row:
            seconds += row["time/step"] + row.get("time/log", 0.0)
            steps.append(
                {key: value for key, value in row.items() if key in KEPT} | {"seconds": seconds}
            )
        evals = {key: value for key, value in row.items() if key.startswith("eval/reward/")}
        if evals:
            points.append({"step": row["step"], "seconds": seconds, **evals})
    return {
        "steps": steps,
        "evaluations": points,
        "seconds": seconds,
        "peak_gb": peak_gb(),
        "written": time.time(),
    }
