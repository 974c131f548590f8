"""Stages without a counterpart of TRL: a reward model with PPO on it, a calculator, programs with unit tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evaluate import Evaluator
from ours import REWARD, common, curve, rl_recipe, sft_recipe, train
from settings import DIGEST_CELLS, Study

import ascent
from ascent.maths.estimates import estimate
from ascent.rewards.programs import Programs
from ascent.tasks import TASKS

DIGEST = "digest_drafts"
DIGEST_LEARNING_RATE = 1e-5
CODE_LEARNING_RATE = 3e-5
TOOLS = {"use": "tools", "tools": ["calculator"], "announce": False, "max_turns": 10}


def digest(study: Study) -> dict[str, Any]:
    """Imitation, and reward models from many pairs and from few."""
    settings, folder = study.settings, study.folder("digest")
    train(digest_sft_recipe(study), folder / "sft")
    found: dict[str, Any] = {"imitation": digest_scores(study, folder / "sft")}
    for name, (pairs, epochs) in {
        "many": (settings.digest_pairs, 1),
        "few": (settings.digest_few, 4),
    }.items():
        judge = train(digest_rm_recipe(study, pairs, epochs), folder / f"reward_model-{name}")
        kept = ("step", "loss/total", "eval/preference/accuracy", "eval/preference/brier")
        found[name] = {"pairs": pairs, **{key: judge.metrics[-1][key] for key in kept}}
    return found


def digest_sft_recipe(study: Study) -> dict[str, Any]:
    drafts = 2 * study.settings.digest_pairs
    return sft_recipe(study, f"{DIGEST}:{drafts}", study.model, drafts // study.settings.sft_batch)


def digest_rm_recipe(study: Study, pairs: int, epochs: int) -> dict[str, Any]:
    settings = study.settings
    return {
        **common(study),
        "algorithm": "reward_model",
        "model.policy": str(study.folder("digest") / "sft"),
        "data.train": f"{DIGEST}:{pairs}",
        "data.evaluate": f"{DIGEST}@heldout:{settings.digest_heldout}",
        "data.epochs": epochs,
        "data.batch_size": settings.sft_batch,
        "update.learning_rate": 2e-5,
    }


def digest_ppo_recipe(study: Study, cell: int) -> dict[str, Any]:
    settings, folder = study.settings, study.folder("digest")
    pairs, beta, other = DIGEST_CELLS[cell]
    recipe = rl_recipe(
        study, "rlhf", 1, folder / "sft", study.work, settings.digest_steps, DIGEST_LEARNING_RATE
    ) | {
        "data.train": f"{DIGEST}:16384",
        "model.reward_model": str(folder / f"reward_model-{pairs}"),
        "rollouts.prompts_per_step": settings.digest_prompts,
        "rollouts.group_size": 1,
        "rollouts.max_new_tokens": 64,
        "cells.reward_shaping.kl_penalty.beta": beta,
        "rewards": [{"use": "reward_model"}, {"use": "verifier", "weight": 0.0}],
        **other,
    }
    if "model.critic_from" in other:
        recipe["model.critic_from"] = str(folder / "sft")
    if "update.critic_warmup_steps" in other:  # a trial has fewer steps than that
        recipe["update.critic_warmup_steps"] = min(
            recipe["update.critic_warmup_steps"], settings.digest_steps - 1
        )
    return recipe


def digest_ppo(study: Study, cell: int) -> dict[str, Any]:
    """PPO on the scores of a reward model; the task knows the true utility of every summary."""
    folder, (pairs, beta, other) = study.folder("digest"), DIGEST_CELLS[cell]
    run = train(digest_ppo_recipe(study, cell), folder / f"ppo-{cell}")
    scores = digest_scores(study, folder / f"ppo-{cell}", folder / "sft")
    return {"pairs": pairs, "beta": beta, "other": other, **curve(run), **scores}


def digest_scores(study: Study, model: Path, other: Path | None = None) -> dict[str, Any]:
    """Of sampled summaries of held-out posts: true utility, correctness, the win rate over another model's by the true
    preference."""
    task, settings = TASKS[DIGEST], study.settings
    prompts = task.prompts("heldout", settings.digest_heldout)

    def texts(folder: Path) -> list[str]:
        policy = ascent.Policy(str(folder), dtype=settings.dtype, max_new_tokens=64)
        return [each.text for each in policy.sample(prompts)]

    mine = list(zip(prompts, texts(model), strict=True))
    found = {"utility": [task.true_utility(*each) for each in mine]}
    found["correct"] = [task.verify(*each)["correct"] for each in mine]
    if other is not None:
        found["win_rate"] = [
            task.preference(prompt, a, b, strength=4.0)
            for (prompt, a), b in zip(mine, texts(other), strict=True)
        ]
    return {name: vars(estimate(values, seed=0)) for name, values in found.items()}


def tools(study: Study) -> dict[str, Any]:
    """Imitation of solutions with calls, then rlvr; the same questions without tools are stages sft and grpo."""
    settings, folder = study.settings, study.folder("tools")
    train(
        sft_recipe(study, study.work / "data/tools.jsonl", study.model, settings.sft_steps),
        folder / "sft",
    )
    prompts, test = study.work / "data/prompts-1.jsonl", str(study.work / "data/test.jsonl")
    recipe = rl_recipe(
        study, "rlvr", 1, folder / "sft", prompts, settings.extra_steps, study.learning_rate
    )
    run = train(recipe | {"rewards": [{"use": REWARD}], "env": TOOLS}, folder / "rlvr")
    found: dict[str, Any] = curve(run)
    for name in ("sft", "rlvr"):
        result = ascent.evaluate(
            str(folder / name),
            test,
            samples=settings.samples,
            max_new_tokens=settings.max_new_tokens,
            env=TOOLS,
            reward=REWARD,
        )
        found[f"{name} with tools"] = result.as_dict()["metrics"]
        found[f"{name} without"] = Evaluator(study, folder / name).test()
    return found


def code(study: Study) -> dict[str, Any]:
    """From the instruction-tuned model itself: generated functions of one line, scored by their tests."""
    folder = study.folder("code")
    run = train(code_recipe(study), folder / "rlvr")
    tests = {
        name: code_scores(study, model)
        for name, model in (("before", study.model), ("after", folder / "rlvr"))
    }
    return {**curve(run), **tests}


def code_recipe(study: Study) -> dict[str, Any]:
    data, steps = study.work / "data/code.jsonl", study.settings.extra_steps
    recipe = rl_recipe(study, "rlvr", 1, study.model, data, steps, CODE_LEARNING_RATE)
    return recipe | {"rewards": [{"use": "programs", "sandbox": "none"}]}


def code_scores(study: Study, model: Path) -> dict[str, Any]:
    """Functions of the kinds that were trained on, with other numbers, and of other kinds."""
    settings, found = study.settings, {}
    policy = ascent.Policy(str(model), dtype=settings.dtype, max_new_tokens=settings.max_new_tokens)
    grade = Programs(sandbox="none")
    try:
        for name in ("code-test", "code-new"):
            prompts = list(ascent.load_data(str(study.work / f"data/{name}.jsonl"), "prompts"))
            for kind, samples, options in (
                ("greedy", 1, {"greedy": True}),
                ("mean", settings.samples, {}),
            ):
                scores = grade.score(policy.sample(prompts, n=samples, **options))
                right = [each["correct"] for each in scores]
                means = [
                    sum(right[i : i + samples]) / samples for i in range(0, len(right), samples)
                ]
                found[f"{name} {kind}"] = vars(estimate(means, seed=0))
            found[f"{name} example"] = prompts[0].messages[-1].content
    finally:
        grade.close()
    return found
