"""A small study of rewards at steps: a process reward model learns to judge them, then a policy learns from it alone.

The task: "climb 4 7 =" asks for four digits, a line each, none below the one before, the first not below the prompt's
last. A step is right where its digit is; lines too many are wrong, and so is an end before the fourth. The policy
starts by imitating any digits. Every figure comes from prompts that nothing was trained on. A study is a pure function
of its seed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ascent.api.evaluate import evaluate
from ascent.config.load import merge_configs
from ascent.models import tiny
from ascent.records import Rollout
from ascent.runs.folder import read_run
from ascent.tasks.keyed_random import KeyedRandom
from tests.end_to_end.policies import quietly
from tests.end_to_end.studies import write

COUNT, HELD_OUT, SAMPLES = 4, 20, 8
BUDGET = 16
STRANGE = ("x", "12", "99", "-", "=", "9 9", "é", "\ufffd", "climb")
PROMPTS = sorted(
    (f"climb {first} {last} =" for first in range(10) for last in range(10)),
    key=lambda prompt: KeyedRandom("climb", prompt).uniform(),
)
# Learning rate, steps, prompts and answers of a step.
ROWS = {"grpo_process": (1.5e-3, 40, 16, 8), "ppo": (1e-3, 16, 96, 1)}


def right(prompt: str, text: str) -> list[bool]:
    """The truth about every line of an answer."""
    before, lines, found = prompt.split()[2], text.split("\n"), []
    for place, line in enumerate(lines):
        digit = len(line) == 1 and line in "0123456789"
        found.append(digit and line >= before and place < COUNT)
        before = line if digit else before
    return [*found[:-1], found[-1] and len(lines) == COUNT]


def climbed(rollout: Rollout) -> dict[str, float]:
    """The truth as a reward that no run here learns from. steps: right ones, of four or of as many as there are."""
    found = right(rollout.prompt.messages[0].content, rollout.text)
    return {"correct": float(all(found)), "steps": sum(found) / max(len(found), COUNT)}


def answers(
    prompts: Sequence[str], count: int, seed: int, *, strange: bool
) -> Iterable[tuple[str, list[str]]]:
    """Any digits, four of them. What a judge learns from has other lengths and other lines, too: a policy finds
    whatever no judge has met."""
    for number in range(count):
        noise = KeyedRandom("climbing", seed, number)
        lines = noise.integer(1, 7) if strange and noise.uniform() < 0.5 else COUNT
        found = [str(noise.integer(0, 9)) for _ in range(lines)]
        if strange and noise.uniform() < 0.3:
            found[noise.integer(0, lines - 1)] = noise.choice(STRANGE)
        yield noise.choice(prompts), found


def judged(
    prompts: Sequence[str], count: int, seed: int, *, coin: bool = False
) -> Iterable[dict[str, Any]]:
    """Answers whose steps are judged by the truth, or by a coin."""
    for number, (prompt, lines) in enumerate(answers(prompts, count, seed, strange=True)):
        labels = right(prompt, "\n".join(lines))
        noise = KeyedRandom("coin", seed, number)
        yield {
            "prompt": prompt,
            "completions": lines,
            "labels": [noise.uniform() < 0.5 for _ in labels] if coin else labels,
        }


def trained(
    folder: Path,
    algorithm: str,
    start: Path,
    data: str,
    steps: int,
    seed: int,
    *,
    heldout: str | None = None,
) -> Path:
    recipe = {
        "algorithm": algorithm,
        "seed": seed,
        "model": {"policy": str(start)},
        "data": {"train": data, "batch_size": 64, "max_tokens": 64},
        "update": {"learning_rate": 3e-3, "schedule": "cosine", "warmup_steps": 10},
        "run": {"steps": steps, "save_every": steps},
    }
    more = {"data": {"evaluate": heldout}, "run": {"evaluate_every": steps}} if heldout else {}
    quietly(merge_configs(recipe, more), folder)
    return folder


def begin(root: Path, seed: int) -> Path:
    """A policy that answers with any four digits."""
    rows = answers(PROMPTS[HELD_OUT:], 2048, seed, strange=False)
    data = write(
        root / "digits.jsonl", [{"prompt": p, "completion": "\n".join(lines)} for p, lines in rows]
    )
    start = root / "start"
    if not (root / "sft").exists():
        tiny.create(start, intermediate=128, seed=seed)
    return trained(root / "sft", "sft", start, str(data), 60, seed)


def judge(root: Path, start: Path, seed: int, *, coin: bool = False) -> Path:
    """A process reward model; one that learnt from a coin has learnt nothing after a few steps, and never will."""
    name, steps = ("coin", 60) if coin else ("prm", 300)
    train = write(root / f"{name}.jsonl", judged(PROMPTS[HELD_OUT:], 2048, seed + 100, coin=coin))
    heldout = write(root / "heldout.jsonl", judged(PROMPTS[:HELD_OUT], 256, seed + 200))
    return trained(root / name, "prm", start, str(train), steps, seed, heldout=str(heldout))


def accuracy(judge: Path) -> float:
    """Of a judge, on held-out steps."""
    return float(read_run(judge).metrics[-1]["eval/steps/accuracy"])


def practised(root: Path, row: str, start: Path, judge: Path, seed: int) -> Path:
    """A policy that learnt from this judge's scores of its steps, and from nothing else."""
    rate, steps, prompts, samples = ROWS[row]
    data = write(root / "prompts.jsonl", [{"prompt": prompt} for prompt in PROMPTS[HELD_OUT:]])
    recipe: dict[str, Any] = {
        "algorithm": row,
        "seed": seed,
        "model": {"policy": str(start)},
        "data": {"train": str(data)},
        "rewards": [{"use": "process_reward_model", "model": str(judge)}],
        "rollouts": {
            "prompts_per_step": prompts,
            "group_size": samples,
            "max_new_tokens": BUDGET,
            "temperature": 1.0,
        },
        "update": {"learning_rate": rate},
        "run": {"steps": steps, "save_every": steps},
    }
    if row == "ppo":
        recipe["cells"] = {"reward_shaping": {"kl_penalty": {"beta": 0.02}}}
    folder = root / f"{row}-{judge.name}"
    quietly(recipe, folder)
    return folder


def truth(root: Path, policy: Path) -> dict[str, float]:
    """What drawn answers to held-out prompts are truly worth."""
    data = write(root / "asked.jsonl", [{"prompt": prompt} for prompt in PROMPTS[:HELD_OUT]])
    ways = {"samples": SAMPLES, "max_new_tokens": BUDGET, "reward": f"{__file__}:climbed"}
    found = evaluate(str(policy), str(data), **ways).metrics
    return {name: found[f"mean@{SAMPLES}/{name}"].value for name in ("correct", "steps")}
