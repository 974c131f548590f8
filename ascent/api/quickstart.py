"""The quick start: from random weights to a policy that beats its demonstrations, in minutes on a laptop.

Verifiable rewards: a tiny model imitates sorted lists of 2 to 4 digits, then learns to sort 7 to 10 from a verifier
alone; the control is the same model after imitating for as long again. Preferences (`rlhf`): demonstrations show one
style, the annotator prefers the other; a reward model learns the preference, and PPO optimizes it.

The same call again skips finished stages and resumes unfinished ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import torch

from ascent.api.evaluate import estimate_metrics, generate_answers
from ascent.api.stages import Say, stage
from ascent.maths.estimates import Estimate
from ascent.plan.load import load_config
from ascent.plan.resolve import Plan, resolve
from ascent.records import Rollout
from ascent.rollouts.generate import SamplingParams
from ascent.runs.folder import read_run
from ascent.tasks import TASKS

PROMPTS = 256

RecipeOverrides = Mapping[str, Sequence[str]]
NO_OVERRIDES: RecipeOverrides = {}


@dataclass(frozen=True)
class ModelResult:
    """One model on the held-out prompts, scored by the task's verifier."""

    name: str
    folder: Path
    seconds: float
    metrics: Mapping[str, Estimate]
    answers: Sequence[Rollout]


@dataclass(frozen=True)
class QuickstartResult:
    """The models, the score to compare them by (`part`), the last stage's run, and commands to try next.

    `rewards` has the mean reward of every step of the last stage.
    """

    task: str
    part: str
    models: tuple[ModelResult, ...]
    trained: Path
    next_commands: tuple[str, ...]
    rewards: tuple[float, ...] = ()

    def improved(self) -> list[tuple[Rollout, Rollout]]:
        """Answers of the first and of the trained model, where the score rose."""
        verify = TASKS[self.task].verify
        first = self.models[0].answers
        last = next(each for each in self.models if each.folder == self.trained).answers
        pairs = zip(first, last, strict=True)
        return [
            (a, b)
            for a, b in pairs
            if verify(a.prompt, a.text)[self.part] < verify(b.prompt, b.text)[self.part]
        ]


def quickstart(
    *,
    rlhf: bool = False,
    run: str | Path | None = None,
    seed: int = 0,
    progress: bool = True,
    say: Say = print,
) -> QuickstartResult:
    """Train a small policy from random weights: imitation, then rewards; with `rlhf`, preferences.

    rlhf: learn from preferences, with a reward model and PPO.
    run: the folder of all stages; by default runs/quickstart or runs/quickstart-rlhf.
    seed: the same seed gives the same bits.
    progress: show progress on standard error.
    say: receives notes, one line each.

    Returns a `QuickstartResult`. Raises StageStopped on a signal.

        result = quickstart(seed=1)
    """
    use_one_thread()
    folder = (
        Path(run) if run is not None else Path("runs", "quickstart-rlhf" if rlhf else "quickstart")
    )
    return (train_from_preferences if rlhf else train_from_verifier)(
        folder, seed=seed, progress=progress, say=say
    )


def train_from_verifier(
    folder: Path,
    *,
    seed: int,
    say: Say,
    progress: bool = True,
    overrides: RecipeOverrides = NO_OVERRIDES,
) -> QuickstartResult:
    """Imitation on short lists, then RL on long ones; at the same time, as a control, imitation for about as long."""
    sft, rl, control = folder / "sft", folder / "rlvr", folder / "control"
    sft_plan = _plan("quickstart_sft", seed, [], overrides)
    rl_plan = _plan("quickstart_rlvr", seed, [f"model.policy={sft}"], overrides)
    control_plan = _plan("quickstart_control", seed + 1, [f"model.policy={sft}"], overrides)
    say("1 of 2: imitate sorted lists of 2 to 4 digits, from random weights")
    stage(sft_plan, sft, say, progress=progress)
    say("2 of 2: practice on lists of 7 to 10 digits; a verifier says right or wrong")
    say("  beside it a control: the same model imitates short lists for about as long")
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as other:
        future = other.submit(_run_silently, control_plan, control)
        stage(rl_plan, rl, say, progress=progress)
        future.result()
    models = (
        _evaluate("imitation", sft, "sort_long", seed),
        _evaluate("imitation, as long again", control, "sort_long", seed),
        _evaluate("imitation, then practice", rl, "sort_long", seed),
    )
    next_commands = (
        f"ascent train quickstart_rlvr algorithm=grpo model.policy={sft} --run {folder / 'grpo'}",
    )
    return QuickstartResult("sort_long", "correct", models, rl, next_commands, _rewards(rl))


def _run_silently(plan: Plan, folder: Path) -> None:
    use_one_thread()
    stage(plan, folder, lambda line: None, progress=False)


def use_one_thread() -> None:
    """Two processes share two cores best with one thread each, and results do not depend on the number of cores."""
    torch.set_num_threads(1)


def train_from_preferences(
    folder: Path,
    *,
    seed: int,
    say: Say,
    progress: bool = True,
    overrides: RecipeOverrides = NO_OVERRIDES,
) -> QuickstartResult:
    """Demonstrations of one style, an annotator who prefers the other, a reward model, PPO."""
    sft, reward_model, ppo = folder / "sft", folder / "reward_model", folder / "ppo"
    models = [f"model.policy={sft}", f"model.reward_model={reward_model}"]
    stages = [
        (
            "1 of 3: imitate demonstrations; 70% of them list digits in ascending order",
            _plan("quickstart_demonstrations", seed, [], overrides),
            sft,
        ),
        (
            "2 of 3: a reward model of an annotator who prefers descending order",
            _plan("quickstart_reward_model", seed, models[:1], overrides),
            reward_model,
        ),
        (
            "3 of 3: PPO with a critic on the reward model's scores",
            _plan("quickstart_ppo", seed, models, overrides),
            ppo,
        ),
    ]
    for words, plan, place in stages:
        say(words)
        stage(plan, place, say, progress=progress)
    results = (
        _evaluate("imitation", sft, "contrary", seed),
        _evaluate("imitation, then feedback", ppo, "contrary", seed),
    )
    without_kl = f"cells.reward_shaping.kl_penalty.beta=0 --run {folder / 'no-kl'}"
    next_commands = (f"ascent train quickstart_ppo {' '.join(models)} {without_kl}",)
    return QuickstartResult("contrary", "correct", results, ppo, next_commands, _rewards(ppo))


def _plan(recipe: str, seed: int, own: Sequence[str], overrides: RecipeOverrides) -> Plan:
    return resolve(load_config(recipe, [f"seed={seed}", *own, *overrides.get(recipe, ())]))


def _evaluate(name: str, folder: Path, task: str, seed: int) -> ModelResult:
    prompts = TASKS[task].prompts("heldout", PROMPTS, seed)
    rollouts = generate_answers(
        str(folder), prompts, 0, SamplingParams(max_new_tokens=16, seed=seed)
    )
    scores = [TASKS[task].verify(each.prompt, each.text) for each in rollouts]
    metrics = estimate_metrics(rollouts, scores, samples=0, seed=seed)
    return ModelResult(name, folder, _training_seconds(folder), metrics, rollouts)


def _rewards(folder: Path) -> tuple[float, ...]:
    return tuple(
        record["reward/mean"] for record in read_run(folder).metrics if "reward/mean" in record
    )


def _training_seconds(folder: Path) -> float:
    times = [record["timestamp"] for record in read_run(folder).metrics]
    return float(times[-1] - times[0]) if len(times) > 1 else 0.0
