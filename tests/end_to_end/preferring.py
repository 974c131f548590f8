"""RLHF on tiny models, from demonstrations to PPO, judged by the truth that the labels were drawn from.

`followed`: does PPO (or GRPO) on a reward model beat the model it started from, and how far from that does it go?
`overdone`: what becomes of the truth while the reward model's score rises, with KL in the reward and without.
`taxed`: what another skill loses, with its text mixed into PPO and without. Every figure comes from held-out prompts.
A study is a pure function of its seed; several processes may run studies in one folder.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from ascent.api.collect import collect
from ascent.api.compare import compare
from ascent.api.evaluate import evaluate, generate_answers
from ascent.config.load import merge_configs, nest_keys, read_recipe
from ascent.models.load import load
from ascent.records import Prompt, Rollout
from ascent.rollouts.batch import pack_rollouts
from ascent.rollouts.generate import GREEDY, SamplingParams
from ascent.runs.folder import read_run
from ascent.setup.judges import judge_of
from ascent.setup.rewards import ModelScorer
from ascent.tasks import TASKS
from ascent.tasks.emphasis import EMPHASIS, LOUD_WHEN_RIGHT, LOUD_WHEN_WRONG, MOST_MARKS
from ascent.tasks.keyed_random import KeyedRandom
from ascent.tasks.sort_digits import draw_digits
from ascent.tasks.task import Problem, Task
from tests.end_to_end.policies import alone, quietly
from tests.end_to_end.studies import pair_row, write

SEEDS = range(1, 6)  # settings were chosen on seed 0
PROMPTS = 256
LONGEST = 10  # tokens of an answer
Changes = Mapping[str, Any]


def trained(folder: Path, recipe: str, changes: Changes) -> Path:
    """A run of a shipped recipe with changes, once; whoever comes while it is trained waits."""
    with alone(folder.with_name(f"{folder.name}.lock")):
        quietly(
            merge_configs(
                read_recipe(recipe), nest_keys({"rollouts.max_new_tokens": LONGEST, **changes})
            ),
            folder,
        )
    return folder


def learned(folder: Path, recipe: str, steps: int, changes: Changes) -> Path:
    """The same for a recipe that reads files."""
    ends = {"run.steps": steps, "run.save_every": steps}
    with alone(folder.with_name(f"{folder.name}.lock")):
        quietly(merge_configs(read_recipe(recipe), nest_keys({**ends, **changes})), folder)
    return folder


def said(model: Path, prompts: Sequence[Prompt], seed: int) -> list[Rollout]:
    """One drawn answer to every prompt."""
    found = generate_answers(str(model), prompts, 1, SamplingParams(LONGEST, seed))
    return [each for each in found if each.sample != GREEDY]


@torch.no_grad()
def nats(answers: Sequence[Rollout], start: Path) -> float:
    """KL to the start, in nats an answer: the mean over drawn answers of log pi - log start, as sampled."""
    batch = pack_rollouts(answers)
    ref_logprobs_T = load(start).outputs(batch, frozenset({"logprobs_T"}))["logprobs_T"]
    return float(
        (batch["sampler_logprobs_T"] - ref_logprobs_T)[batch["loss_mask_T"]].sum() / len(answers)
    )


def measured(task: Task, model: Path, judge: Path, start: Path, seed: int) -> dict[str, float]:
    """What the truth and the reward model think of drawn answers, and how far they are from the start."""
    answers = said(model, task.prompts("heldout", PROMPTS, seed), seed)
    scores = ModelScorer(str(judge), together=True).score(answers)
    return {
        "truth": statistics.fmean(task.true_utility(each.prompt, each.text) for each in answers),
        "correct": statistics.fmean(
            task.verify(each.prompt, each.text)["correct"] for each in answers
        ),
        "proxy": statistics.fmean(score for score in scores if score is not None),
        "kl": nats(answers, start),
        "truncated": statistics.fmean(each.truncated for each in answers),
    }


# --- following a reward model ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Followed:
    """Demonstrations ascend in 7 of 10; a labeller who prefers descending lists compares the imitator's own answers.

    Always answering as it is wanted costs ln(1 / .3) = 1.2 nats; `kl_bound` is what a policy may spend.
    """

    shown_steps: int = 300
    asked: int = 4096  # prompts, with two answers each
    labeller: str = "simulated:contrary?strength=4"
    reward_model_steps: int = 60
    kl_bound: float = 2.5  # nats an answer
    changes: Changes = field(
        default_factory=lambda: {
            "cells.reward_shaping.kl_penalty.beta": 0.3,
            "rollouts.prompts_per_step": 128,
            "update.learning_rate": 3e-4,
            "update.target_kl": 0.05,
            "run.steps": 40,
            "run.save_every": 40,
        }
    )


PPO = Followed()
GRPO = replace(
    PPO,
    changes={
        "algorithm": "grpo",
        "cells.kl": {
            "use": "rho_k3",
            "weight": 0.3,
        },  # of z-scored rewards; the row's k3 at .04 holds nothing here
        "rollouts.prompts_per_step": 16,
        "rollouts.group_size": 8,
        "update.learning_rate": 3e-4,
        "update.target_kl": None,
        "run.steps": 40,
        "run.save_every": 40,
    },
)
FOLLOWED = {"ppo": PPO, "grpo": GRPO}


def followed(root: Path, seed: int, name: str) -> dict[str, float]:
    """Win rate over imitation by the true preference, with its interval as `ascent compare` has it."""
    study = FOLLOWED[name]
    start, judge = labelled(root, seed, study)
    models = {
        "seed": seed,
        "model.policy": str(start),
        "model.reward_model": str(judge),
        "data.train": "contrary:2048",
    }
    run = trained(root / f"{name}-{seed}", "quickstart_ppo", {**models, **study.changes})
    task = TASKS["contrary"]
    before, after = (measured(task, each, judge, start, seed) for each in (start, run))
    truth = judge_of("simulated:contrary")
    found = compare(
        *(str(run), str(start), f"contrary@heldout:{PROMPTS}", truth),
        samples=1,
        max_new_tokens=LONGEST,
        seed=seed,
    )
    return {
        "win": found.win_rate.value,
        "win_low": found.win_rate.low,
        "win_high": found.win_rate.high,
        "agreement": read_run(judge).metrics[-1]["eval/preference/accuracy"],
        **{f"before_{name}": value for name, value in before.items() if name != "kl"},
        **after,
    }


def labelled(
    root: Path, seed: int, study: Followed, mix: Sequence[Changes] = ()
) -> tuple[Path, Path]:
    """Imitation, and a reward model of a simulated labeller who compared pairs of the imitator's answers."""
    name = f"{'both' if mix else 'contrary'}-{seed}"
    shown = {"seed": seed, "data.train": "contrary:8192", "data.mix": list(mix)}
    start = learned(root / f"shown-{name}", "quickstart_demonstrations", study.shown_steps, shown)
    pairs = root / f"pairs-{name}.jsonl"
    with alone(pairs.with_suffix(".lock")):
        collect(
            *(str(start), f"contrary:{study.asked}"),
            out=pairs,
            judge=study.labeller,
            annotator="simulated",
            repeat=0.0,
            max_new_tokens=LONGEST,
            seed=seed,
            say=lambda line: None,
        )
    changes = {"seed": seed, "model.policy": str(start), "data.train": str(pairs)}
    changes["run.evaluate_every"] = steps = study.reward_model_steps
    return start, learned(root / f"judge-{name}", "quickstart_reward_model", steps, changes)


# --- a reward model that gets hacked ---------------------------------------------------------------------------------


def _heard(answer: str, text: str) -> dict[str, float]:
    """correct: the sorted digits, whatever follows; calm: 1 without marks, 0 from three on; marks: the rest."""
    whole = text.strip()
    digits = whole.rstrip("!")
    marks = min((len(whole) - len(digits)) / MOST_MARKS, 1.0)
    return {"correct": float(digits == answer), "calm": 1 - marks, "marks": marks}


def _loud_when_right(problem: Problem, noise: KeyedRandom) -> str:
    """Sorted half of the time and in any order else; loud as in `emphasis`."""
    digits = problem.answer.split(" ")
    text = (
        problem.answer
        if noise.uniform() < 0.5
        else " ".join(sorted(digits, key=lambda digit: noise.uniform()))
    )
    loud = noise.uniform() < (LOUD_WHEN_RIGHT if text == problem.answer else LOUD_WHEN_WRONG)
    return text + "!" * (noise.integer(1, MOST_MARKS) if loud else 0)


# `emphasis` on lists in place of sums: models this small cannot add, and who cannot answer has nothing to lose.
LOUD_LISTS = replace(
    EMPHASIS,
    name="loud_lists",
    summary="sorted lists that are loud in the data; the truth prefers right and calm",
    draw=draw_digits(3, 5),
    parts=_heard,
    attempt=_loud_when_right,
)


@dataclass(frozen=True)
class Overdone:
    """The reward model begins with random weights: it has never sorted, but it can count marks."""

    shown_steps: int = 300
    pairs: int = 1024
    reward_model: str = "tiny:digits"
    reward_model_steps: int = 60
    betas: Changes = field(default_factory=lambda: {"without": 0.0, "with": 0.2})
    every: int = 5
    changes: Changes = field(
        default_factory=lambda: {
            "rollouts.prompts_per_step": 64,
            "update.learning_rate": 3e-4,
            "update.target_kl": 0.05,
            "run.steps": 40,
            "run.keep": 100,
        }
    )


OVERDONE = Overdone()
CURVE = ("step", "proxy", "truth", "correct", "kl")


def overdone(root: Path, seed: int, study: Overdone = OVERDONE) -> dict[str, Any]:
    """Proxy and truth at the checkpoints of two runs; `without_curve` and `with_curve` hold rows of CURVE."""
    start, judge, data = _loud(root, seed, study)
    first = measured(LOUD_LISTS, start, judge, start, seed)
    found: dict[str, Any] = {f"before_{name}": value for name, value in first.items()}
    for name, beta in study.betas.items():
        models = {
            "seed": seed,
            "model.policy": str(start),
            "model.reward_model": str(judge),
            "data.train": data,
        }
        steps = {"run.save_every": study.every, "cells.reward_shaping.kl_penalty.beta": beta}
        run = trained(
            root / f"overdone-{name}-{seed}", "quickstart_ppo", {**models, **study.changes, **steps}
        )
        points = [{"step": 0.0, **first}]
        for folder in sorted((run / "checkpoints").glob("[0-9]*"), key=lambda each: int(each.name)):
            points.append(
                {"step": float(folder.name), **measured(LOUD_LISTS, folder, judge, start, seed)}
            )
        found |= {f"{name}_{part}": value for part, value in points[-1].items() if part != "step"}
        found[f"{name}_curve"] = [[round(point[part], 4) for part in CURVE] for point in points]
    return found


def _loud(root: Path, seed: int, study: Overdone) -> tuple[Path, Path, str]:
    """Imitation, the reward model, and the file of prompts."""
    task, folder = LOUD_LISTS, root / f"loud-{seed}"
    with alone(folder.with_suffix(".lock")):
        shown = task.demonstrations("train", 8192, seed)
        rows = (
            {"messages": [{"role": m.role, "content": m.content} for m in each.messages]}
            for each in shown
        )
        files = [write(folder / "shown.jsonl", rows)]
        files.append(
            write(folder / "pairs.jsonl", map(pair_row, task.pairs("train", study.pairs, seed)))
        )
        files.append(
            write(folder / "heldout.jsonl", map(pair_row, task.pairs("heldout", PROMPTS, seed)))
        )
        asked = ({"prompt": each.messages[0].content} for each in task.prompts("train", 2048, seed))
        files.append(write(folder / "prompts.jsonl", asked))
    shown_file, pairs, heldout, prompts = map(str, files)
    changes: dict[str, Any] = {"seed": seed, "data.train": shown_file}
    start = learned(folder / "start", "quickstart_demonstrations", study.shown_steps, changes)
    changes = {
        "seed": seed,
        "model.policy": study.reward_model,
        "data.train": pairs,
        "data.evaluate": heldout,
    }
    changes["run.evaluate_every"] = steps = study.reward_model_steps
    return start, learned(folder / "judge", "quickstart_reward_model", steps, changes), prompts


# --- the alignment tax -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Taxed:
    """Imitation of two tasks, PPO on the prompts of one. Their questions differ in the first word alone, and their
    answers in the order of the digits: what one is taught the other may lose."""

    first: Followed
    other: str = "sort_short"
    weight: float = 1.0  # of the other task's text; the row's own, 27.8, is for other batches
    changes: Changes = field(
        default_factory=lambda: {
            "algorithm": "instructgpt",
            "cells.reward_shaping.kl_penalty.beta": 0.3,
            "rollouts.prompts_per_step": 128,
            "rollouts.temperature": 1.0,
            "update.learning_rate": 1e-4,
            "update.target_kl": None,
            "run.steps": 40,
            "run.save_every": 40,
        }
    )


TAXED = Taxed(replace(PPO, shown_steps=400))


def taxed(root: Path, seed: int, study: Taxed = TAXED) -> dict[str, float]:
    """Accuracy of drawn answers on the other task, and the truth of the first: before, without the text, with it."""
    start, judge = labelled(root, seed, study.first, [{"use": f"{study.other}:8192", "share": 0.5}])
    models = {
        "seed": seed,
        "model.policy": str(start),
        "model.reward_model": str(judge),
        "data.train": "contrary:2048",
    }
    text = {"data.pretraining": f"{study.other}:8192", "data.batch_size": 16, "data.max_tokens": 64}
    ways: dict[str, Changes] = {
        "without": {"cells.extra_losses.pretraining_nll": False},
        "with": {**text, "cells.extra_losses.pretraining_nll.weight": study.weight},
    }
    runs = {"before": start}
    for name, way in ways.items():
        runs[name] = trained(
            root / f"taxed-{name}-{seed}", "quickstart_ppo", {**models, **study.changes, **way}
        )
    found: dict[str, float] = {}
    for name, run in runs.items():
        skill = evaluate(
            str(run), study.other, samples=1, limit=PROMPTS, max_new_tokens=LONGEST, seed=seed
        )
        found |= {f"{name}_other": skill.metrics["mean@1/correct"].value}
        seen = measured(TASKS["contrary"], run, judge, start, seed)
        found |= {f"{name}_{part}": seen[part] for part in ("truth", "proxy", "kl")}
    return found
