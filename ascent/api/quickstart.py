"""The quick start: from random weights to a policy that does better than its teachers, in minutes on a laptop.

Without feedback: a tiny model imitates sorted lists of 2 to 6 digits, then sorts lists of 7 to 10 with nothing but a
verifier. The control is the same model, imitating for as long again. With feedback: people demonstrate one style and
prefer the other; a reward model learns what they prefer, and PPO follows it.

The same command again skips stages that are finished and resumes one that is not.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import torch

from ascent.api.evaluate import answered, figures
from ascent.api.stages import Say, stage
from ascent.config.load import load_config
from ascent.maths.estimates import Estimate
from ascent.plan.resolve import Plan, resolve
from ascent.records import Rollout
from ascent.rollouts.generate import SamplingParams
from ascent.runs.folder import read_run
from ascent.tasks import TASKS

PROMPTS = 256

# Overrides by recipe.
Changes = Mapping[str, Sequence[str]]
NONE: Changes = {}


@dataclass(frozen=True)
class Shown:
    """One model of the quick start on the held-out prompts, as the task's own truth sees it."""

    name: str
    folder: Path
    seconds: float
    figures: Mapping[str, Estimate]
    answers: Sequence[Rollout]


@dataclass(frozen=True)
class Outcome:
    """What the quick start ends with: the score that counts, the last stage's run, commands that are worth a try."""

    task: str
    part: str
    shown: tuple[Shown, ...]
    trained: Path
    tries: tuple[str, ...]

    def changed(self) -> list[tuple[Rollout, Rollout]]:
        """Answers of the first model and of the last one, where those of the first scored 0 and of the last 1."""
        verify = TASKS[self.task].verify
        first, last = self.shown[0].answers, next(each for each in self.shown if each.folder == self.trained).answers
        pairs = zip(first, last, strict=True)
        return [(a, b) for a, b in pairs if verify(a.prompt, a.text)[self.part] < verify(b.prompt, b.text)[self.part]]


def sorting(folder: Path, *, seed: int, say: Say, changes: Changes = NONE) -> Outcome:
    """Imitation on short lists, then the verifier on long ones and, beside it, imitation for about as long."""
    sft, rl, control = folder / "sft", folder / "rlvr", folder / "control"
    imitate = _plan("quickstart_sft", seed, [], changes)
    practise = _plan("quickstart_rlvr", seed, [f"model.policy={sft}"], changes)
    longer = _plan("quickstart_control", seed + 1, [f"model.policy={sft}"], changes)
    say("1 of 2: imitate sorted lists of 2 to 6 digits, from random weights")
    stage(imitate, sft, say)
    say("2 of 2: practise on lists of 7 to 10 digits; a verifier says right or wrong. Beside it, in a process of its")
    say("own, runs the control: the same model goes on imitating short lists, for about as long")
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as other:
        beside = other.submit(_unseen, longer, control)
        stage(practise, rl, say)
        beside.result()
    shown = [
        _shown("imitation", sft, "sort_long", seed),
        _shown("imitation, as long again", control, "sort_long", seed),
        _shown("imitation, then practice", rl, "sort_long", seed),
    ]
    tries = (f"ascent train quickstart_rlvr algorithm=grpo model.policy={sft} --run {folder / 'grpo'}",)
    return Outcome("sort_long", "correct", tuple(shown), rl, tries)


def _unseen(plan: Plan, folder: Path) -> None:
    """A stage whose progress nobody watches."""
    one_thread()
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
        stage(plan, folder, lambda line: None)


def one_thread() -> None:
    """Two processes share two cores best with a thread each; and results then do not depend on how many there are."""
    torch.set_num_threads(1)


def feedback(folder: Path, *, seed: int, say: Say, changes: Changes = NONE) -> Outcome:
    """Demonstrations of one style, a labeller who prefers the other, a reward model, PPO."""
    sft, scores, ppo = folder / "sft", folder / "reward_model", folder / "ppo"
    begin = _plan("quickstart_demonstrations", seed, [], changes)
    judge = _plan("quickstart_reward_model", seed, [f"model.policy={sft}"], changes)
    models = [f"model.policy={sft}", f"model.reward_model={scores}"]
    follow = _plan("quickstart_ppo", seed, models, changes)
    stages = [
        ("1 of 3: imitate demonstrations; 70% of them list digits in ascending order", begin, sft),
        ("2 of 3: a reward model of a labeller who prefers descending order", judge, scores),
        ("3 of 3: PPO with a critic on the reward model's scores", follow, ppo),
    ]
    for words, plan, place in stages:
        say(words)
        stage(plan, place, say)
    shown = [_shown("imitation", sft, "contrary", seed), _shown("imitation, then feedback", ppo, "contrary", seed)]
    without_kl = f"cells.reward_shaping.kl_penalty.beta=0 --run {folder / 'no-kl'}"
    closer = f"ascent train quickstart_ppo {' '.join(models)} {without_kl}"
    return Outcome("contrary", "correct", tuple(shown), ppo, (closer,))


def seconds(folder: Path) -> float:
    """How long a run's steps took, by the times in its metrics."""
    times = [record["timestamp"] for record in read_run(folder).metrics]
    return float(times[-1] - times[0]) if len(times) > 1 else 0.0


def _plan(recipe: str, seed: int, ours: Sequence[str], changes: Changes) -> Plan:
    return resolve(load_config(recipe, [f"seed={seed}", *ours, *changes.get(recipe, ())]))


def _shown(name: str, folder: Path, task: str, seed: int) -> Shown:
    prompts = TASKS[task].prompts("heldout", PROMPTS, seed)
    rollouts = answered(str(folder), prompts, 0, SamplingParams(max_new_tokens=16, seed=seed))
    scores = [TASKS[task].verify(each.prompt, each.text) for each in rollouts]
    return Shown(name, folder, seconds(folder), figures(rollouts, scores, samples=0, seed=seed), rollouts)
