"""PPO and GRPO side by side: seconds and memory of a step, one process each, in turns.

    python bench/rlhf_cost.py [--shape small|0.5b] [--device cpu|cuda] [--repetitions N] [--write]

The same random model, prompts, number of sequences, tokens and optimizer steps for all: PPO with a critic of its own,
PPO with a value head on the policy, GRPO. Every completion is as long as it may be; all have the row's KL to a frozen
reference, and a reward that costs nothing, so a reward model would be the same on top of each. Peak memory is the
process's largest resident set on a CPU (the libraries' own memory included: `idle` is what it was before a model was
loaded), what torch allocated at most on a GPU. One CPU thread.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"

import argparse
import datetime
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from grpo import NEVER, peak_bytes, versions  # noqa: E402
from hardware import hardware  # noqa: E402

SIDES: dict[str, dict[str, Any]] = {
    "PPO, separate critic": {"algorithm": "ppo", "model.critic": "separate"},
    "PPO, critic as a head": {"algorithm": "ppo", "model.critic": "head"},
    "GRPO": {"algorithm": "grpo"},
}
SHAPES: dict[str, dict[str, Any]] = {
    "small": {
        "family": "llama",
        "hidden": 256,
        "layers": 6,
        "heads": 8,
        "key_value_heads": 2,
        "intermediate": 1024,
        "vocab_size": 8192,
    },
    "0.5b": {
        "family": "qwen2",
        "hidden": 896,
        "layers": 24,
        "heads": 14,
        "key_value_heads": 2,
        "intermediate": 4864,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
    },
}
# prompts of a step, completions of each, digits of a prompt, new tokens of each completion
WORK = {
    "small": {"prompts": 4, "group": 8, "digits": 16, "new_tokens": 32, "dtype": "float32"},
    "0.5b": {"prompts": 16, "group": 8, "digits": 64, "new_tokens": 256, "dtype": "bfloat16"},
}
WARM, STEPS = 1, 3


def prepare(folder: Path, shape: str) -> None:
    """The model, the prompts and the reward that every side reads."""
    from ascent.models import tiny

    work = WORK[shape]
    tiny.create(folder / "model", seed=0, longest=1024, **SHAPES[shape])
    count = (WARM + STEPS) * work["prompts"]
    texts = [
        " ".join(str((7 * place + 3 * n) % 10) for n in range(work["digits"])) + " ="
        for place in range(count)
    ]
    (folder / "prompts.jsonl").write_text(
        "".join(json.dumps({"prompt": text}) + "\n" for text in texts)
    )
    (folder / "reward.py").write_text(
        "def spread(rollout):\n    return float(sum(map(ord, rollout.text)) % 7) / 7\n"  # never all the same
    )


class Clock:
    """A tracker that keeps when each step ended, and the peak until then."""

    def __init__(self, cuda: bool) -> None:
        self.cuda, self.rows = cuda, list[dict[str, float]]()
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        import torch

        if self.cuda:
            torch.cuda.synchronize()
        wall, cpu = time.perf_counter(), time.process_time()
        peak = torch.cuda.max_memory_allocated() if self.cuda else peak_bytes()
        spent = {"seconds": wall - self.wall, "cpu_seconds": cpu - self.cpu}
        self.rows.append({**spent, "peak_bytes": peak, "tokens": metrics["tokens/trained"]})
        self.wall, self.cpu = wall, cpu

    def close(self) -> None:
        """There is nothing to close."""


def side(folder: Path, shape: str, name: str) -> dict[str, Any]:
    """Source, learners and objectives as `ascent train` builds them; saving and evaluating are left out."""
    import torch

    from ascent import loop
    from ascent.api.train import assemble
    from ascent.config.load import nest_keys
    from ascent.config.validate import validate
    from ascent.plan.resolve import resolve

    torch.set_num_threads(1)
    work, idle = WORK[shape], peak_bytes()
    config = nest_keys(
        {
            **SIDES[name],
            "model.policy": str(folder / "model"),
            "model.dtype": work["dtype"],
            "data.train": str(folder / "prompts.jsonl"),
            "data.shuffle": False,
            "rewards": [{"use": f"{folder / 'reward.py'}:spread"}],
            "rollouts.prompts_per_step": work["prompts"],
            "rollouts.group_size": work["group"],
            "rollouts.max_new_tokens": work["new_tokens"],
            "rollouts.temperature": 1.0,
            "update.epochs": 1,
            "update.minibatches": 1,
            "update.learning_rate": 1e-6,
            "run.steps": WARM + STEPS,
        }
    )
    training = assemble(resolve(validate(config)), folder)
    source: Any = training.source
    source.sampler.stop_ids = NEVER
    clock = Clock(torch.cuda.is_available())
    parts = loop.LoopParts(source, training.trained, clock, save=lambda step, state: None)
    loop.run(parts, loop.Schedule(WARM + STEPS, WARM + STEPS, WARM + STEPS))
    learners: dict[str, Any] = {each.name: each.learner for each in training.trained}
    return {
        "steps": clock.rows,
        "idle_bytes": idle,
        "weight_bytes": {
            name: size(learner.weights().values()) for name, learner in learners.items()
        },
        "optimizer_bytes": {
            name: size(learner.state()["optimizer"].values()) for name, learner in learners.items()
        },
        "versions": versions("torch", "transformers"),
    }


def size(tensors: Iterable[Any]) -> int:
    return sum(each.numel() * each.element_size() for each in tensors)


def measured(folder: Path, shape: str, name: str, device: str) -> dict[str, Any]:
    """One process; the mean of its steps after the warm-up."""
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {}
    words = [sys.executable, __file__, "--shape", shape, "--side", name, "--folder", str(folder)]
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=3600, env={**os.environ, **hidden}
    )
    if done.returncode:
        raise RuntimeError(f"{name} failed:\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    spent = {
        name: statistics.mean(row[name] for row in found["steps"][WARM:])
        for name in ("seconds", "cpu_seconds")
    }
    return {
        **spent,
        "peak_bytes": found["steps"][-1]["peak_bytes"],
        "load": os.getloadavg()[0],
        **found,
    }


def study(shape: str, device: str, repetitions: int) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in SIDES}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        prepare(folder, shape)
        for repetition in range(repetitions):
            for name, rows in found.items():
                rows.append(measured(folder, shape, name, device))
                print(
                    f"{repetition + 1}/{repetitions}  {name:<22} {rows[-1]['seconds']:7.3f} s a step  "
                    f"{rows[-1]['cpu_seconds']:7.3f} CPU s  peak {rows[-1]['peak_bytes'] / 2**20:7.0f} MiB  "
                    f"load {rows[-1]['load']:.1f}",
                    flush=True,
                )
    work = {
        name: {tuple(step["tokens"] for step in row["steps"]) for row in rows}
        for name, rows in found.items()
    }
    if len(set.union(*work.values())) > 1:
        raise RuntimeError(f"the sides did not train on the same number of tokens: {work}")
    return found


def medians(found: Mapping[str, list[dict[str, Any]]]) -> dict[str, dict[str, float]]:
    """By side; critic and optimizer bytes are the same in every repetition."""
    return {
        name: {
            **{
                part: statistics.median(row[part] for row in rows)
                for part in ("seconds", "cpu_seconds", "peak_bytes")
            },
            "weight_bytes": sum(rows[0]["weight_bytes"].values()),
            "critic_bytes": rows[0]["weight_bytes"].get("critic", 0),
            "optimizer_bytes": sum(rows[0]["optimizer_bytes"].values()),
        }
        for name, rows in found.items()
    }


def accelerator() -> str:
    import torch

    return torch.cuda.get_device_name()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=list(SHAPES), default="small")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="keep the result")
    parser.add_argument("--results", type=Path, default=HERE / "results", help="where")
    parser.add_argument("--side", choices=list(SIDES), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.side is not None:
        print(json.dumps(side(given.folder, given.shape, given.side)))
        return
    found = study(given.shape, given.device, given.repetitions)
    results = medians(found)
    for name, each in results.items():
        print(
            f"{name:<22} {each['seconds']:7.3f} s a step  {each['cpu_seconds']:7.3f} CPU s  peak "
            f"{each['peak_bytes'] / 2**20:7.0f} MiB  weights {each['weight_bytes'] / 2**20:7.1f} MiB  optimizer "
            f"{each['optimizer_bytes'] / 2**20:7.1f} MiB"
        )
    if given.write:
        words = f"--shape {given.shape} --device {given.device} --repetitions {given.repetitions} --write"
        today = datetime.date.today().isoformat()
        machine = hardware() | ({"gpu": accelerator()} if given.device == "cuda" else {})
        record = {
            "study": "rlhf-cost",
            "date": today,
            "command": f"python bench/rlhf_cost.py {words}",
            "hardware": machine,
            "threads": 1,
            "shape": SHAPES[given.shape],
            "work": WORK[given.shape],
            "warm_up": WARM,
            "steps": STEPS,
            "results": results,
            "repetitions": found,
        }
        path = given.results / f"{today}-rlhf-cost-{given.device}.json"
        path.write_text(json.dumps(record, indent=1) + "\n")
        print(f"wrote {path.name}")


if __name__ == "__main__":
    main()
