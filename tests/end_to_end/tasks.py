"""Small studies of tasks that no other study trains on: can their rewards be learnt, and what becomes of every part?

`practised`: imitation, then a row on the task's own verifier: countdown, and tagged sums with three rewards at once.
`summarized`: imitation of summaries of mixed quality, a reward model of the task's preferences, PPO. `iterated`: the
shipped recipe of rounds as it is. Every figure comes from held-out prompts. A study is a pure function of its seed;
several processes may run studies in one folder.
"""

from __future__ import annotations

import contextlib
import io
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ascent.api.evaluate import evaluate, generate_answers
from ascent.api.iterate import iterate
from ascent.config.iterate import iterate_config
from ascent.config.load import merge_configs, read_recipe
from ascent.models import tiny
from ascent.rollouts.generate import GREEDY, SamplingParams
from ascent.runs.folder import read_run
from ascent.setup.rewards import ModelScorer
from ascent.tasks import TASKS
from tests.end_to_end.policies import REWARDED, Practice, alone, quietly, recipe_of
from tests.end_to_end.preferring import nats
from tests.end_to_end.studies import Recipe, asked, trained, write

SEEDS = range(1, 6)  # settings were chosen on seed 0
PROMPTS, SAMPLES = 256, 4
LONGEST = 160  # tokens of a question with its answer
Found = dict[str, float]


@dataclass(frozen=True)
class Begun:
    """What a random tiny model imitates. Its tokenizer knows the words and numbers of the task by heart."""

    task: str
    shown: Recipe
    vocabulary: int
    attempts: bool = (
        False  # imitate answers of mixed quality, where demonstrations leave nothing to be learnt
    )


def begin(root: Path, begun: Begun, seed: int) -> Path:
    """The run that imitates, once for all studies of a seed; whoever comes while it is trained waits."""
    task, folder = TASKS[begun.task], root / f"task-begun-{begun.task}-{seed}"
    with alone(folder.with_suffix(".lock")):
        shown = task.demonstrations("train", 2048, 0)
        texts = [message.content for each in shown for message in each.messages]
        if not (folder / "sft").exists():
            tiny.create(folder / "start", texts=texts, vocabulary=begun.vocabulary, seed=seed)
        data = f"{begun.task}:{begun.shown.records}"
        if begun.attempts:
            judged = task.unpaired("train", begun.shown.records, seed)
            rows = [
                {"prompt": asked(each.prompt), "completion": each.answer[0].content}
                for each in judged
            ]
            data = str(write(folder / "attempts.jsonl", rows))
        limits = {"data": {"max_tokens": LONGEST}}
        return trained(
            "sft", begun.shown, data, folder / "start", folder / "sft", seed, more=limits
        )


def scored(model: Path, task: str, max_new_tokens: int) -> Found:
    """Every part of drawn answers, ROUGE-L where answers are texts, and how many were cut off."""
    found = evaluate(
        str(model), task, samples=SAMPLES, limit=PROMPTS, max_new_tokens=max_new_tokens
    )
    drawn = f"mean@{SAMPLES}/"
    return {
        name.removeprefix(drawn): each.value
        for name, each in found.metrics.items()
        if name.startswith(drawn)
    }


def both(before: Found, after: Found) -> Found:
    ways = {"before": before, "after": after}
    return {
        f"{when}_{name}": value for when, found in ways.items() for name, value in found.items()
    }


# --- rewards of the task's own verifier ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Practised:
    begun: Begun
    row: str
    practice: Practice
    weights: Mapping[str, float] = field(
        default_factory=dict
    )  # of the verifier's parts; being right alone if none


COUNTING = Begun("countdown", Recipe(600, 3e-3, 16384), vocabulary=400)
TAGGING = Begun("tagged", Recipe(1200, 3e-3, 65536), vocabulary=400)
_COUNTDOWN = Practice(
    learning_rate=8e-4, steps=120, sequences=256, task="countdown", max_new_tokens=16
)
PARTS = {"correct": 1.0, "format": 0.5, "brief": 0.5}
_TAGGED = Practice(steps=40, sequences=256, task="tagged", max_new_tokens=16)
PRACTISED: dict[str, Practised] = {
    "countdown": Practised(COUNTING, "rlvr", _COUNTDOWN),
    "tagged-gdpo": Practised(TAGGING, "gdpo", _TAGGED, PARTS),
    "tagged-grpo": Practised(TAGGING, "grpo", _TAGGED, PARTS),
}
SHUFFLED = ("countdown", "tagged-grpo")  # again with a coin for a reward


def practised(root: Path, name: str, seed: int, *, shuffled: bool = False) -> Found:
    """Every part before and after a row; with `shuffled`, a fair coin is the reward."""
    study = PRACTISED[name]
    start = begin(root, study.begun, seed)
    recipe = recipe_of(study.row, study.practice, start, seed)
    weighted = {"weights": dict(study.weights)} if study.weights else {}
    recipe["rewards"] = [
        {"use": f"{REWARDED}:shuffled"} if shuffled else {"use": "verifier", **weighted}
    ]
    recipe = merge_configs(
        recipe, {"update": {"schedule": "linear", "warmup_steps": study.practice.steps // 10}}
    )
    folder = root / f"task-{name}-{seed}{'-shuffled' if shuffled else ''}"
    spent = quietly(recipe, folder)
    before, after = (
        scored(each, study.begun.task, study.practice.max_new_tokens) for each in (start, folder)
    )
    return {**both(before, after), "training_cpu_seconds": spent}


# --- a reward model of summaries -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Summarized:
    """Imitation of the task's attempts, as people write; a reward model from the same; PPO held near them by KL."""

    begun: Begun
    judge: Recipe
    steps: int
    prompts_per_step: int
    learning_rate: float
    beta: float
    max_new_tokens: int = 40


DIGESTED = Summarized(
    Begun("digest", Recipe(450, 3e-3, 16384, batch_size=32), vocabulary=400, attempts=True),
    judge=Recipe(80, 1e-3, 2560, batch_size=32),
    steps=20,
    prompts_per_step=64,
    learning_rate=3e-4,
    beta=0.1,
)


def summarized(root: Path, seed: int, study: Summarized = DIGESTED) -> Found:
    """Truth, proxy, KL to the start in nats an answer and the truth's parts, before and after PPO on a reward model."""
    start = begin(root, study.begun, seed)
    task, name = TASKS[study.begun.task], study.begun.task
    limits = {"data": {"max_tokens": LONGEST, "evaluate": f"{name}@heldout:512"}}
    more = merge_configs(limits, {"run": {"evaluate_every": study.judge.steps}})
    pairs = f"{name}:{study.judge.records}"
    judge = trained(
        "reward_model",
        study.judge,
        pairs,
        start,
        root / f"task-{name}-judge-{seed}",
        seed,
        more=more,
    )
    folder = root / f"task-{name}-rlhf-{seed}"
    recipe = {
        "algorithm": "rlhf",
        "seed": seed,
        "model": {"policy": str(start), "reward_model": str(judge)},
        "data": {"train": f"{name}:2048"},
        "rollouts": {
            "prompts_per_step": study.prompts_per_step,
            "max_new_tokens": study.max_new_tokens,
        },
        "cells": {"reward_shaping": {"kl_penalty": {"beta": study.beta}}},
        "update": {"learning_rate": study.learning_rate, "target_kl": 0.05},
        "run": {"steps": study.steps, "save_every": study.steps},
    }
    spent = quietly(recipe, folder)
    before, after = (
        scored(each, name, study.max_new_tokens) | told(each, study, judge, start, seed)
        for each in (start, folder)
    )
    agreement = read_run(judge).metrics[-1]["eval/preference/accuracy"]
    bayes = task.bayes_accuracy(task.pairs("heldout", 512), strength=4.0)
    return {
        **both(before, after),
        "agreement": agreement,
        "bayes": bayes,
        "training_cpu_seconds": spent,
    }


def told(model: Path, study: Summarized, judge: Path, start: Path, seed: int) -> Found:
    """What the truth and the reward model think of one drawn answer to each prompt, and how far they are from start."""
    task = TASKS[study.begun.task]
    prompts = task.prompts("heldout", PROMPTS, seed)
    found = generate_answers(str(model), prompts, 1, SamplingParams(study.max_new_tokens, seed))
    answers = [each for each in found if each.sample != GREEDY]
    scores = ModelScorer(str(judge), together=True).score(answers)
    return {
        "truth": statistics.fmean(task.true_utility(each.prompt, each.text) for each in answers),
        "proxy": statistics.fmean(score for score in scores if score is not None),
        "kl": nats(answers, start),
    }


# --- the shipped recipe of rounds ------------------------------------------------------------------------------------

ROUNDS = "rlhf_iterated"


def iterated(root: Path, seed: int) -> Found:
    """The truth of the first policy and after every round, and the win rates over the first policy."""
    recipe = iterate_config(merge_configs(read_recipe(ROUNDS), {"seed": seed}), ROUNDS)
    with contextlib.redirect_stderr(io.StringIO()):
        done = iterate(recipe, run=root / f"rounds-{seed}", say=lambda line: None)
    found: Found = {}
    for number, each in enumerate(done, 1):
        assert each.comparison is not None
        after, before = each.comparison["scores"]
        found |= {
            "truth_0": before,
            f"truth_{number}": after,
            f"win_{number}": each.comparison["win_rate"]["value"],
        }
        found[f"win_low_{number}"] = each.comparison["win_rate"]["low"]
    return found
