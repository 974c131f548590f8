"""How much of a step is hidden where rollouts are sampled and scored during the update? Two cores, a thread for each.

    python bench/overlap.py [--steps N] [--rounds N] [--only CASE,CASE] [--write]

Every case is trained synchronously and with rollouts.max_staleness 1, in turn, on the same model and prompts. The first
way says how long sampling (with scoring) and everything else of a step take one after the other; the wall time of a
step of the second is compared with the longer of the two: 1.0 is all that overlap can do. It is also compared with
the longer of the two as they are side by side, where they share caches and Python's lock. `judge` waits before it
scores a rollout, as a model behind a server does; `tool` is an environment that waits before it replies. Wall times
are those between the lines of metrics.jsonl: logging is in them. Of all steps after the third of a run the median and
the first quartile are reported: on a machine where others work as well, the second says more.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is loaded: one thread samples, one updates
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import argparse
import asyncio
import datetime
import itertools
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import ascent  # noqa: E402
from ascent.records import Message, Prompt, Reply, Rollout  # noqa: E402
from bench.hardware import hardware  # noqa: E402

SKIPPED = 3  # steps: the first samples twice, and each compiles or allocates something
WAIT = "OVERLAP_WAIT"  # an environment variable: a run loads rewards and environments from this file once more
RECIPE: dict[str, Any] = {
    "algorithm": "grpo",
    "model.policy": "tiny:llama",
    "model.dtype": "float32",
    "data.train": "sort_digits:4096",
    "rollouts.prompts_per_step": 16,
    "rollouts.group_size": 8,
    "rollouts.max_new_tokens": 48,
    "update.learning_rate": 1e-4,
    "update.minibatches": 4,
    "run.save_every": 1000,
}


async def judge(rollout: Rollout) -> float:
    """An opinion that takes its time: the share of digits. 64 are asked for at once."""
    await asyncio.sleep(float(os.environ[WAIT]))
    return sum(each.isdigit() for each in rollout.text) / max(len(rollout.text), 1)


class Tool:
    """Replies once, after a wait; then the episode is over."""

    def __init__(self, prompt: Prompt) -> None:
        self.prompt, self.turns = prompt, 0

    def first(self) -> Prompt:
        return self.prompt

    def reply(self, text: str) -> Reply:
        time.sleep(float(os.environ[WAIT]))
        self.turns += 1
        score = sum(each.isdigit() for each in text) / max(len(text), 1)
        return Reply(
            None if self.turns == 2 else Message("user", "again: "), parts={"digits": score}
        )


def tool(prompt: Prompt) -> Tool:
    return Tool(prompt)


def judged(wait: float) -> dict[str, Any]:
    return {"wait": wait, "rewards": [{"use": f"{Path(__file__).resolve()}:judge"}]}


TOOL = {
    "rewards": [{"use": "env"}],
    "rollouts.max_new_tokens": 24,
    "env": {"use": f"{Path(__file__).resolve()}:tool", "max_turns": 2, "max_tokens": 96},
}
# A judge, and a tool, that wait for longer than an update takes here; a judge that waits about as long, or for less.
CASES = {
    "judge-long": judged(1.0),
    "tool": {"wait": 1.0, **TOOL},
    "judge": judged(0.25),
    "judge-short": judged(0.05),
}


def train(case: dict[str, Any], staleness: int, steps: int) -> list[dict[str, float]]:
    """Seconds of every step but the first ones."""
    os.environ[WAIT] = str(case["wait"])
    keys = {name: value for name, value in case.items() if name != "wait"}
    with tempfile.TemporaryDirectory() as folder:
        run = ascent.train(
            {**RECIPE, **keys, "rollouts.max_staleness": staleness, "run.steps": steps},
            run=Path(folder) / "run",
            progress=False,
            say=lambda line: None,
        )
    lines = [each for each in run.metrics if each.get("step", 0) > 0]
    found = []
    for before, after in itertools.pairwise(lines[SKIPPED - 1 :]):
        times = {name: value for name, value in after.items() if name.startswith("time/")}
        sampling = times["time/sample"] + times["time/score"]
        wall = after["timestamp"] - before["timestamp"]
        # With overlap: wall time against the longer of the two as they were in this step, side by side.
        longer = max(
            times.get("time/overlap", 0.0), times["time/step"] - times.get("time/wait", 0.0)
        )
        found.append(
            {
                **times,
                "wall": wall,
                "sampling": sampling,
                "update": wall - sampling,
                "side_by_side": wall / longer,
            }
        )
    return found


def measure(case: dict[str, Any], steps: int, rounds: int) -> dict[str, Any]:
    apart: list[dict[str, float]] = []
    both: list[dict[str, float]] = []
    for _ in range(rounds):
        apart += train(case, 0, steps)
        both += train(case, 1, steps)
    found: dict[str, Any] = {"wait": case["wait"], "steps": len(both)}
    for name, of in (
        ("median", statistics.median),
        ("quartile", lambda values: statistics.quantiles(values)[0]),
    ):
        one, other = (
            {key: of([each[key] for each in steps]) for key in steps[0]} for steps in (apart, both)
        )
        longer = max(one["sampling"], one["update"])
        found[name] = {
            "sampling": one["sampling"],
            "update": one["update"],
            "synchronous": one["wall"],
            "overlap": other["wall"],
            "ratio": other["wall"] / longer,
            "times": {"synchronous": one, "overlap": other},
        }
    return found


def describe(name: str, found: dict[str, Any]) -> str:
    lines = [
        f"{name:12} {of:8} sampling {each['sampling']:.3f} s, the rest {each['update']:.3f} s; a step "
        f"{each['synchronous']:.3f} s, with overlap {each['overlap']:.3f} s: {each['ratio']:.2f} of the longer alone, "
        f"{each['times']['overlap']['side_by_side']:.2f} of the longer side by side"
        for of, each in found.items()
        if isinstance(each, dict)
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(CASES))
    parser.add_argument("--write", action="store_true", help="JSON into bench/results")
    given = parser.parse_args()
    torch.set_num_threads(1)
    before = os.getloadavg()
    found = {}
    for name in given.only:
        found[name] = measure(CASES[name], given.steps, given.rounds)
        print(describe(name, found[name]), flush=True)
    if given.write:
        today = datetime.date.today().isoformat()
        command = f"python bench/overlap.py --steps {given.steps} --rounds {given.rounds} --write"
        record = {
            "date": today,
            "command": command,
            "hardware": hardware(),
            "versions": {"torch": torch.__version__},
            "threads": 1,
            "load": [before, os.getloadavg()],
            "recipe": RECIPE,
            "cases": found,
        }
        path = ROOT / "bench" / "results" / f"{today}-overlap.json"
        path.write_text(json.dumps(record, indent=1) + "\n")
        print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
