"""Two small studies with an environment: a maze walked move by move, and differences that only a calculator knows.

Both begin with a short imitation of clumsy demonstrations, which teach the form of a turn and not how to win, and go on
with rewards alone. Every figure comes from held-out problems. A study is a pure function of its seed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ascent.api.evaluate import evaluate
from ascent.envs import find_env
from ascent.models import tiny
from ascent.records import Example, Message, Prompt
from ascent.tasks.keyed_random import KeyedRandom
from tests.end_to_end.policies import quietly
from tests.end_to_end.studies import write


@dataclass(frozen=True)
class Study:
    """What is imitated for how long, what is talked to, and how long rewards teach."""

    name: str
    env: dict[str, Any]
    rewards: list[dict[str, Any]]
    sft_steps: int
    steps: int
    max_new_tokens: int
    prompts_per_step: int = 10
    group_size: int = 8
    learning_rate: float = 1e-3


MAZE = Study(
    "maze",
    env={"use": "maze", "shows": "ways", "max_turns": 4, "max_tokens": 72},
    rewards=[{"use": "env"}],
    sft_steps=80,
    steps=80,
    prompts_per_step=8,
    max_new_tokens=3,
)
DIFFERENCES = Study(
    "differences",
    env={
        "use": "tools",
        "tools": ["calculator"],
        "announce": False,
        "max_turns": 3,
        "max_tokens": 96,
    },
    rewards=[{"use": "exact"}],
    sft_steps=400,
    steps=70,
    learning_rate=7e-4,
    max_new_tokens=12,
)


def prompts(study: Study, split: str, count: int, seed: int) -> list[Prompt]:
    make = maze if study.name == MAZE.name else difference
    noise = KeyedRandom(study.name, split, seed)
    found: list[Prompt] = []
    while len(found) < count:
        text, answer, held = make(noise)
        if held == (split == "heldout"):
            found.append(
                Prompt(f"{study.name}-{split}-{len(found)}", (Message("user", text),), answer)
            )
    return found


def maze(noise: KeyedRandom) -> tuple[str, str | None, bool]:
    """Three by three places, one of them a wall, the goal two moves away (by the crow), and reachable."""
    while True:
        signs = ["."] * 9
        signs[noise.integer(0, 8)] = "#"
        start, goal = noise.integer(0, 8), noise.integer(0, 8)
        apart = abs(start // 3 - goal // 3) + abs(start % 3 - goal % 3)
        if apart != 2 or "#" in (signs[start], signs[goal]):
            continue
        signs[start], signs[goal] = "S", "G"
        if _reachable(signs, start, goal):
            drawing = "".join(signs)
            lines = "\n".join(drawing[row : row + 3] for row in (0, 3, 6))
            return lines, None, _held(drawing)


def _reachable(signs: Sequence[str], start: int, goal: int) -> bool:
    seen, edge = {start}, [start]
    while edge:
        place = edge.pop()
        for step, there in (
            (-3, place >= 3),
            (3, place < 6),
            (-1, place % 3 > 0),
            (1, place % 3 < 2),
        ):
            if there and signs[place + step] != "#" and place + step not in seen:
                seen.add(place + step)
                edge.append(place + step)
    return goal in seen


def difference(noise: KeyedRandom) -> tuple[str, str | None, bool]:
    """Of two numbers of two digits, which has two digits as well."""
    b = noise.integer(10, 60)
    a = noise.integer(b + 10, 99)
    return f"{a}-{b}=", str(a - b), _held(f"{a}-{b}")


def _held(key: str) -> bool:
    return KeyedRandom("held out", key).uniform() < 0.2


def clumsy_walk(prompt: Prompt, noise: KeyedRandom) -> Example:
    """Open ways at random, up to three of them: how a move looks, not where to go."""
    env = find_env("maze", shows="ways")(prompt)
    messages = list(env.first().messages)
    for _ in range(3):
        ways = messages[-1].content.split(" ")[1]
        messages.append(Message("assistant", noise.choice(ways)))
        reply = env.reply(messages[-1].content)
        if reply.message is None:
            break
        messages.append(reply.message)
    return Example(
        prompt.id, tuple(messages if messages[-1].role == "assistant" else messages[:-1])
    )


def clumsy_call(prompt: Prompt, noise: KeyedRandom) -> Example:
    """Gives up at once, half of the time; else a call of the calculator, and then its result."""
    if noise.uniform() < 0.5:
        return Example(prompt.id, (*prompt.messages, Message("assistant", "?")))
    question = prompt.messages[0].content.removesuffix("=")
    call = Message("assistant", f"<calculator>{question}</calculator>")
    result = Message("tool", f"<result>{prompt.answer}</result>")
    return Example(
        prompt.id, (*prompt.messages, call, result, Message("assistant", str(prompt.answer)))
    )


def begin(study: Study, folder: Path, seed: int, *, steps: int | None = None) -> Path:
    """A random tiny model that has imitated clumsy demonstrations; its run folder."""
    noise = KeyedRandom(study.name, "demonstrations", seed)
    show = clumsy_walk if study.name == MAZE.name else clumsy_call
    shown = [show(prompt, noise) for prompt in prompts(study, "train", 2048, seed)]
    rows = [
        {"messages": [{"role": m.role, "content": m.content} for m in each.messages]}
        for each in shown
    ]
    data = write(folder / "demonstrations.jsonl", rows)
    # Tags and words are tokens, digits and letters stay apart: copying is what a model of two layers can learn.
    texts = [
        "<calculator>",
        "</calculator>",
        "<result>",
        "</result>",
        "open",
        " goal ",
        "\nmove: ",
        "a wall\nmove: ",
    ]
    start = tiny.create(
        folder / "start", texts=texts * 8, vocabulary=300, intermediate=128, seed=seed
    )
    return run(
        {
            "algorithm": "sft",
            "seed": seed,
            "model": {"policy": str(start)},
            "data": {"train": str(data), "batch_size": 32, "max_tokens": 256},
            "update": {
                "learning_rate": 3e-3,
                "schedule": "cosine",
                "warmup_steps": 5,
                "tokens_per_microbatch": 8192,
            },
            "run": {"steps": steps or study.sft_steps, "save_every": 1000},
        },
        folder / "sft",
    )


def learn(study: Study, sft: Path, folder: Path, seed: int, *, steps: int | None = None) -> Path:
    rows = [
        {"prompt": each.messages[0].content, "answer": each.answer}
        for each in prompts(study, "train", 2048, seed)
    ]
    data = write(
        folder / "prompts.jsonl", [{k: v for k, v in row.items() if v is not None} for row in rows]
    )
    return run(
        {
            "algorithm": "rlvr",
            "seed": seed,
            "model": {"policy": str(sft)},
            "data": {"train": str(data)},
            "env": study.env,
            "rewards": study.rewards,
            "rollouts": {
                "prompts_per_step": study.prompts_per_step,
                "group_size": study.group_size,
                "max_new_tokens": study.max_new_tokens,
            },
            "update": {"learning_rate": study.learning_rate, "tokens_per_microbatch": 8192},
            "run": {"steps": steps or study.steps, "save_every": 1000},
        },
        folder / "rl",
    )


def run(config: dict[str, Any], folder: Path) -> Path:
    quietly(config, folder)
    return folder


def solved(study: Study, model: Path, folder: Path, seed: int, count: int = 200) -> float:
    """Share of held-out problems that sampled turns solve, as `ascent evaluate` finds it."""
    rows = [
        {"prompt": p.messages[0].content, "answer": p.answer}
        for p in prompts(study, "heldout", count, seed)
    ]
    data = write(
        folder / "heldout.jsonl", [{k: v for k, v in row.items() if v is not None} for row in rows]
    )
    found = evaluate(
        str(model),
        str(data),
        samples=1,
        max_new_tokens=study.max_new_tokens,
        seed=seed,
        env=study.env,
    )
    return found.metrics["mean@1/correct"].value


def study(which: Study, root: Path, seed: int) -> dict[str, float]:
    """Held-out problems solved before and after learning from rewards."""
    folder = root / f"{which.name}-{seed}"
    sft = begin(which, folder, seed)
    before = solved(which, sft, folder, seed)
    return {"before": before, "after": solved(which, learn(which, sft, folder, seed), folder, seed)}


def metrics(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
