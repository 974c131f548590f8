"""Small studies of rows that learn from rollouts, judged by the task's own verifier on held-out prompts.

`practise`: every row on a task of seconds, all from the same few steps of imitation. `sort`: a whole sorting task, with
controls. `sanity`: training prompts of which the start solves each sometimes, so that all of them can be learnt. Rows
are trained as the table has them; only what `Practice` names is set. A study is a pure function of its seed. Several
processes may run studies in one folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ascent.algorithms import TABLE
from ascent.api.evaluate import evaluate, generate_answers
from ascent.api.stages import stage
from ascent.config.load import merge_configs, nest_keys, read_recipe
from ascent.config.validate import validate
from ascent.plan import resolve
from ascent.records import Prompt
from ascent.rollouts.generate import GREEDY, SamplingParams
from ascent.tasks import TASKS
from ascent.tasks.sort_digits import SORT_DIGITS, draw_digits
from ascent.tasks.task import Split

SEEDS = range(1, 6)  # settings were chosen on seed 0
PROMPTS, SAMPLES = 128, 4


@dataclass(frozen=True)
class Practice:
    """What a row's study may set: learning rate, group size, lengths and batch."""

    learning_rate: float = 3e-4
    steps: int = 15
    sequences: int = 128  # of one step
    group_size: int = 8
    task: str = "contrary"
    max_new_tokens: int = 8
    minibatches: int | None = None  # as the row has it
    attempts: bool = False  # start from attempts that go wrong in many ways, where demonstrations teach all or nothing


ALONE = Practice(group_size=1)  # rows that compare no answers of one prompt
FEWER = 12  # steps of rows that take several passes, so that none needs more than 15 seconds
OFTEN = Practice(learning_rate=1e-4)  # rows with many optimizer steps a rollout step
ROWS: dict[str, Practice] = {
    name: Practice() for name, row in TABLE.items() if row.source == "rollouts"
}
ROWS |= {name: ALONE for name in ROWS if TABLE[name].defaults.get("rollouts.group_size") == 1}
ROWS |= {name: OFTEN for name in ROWS if TABLE[name].defaults.get("update.minibatches", 1) > 4}
ROWS |= {name: replace(ROWS[name], steps=FEWER) for name in ("rlhf", "ppo", "ppo_penalty", "a2po")}
ROWS["instructgpt"] = replace(ALONE, steps=9)
ROWS["grpo_process"] = Practice(2e-4, 25, task="running_sum", max_new_tokens=16, attempts=True)
REWARDED = Path(__file__).with_name("rewarded.py")
# What a row cannot do without, beyond a verifier.
EXTRA: dict[str, dict[str, Any]] = {
    # The row's own weight, 27.8, is for text with a small gradient: this one is known by heart before long.
    "instructgpt": {
        "data": {"pretraining": str(Path(__file__).with_name("greeting.jsonl")), "batch_size": 8}
    },
    "gdpo": {"rewards": [{"use": "verifier"}, {"use": f"{REWARDED}:ended", "weight": 0.1}]},
}


def imitate(root: Path, task: str, *, seed: int = 0, steps: int = 300) -> Path:
    """The start of every row: a few steps of imitation, the same for all rows and seeds of a study."""
    return imitated(
        root / f"imitate-{task}-{steps}-{seed}", f"{task}:16384", seed=seed, steps=steps
    )


def attempted(root: Path, task: str, *, seed: int = 0, steps: int = 1500) -> Path:
    """As good as the task's own attempts, which the study of preferences judges: right now and then."""
    answers = TASKS[task].unpaired("train", 16384, seed)
    rows = [
        {"prompt": each.prompt.messages[0].content, "completion": each.answer[0].content}
        for each in answers
    ]
    data = written(root / f"attempts-{task}-{seed}.jsonl", rows)
    return imitated(root / f"attempted-{task}-{steps}-{seed}", data, seed=seed, steps=steps)


def imitated(
    folder: Path, data: str, *, seed: int, steps: int, learning_rate: float = 2e-3
) -> Path:
    """The quick start's first stage on other data. Whoever comes while it is trained waits."""
    settings = {"seed": seed, "data.train": data, "run.steps": steps, "run.save_every": steps}
    settings["model.policy"] = "tiny:digits"  # which the recorded studies have
    recipe = merge_configs(
        read_recipe("quickstart_sft"),
        nest_keys({**settings, "update.learning_rate": learning_rate}),
    )
    with alone(folder.with_name(f"{folder.name}.lock")):
        quietly(recipe, folder)
    return folder


@contextlib.contextmanager
def alone(lock: Path) -> Iterator[None]:
    """One process at a time; the next goes on where this one ends, however it ends."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def practise(root: Path, row: str, seed: int, practice: Practice | None = None) -> dict[str, float]:
    """Held-out accuracy of drawn answers, before and after; and what the training between them took."""
    practice = practice or ROWS[row]
    start = (attempted if practice.attempts else imitate)(root, practice.task)
    folder = root / f"{row}-{seed}"
    spent = quietly(recipe_of(row, practice, start, seed), folder)
    before, after = (accuracy(each, practice) for each in (start, folder))
    return {"before": before, "after": after, "training_cpu_seconds": spent}


def recipe_of(row: str, practice: Practice, start: Path, seed: int) -> dict[str, Any]:
    recipe = {
        "algorithm": row,
        "seed": seed,
        "model": {"policy": str(start)},
        "data": {"train": f"{practice.task}:2048"},
        "rewards": [{"use": "verifier"}],
        "rollouts": {
            "prompts_per_step": practice.sequences // practice.group_size,
            "group_size": practice.group_size,
            "max_new_tokens": practice.max_new_tokens,
        },
        "update": {"learning_rate": practice.learning_rate},
        "run": {"steps": practice.steps, "save_every": practice.steps},
    }
    more: dict[str, Any] = EXTRA.get(row, {})
    if practice.minibatches is not None:
        more = merge_configs(more, {"update": {"minibatches": practice.minibatches}})
    if "teacher" in TABLE[row].needs:
        more = merge_configs(more, {"model": {"teacher": str(start)}})
    if any(each.name == "soft_overlong" for each in TABLE[row].reward_shaping):
        limits = {"max_length": practice.max_new_tokens, "cache": 1}
        more = merge_configs(more, {"cells": {"reward_shaping": {"soft_overlong": limits}}})
    return merge_configs(recipe, more)


def accuracy(folder: Path, practice: Practice) -> float:
    found = evaluate(
        str(folder),
        practice.task,
        samples=SAMPLES,
        limit=PROMPTS,
        max_new_tokens=practice.max_new_tokens,
    )
    return found.metrics[f"mean@{SAMPLES}/correct"].value


# --- the whole sorting task ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sorting:
    """What every row begins with and practises; lists are as long as these two numbers and all between them.

    All lists are split as one family: what is held out was in no stage's data, whatever its length.
    """

    shown: tuple[int, int] = (2, 6)
    shown_steps: int = 600
    shown_learning_rate: float = 1e-3
    practised: tuple[int, int] = (6, 10)
    prompts: int = 4096
    held_out: int = 512
    control_steps: int = 1800  # of further imitation: the time that practice takes


SORTING = Sorting()
LONG = Practice(steps=220, sequences=512, task="sort_digits", max_new_tokens=14, minibatches=4)
SORT: dict[str, Practice] = {  # the longest first, so that none is left alone at the end
    "ppo": replace(
        LONG, sequences=256, learning_rate=2e-4, group_size=1, minibatches=None, steps=110
    ),
    "grpo": replace(LONG, learning_rate=4e-4, steps=180),
    "rloo": replace(LONG, learning_rate=2e-4, minibatches=1),
    "dapo": replace(LONG, sequences=256, minibatches=2, steps=150),
    "rlvr": LONG,
}


def sort(
    root: Path,
    row: str,
    seed: int,
    *,
    shuffled: bool = False,
    practice: Practice | None = None,
    sorting: Sorting = SORTING,
) -> dict[str, float]:
    """Imitation of short lists, then a row on longer ones; with `shuffled`, a fair coin is the reward."""
    practice = practice or SORT[row]
    start = beginning(root, seed, sorting)
    folder = root / f"sort-{row}-{seed}{'-shuffled' if shuffled else ''}"
    recipe = recipe_of(row, practice, start, seed)
    recipe["data"]["train"] = lists(root, sorting.practised, "train", sorting.prompts, seed)
    recipe = merge_configs(
        recipe, {"update": {"schedule": "linear", "warmup_steps": practice.steps // 10}}
    )
    if shuffled:
        recipe["rewards"] = [{"use": f"{REWARDED}:shuffled"}]
    return judged(root, start, folder, quietly(recipe, folder), sorting)


def sort_control(root: Path, seed: int, sorting: Sorting = SORTING) -> dict[str, float]:
    """The same start goes on imitating short lists instead, about as long as practice takes."""
    start = beginning(root, seed, sorting)
    folder = root / f"sort-control-{seed}"
    data = lists(root, sorting.shown, "train", 16384, seed)
    changes = {
        "seed": seed + 1,
        "model.policy": str(start),
        "data.train": data,
    }  # another order of the same lists
    steps = {"run.steps": sorting.control_steps, "run.save_every": sorting.control_steps}
    spent = quietly(
        merge_configs(read_recipe("quickstart_control"), nest_keys({**changes, **steps})), folder
    )
    return judged(root, start, folder, spent, sorting)


def beginning(root: Path, seed: int, sorting: Sorting = SORTING) -> Path:
    data = lists(root, sorting.shown, "train", 16384, seed)
    rate = sorting.shown_learning_rate
    name = f"shown-{Path(data).stem}-{sorting.shown_steps}-{rate:g}"
    return imitated(root / name, data, seed=seed, steps=sorting.shown_steps, learning_rate=rate)


def judged(
    root: Path, start: Path, folder: Path, spent: float, sorting: Sorting
) -> dict[str, float]:
    """Greedy accuracy on held-out lists, before and after."""
    data = lists(root, sorting.practised, "heldout", sorting.held_out, 0)
    found = [
        evaluate(str(each), data, samples=0, max_new_tokens=14, reward="exact")
        for each in (start, folder)
    ]
    before, after = (each.metrics["greedy/correct"].value for each in found)
    return {"before": before, "after": after, "training_cpu_seconds": spent}


def lists(root: Path, lengths: tuple[int, int], split: Split, count: int, seed: int) -> str:
    """A file of lists to sort, as demonstrations, for practice or for questions."""
    path = root / f"lists-{lengths[0]}-{lengths[1]}-{split}-{count}-{seed}.jsonl"
    return written(
        path,
        questions(replace(SORT_DIGITS, draw=draw_digits(*lengths)).prompts(split, count, seed)),
    )


def questions(prompts: Iterable[Prompt]) -> list[dict[str, Any]]:
    return [
        {"prompt": each.messages[0].content, "answer": each.answer, "task": "sort_digits"}
        for each in prompts
    ]


def written(path: Path, rows: Sequence[Mapping[str, Any]]) -> str:
    with alone(path.with_suffix(".lock")):
        if not path.is_file():
            made = path.with_suffix(".part")
            made.write_text("".join(json.dumps(row) + "\n" for row in rows))
            made.replace(path)
    return str(path)


# --- prompts that can all be learnt ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Solvable:
    """Which prompts are kept: those that the start answers rightly in a fifth to four fifths of its `samples`."""

    prompts: int = 16
    candidates: int = 512
    samples: int = 40
    lengths: tuple[int, int] = (6, 9)


SOLVABLE = Solvable()
EASY = Practice(steps=400, sequences=128, task="sort_digits", max_new_tokens=14)
SLOWLY = replace(EASY, learning_rate=2e-4)
OFTENER = replace(EASY, learning_rate=1e-4, steps=150)
SANITY: dict[str, Practice] = {
    **{name: EASY for name in ("rlvr", "grpo", "cispo")},
    **{name: SLOWLY for name in ("dr_grpo", "rloo", "gspo", "reinforce_pp")},
    **{name: OFTENER for name in ("dapo", "ppo")},
}


def sanity(
    root: Path,
    row: str,
    seed: int,
    *,
    practice: Practice | None = None,
    solvable: Solvable = SOLVABLE,
    sorting: Sorting = SORTING,
) -> dict[str, float]:
    """Accuracy on the training prompts themselves: of drawn answers before and after, of greedy ones after.

    `reached`: the most that a whole pass through the prompts had right while training.
    """
    practice = practice or SANITY[row]
    start = beginning(root, seed, sorting)
    data = solvable_prompts(root, start, seed, solvable)
    folder = root / f"sanity-{row}-{seed}"
    recipe = recipe_of(row, practice, start, seed)
    recipe["data"]["train"] = data
    recipe = merge_configs(
        recipe, {"update": {"schedule": "linear", "warmup_steps": practice.steps // 10}}
    )
    spent = quietly(recipe, folder)
    ways = {"samples": 8, "max_new_tokens": practice.max_new_tokens, "reward": "exact"}
    before, after = (evaluate(str(each), data, **ways).metrics for each in (start, folder))
    steps = [
        json.loads(line)["correct"] for line in (folder / "metrics.jsonl").read_text().splitlines()
    ]
    a_pass = max(1, solvable.prompts * practice.group_size // practice.sequences)
    passes = [sum(steps[end - a_pass : end]) / a_pass for end in range(a_pass, len(steps) + 1)]
    return {
        "before": before["mean@8/correct"].value,
        "after": after["mean@8/correct"].value,
        "greedy": after["greedy/correct"].value,
        "reached": max(passes),
        "training_cpu_seconds": spent,
    }


def solvable_prompts(root: Path, start: Path, seed: int, solvable: Solvable) -> str:
    """A file of training prompts that the start can answer, not always; chosen once for all rows of a seed."""
    path = (
        root
        / f"solvable-{start.name}-{solvable.lengths[0]}-{solvable.lengths[1]}-{solvable.prompts}-{seed}.jsonl"
    )
    with alone(root / f"{path.stem}.choice"):
        if path.is_file():
            return str(path)
        task = replace(SORT_DIGITS, draw=draw_digits(*solvable.lengths))
        asked = {
            each.messages[0].content: each
            for each in task.prompts("train", solvable.candidates, seed)
        }
        settings = SamplingParams(max_new_tokens=14, seed=seed)
        right = dict.fromkeys(asked, 0.0)
        for each in generate_answers(str(start), list(asked.values()), solvable.samples, settings):
            if each.sample != GREEDY:
                right[each.prompt.messages[0].content] += task.verify(each.prompt, each.text)[
                    "correct"
                ]
        low, high = 0.2 * solvable.samples, 0.8 * solvable.samples
        kept = [each for question, each in asked.items() if low <= right[question] <= high]
        if len(kept) < solvable.prompts:
            raise ValueError(
                f"{len(kept)} of {len(asked)} prompts are solved sometimes; ask more, or shorter lists"
            )
        return written(path, questions(kept[: solvable.prompts]))


def quietly(recipe: Mapping[str, Any], folder: Path) -> float:
    """One run, or the rest of it, or nothing where it is finished; the CPU seconds that it took."""
    begun = time.process_time()
    with contextlib.redirect_stderr(io.StringIO()):
        stage(resolve(validate(dict(recipe))), folder, lambda line: None)
    return time.process_time() - begun
