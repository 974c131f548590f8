"""Stages without a counterpart of TRL: a reward model with PPO on it, a calculator, programs with unit tests."""

from __future__ import annotations

import json
from typing import Any

from evaluate import Evaluator
from ours import REWARD, curve, rl_recipe, sft_recipe, train
from settings import Study

import ascent
from ascent.tasks import TASKS

BETAS = (0.1, 0.0)  # KL in the reward, and none: the curve of over-optimization
DIGEST_LEARNING_RATE = 1e-5
TOOLS = {"use": "tools", "tools": ["calculator"], "announce": False, "max_turns": 10}


def digest(study: Study) -> dict[str, Any]:
    """Imitation, a reward model from pairs, PPO on its scores; the task knows the true utility of every summary."""
    settings, folder = study.settings, study.folder("digest")
    steps = 2 * settings.digest_rows // settings.sft_batch
    imitation = sft_recipe(study, study.work / "data/digest-sft.jsonl", study.model, steps)
    train(imitation, folder / "sft")
    pairs = {"algorithm": "reward_model", "data.train": f"digest:{settings.digest_rows}", "data.epochs": 1}
    pairs |= {"model.policy": str(folder / "sft"), "model.dtype": settings.dtype}
    pairs |= {"data.evaluate": f"digest@heldout:{settings.prompts}", "data.batch_size": settings.sft_batch}
    judge = train({**pairs, "update.learning_rate": 2e-5}, folder / "reward_model")
    found: dict[str, Any] = {"reward_model": judge.metrics[-1], "imitation": digest_scores(study, folder / "sft")}
    for beta in BETAS:
        recipe = rl_recipe(
            study, "rlhf", 1, folder / "sft", study.work, settings.digest_steps, DIGEST_LEARNING_RATE
        ) | {
            "run.evaluate_every": settings.save_every,
            "data.train": "digest:4096", "data.evaluate": f"digest@heldout:{settings.digest_prompts}",
            "model.reward_model": str(folder / "reward_model"), "rollouts.prompts_per_step": settings.digest_prompts,
            "rollouts.group_size": 1, "rollouts.max_new_tokens": 64, "cells.reward_shaping.kl_penalty.beta": beta,
            "rewards": [{"use": "reward_model"}, {"use": "verifier", "weight": 0.0}],
        }  # fmt: skip
        run = train(recipe, folder / f"ppo-{beta}")
        found[f"ppo beta {beta}"] = {**curve(run), **digest_scores(study, folder / f"ppo-{beta}", folder / "sft")}
    return found


def digest_scores(study: Study, model: Any, other: Any = None) -> dict[str, float]:
    """True utility and correctness on held-out posts, and the win rate over another model by the true preference."""
    task = TASKS["digest"]
    prompts = task.prompts("heldout", 2 * study.settings.digest_prompts)
    texts = {}
    for name in {model, other} - {None}:
        policy = ascent.Policy(str(name), dtype=study.settings.dtype, max_new_tokens=64)
        texts[name] = [each.text for each in policy.sample(prompts)]
    mine = list(zip(prompts, texts[model], strict=True))
    found = {"utility": sum(task.true_utility(*each) for each in mine) / len(mine)}
    found["correct"] = sum(task.verify(*each)["correct"] for each in mine) / len(mine)
    if other is not None:
        wins = [task.preference(prompt, a, b, strength=4.0) for (prompt, a), b in zip(mine, texts[other], strict=True)]
        found["win_rate"] = sum(wins) / len(wins)
    return found


def tools(study: Study) -> dict[str, Any]:
    """Imitation of solutions with calls, then rlvr; the same questions without tools are stages sft and grpo."""
    settings, folder = study.settings, study.folder("tools")
    train(sft_recipe(study, study.work / "data/tools.jsonl", study.model, settings.sft_steps), folder / "sft")
    prompts, test = study.work / "data/prompts-1.jsonl", str(study.work / "data/test.jsonl")
    recipe = rl_recipe(study, "rlvr", 1, folder / "sft", prompts, settings.extra_steps, study.learning_rate)
    run = train(recipe | {"rewards": [{"use": REWARD}], "env": TOOLS}, folder / "rlvr")
    found: dict[str, Any] = curve(run)
    for name in ("sft", "rlvr"):
        result = ascent.evaluate(
            str(folder / name), test, samples=settings.samples, max_new_tokens=settings.max_new_tokens, env=TOOLS,
            reward=REWARD,
        )  # fmt: skip
        found[f"{name} with tools"] = result.as_dict()["metrics"]
        found[f"{name} without"] = Evaluator(study, folder / name).test()
    return found


def code(study: Study) -> dict[str, Any]:
    """From the instruction-tuned model itself: generated functions of one line, scored by their tests."""
    folder, data = study.folder("code"), study.work / "data"
    steps, every = study.settings.extra_steps, study.settings.save_every
    recipe = rl_recipe(study, "rlvr", 1, study.model, data / "code.jsonl", steps, study.learning_rate)
    recipe |= {"rewards": [{"use": "programs", "sandbox": "none"}], "run.evaluate_every": every}
    run = train(recipe | {"data.evaluate": str(data / "code-test.jsonl")}, folder / "rlvr")
    rows = (data / "code-test.jsonl").read_text().splitlines()
    return {**curve(run), "test_rows": len(rows), "example": json.loads(rows[0])["prompt"][0]["content"]}
