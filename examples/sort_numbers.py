"""Train an instruction-tuned model to sort numbers, with a custom reward.

    python examples/sort_numbers.py MODEL --run runs/sort_numbers

MODEL is a folder or a hub name (SmolLM2-135M-Instruct, say). Held-out accuracy is measured before and after with the
same lenient parsing of the answer as in training, so that a better score means better sorting and not better format.
On a GPU this takes minutes; docs/results/sort_numbers.md has a result.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from pathlib import Path

import ascent
from ascent.records import Rollout

ASK = "Sort these numbers from smallest to largest: {}. Reply with the sorted numbers only."
NUMBER = re.compile(r"\d+")


def in_order(rollout: Rollout) -> dict[str, float]:
    """correct: the first numbers of the answer are the sorted ones; ended: correct, and not truncated.

    An answer may repeat the question first. Parsing the last numbers instead of the first is hackable: a policy learns
    to repeat itself until truncation happens at the right place.
    """
    want, numbers = str(rollout.prompt.answer).split(), NUMBER.findall(rollout.text)
    asked = NUMBER.findall(rollout.prompt.messages[-1].content)
    if numbers[: len(asked)] == asked and len(numbers) > len(asked):
        numbers = numbers[len(asked) :]
    correct = float(numbers[: len(want)] == want)
    return {"correct": correct, "ended": 0.2 * correct * (not rollout.truncated)}


def prompts(count: int, seed: int, avoid: set[tuple[int, ...]]) -> list[dict[str, str]]:
    """Questions of three or four different numbers below 20. Sets in `avoid` are skipped; new ones are added to it."""
    rng, found = random.Random(seed), []
    while len(found) < count:
        numbers = rng.sample(range(1, 20), rng.choice((3, 4)))
        if tuple(sorted(numbers)) not in avoid:
            found.append(
                {
                    "prompt": ASK.format(", ".join(map(str, numbers))),
                    "answer": " ".join(map(str, sorted(numbers))),
                }
            )
    avoid |= {tuple(map(int, each["answer"].split())) for each in found}
    return found


def write(path: Path, rows: list[dict[str, str]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument(
        "--prompts", type=int, default=64, help="per step, with eight completions each"
    )
    parser.add_argument("--heldout", type=int, default=256)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--learning-rate", type=float, default=1e-5)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    data = given.run.with_name(f"{given.run.name}-data")
    data.mkdir(parents=True, exist_ok=True)
    seen: set[tuple[int, ...]] = set()
    heldout = write(data / "heldout.jsonl", prompts(given.heldout, 1, seen))
    train = write(data / "train.jsonl", prompts(4096, 0, seen))
    run = ascent.train(
        {
            "algorithm": "rlvr",
            "seed": given.seed,
            "model": {"policy": given.model, "dtype": given.dtype},
            "data": {"train": train, "evaluate": heldout},
            "rewards": [{"use": f"{Path(__file__).resolve()}:in_order"}],
            "rollouts.prompts_per_step": given.prompts,
            "rollouts.group_size": 8,
            "rollouts.max_new_tokens": 32,
            "update.learning_rate": given.learning_rate,
            "update.warmup_steps": 5,
            "run.steps": given.steps,
            "run.evaluate_every": 20,
            "run.save_every": given.steps,
        },
        run=given.run,
    )
    accuracies = [
        (int(each["step"]), each["eval/reward/correct"])
        for each in run.metrics
        if "eval/reward/correct" in each
    ]
    print(
        "held-out accuracy by step:",
        ", ".join(f"{step}: {value:.3f}" for step, value in accuracies),
    )


if __name__ == "__main__":
    main()
