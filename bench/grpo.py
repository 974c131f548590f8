"""One GRPO step on a CPU (sample, score, update), ours against TRL's GRPOTrainer, in one run, in turns.

    python bench/grpo.py --trl PYTHON [--smollm2 FOLDER] [--only quick|smollm2] [--write]

PYTHON is that of an environment with torch, transformers and trl; without it only ours is measured. Every measurement
is a process of its own, one at a time, in turns, on one thread. Both load the same folder in float32 and train on the
same prompts in the same groups with the same lengths: how many tokens each completion has is imposed on both, either
all the same or a fixed ragged mix (log-normal, sigma 0.8, at most 4 times the mean). TRL's end token is forced where a
completion is to end and forbidden before; ours stops at a budget. Both: group means and standard deviations, clip 0.2,
no KL, one optimizer step on all completions, AdamW, entropy logged. TRL takes 8 completions at a time (its default) or
all at once; ours is compared with whichever is faster. Peak memory is the process's largest resident set, all of it.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"

import argparse
import datetime
import json
import math
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

from hardware import hardware

HERE = Path(__file__).resolve().parent
PEER = HERE / "peers" / "grpo.py"
WARM = 1
SIGMA, CAP = 0.8, 4
LEARNING_RATE = 1e-5
NEVER = frozenset({-1})
# prompts of a step, completions of each, words of a prompt, new tokens on average; steps of a run after WARM, and runs
WORK = {
    "quick": {"prompts": 32, "group": 8, "words": 8, "mean": 16, "steps": 3, "runs": 3},
    "smollm2": {"prompts": 2, "group": 8, "words": 20, "mean": 24, "steps": 1, "runs": 1},
}
QUICK = {"family": "llama", "hidden": 64, "layers": 3, "seed": 0}
TARGETS = {"quick": {"equal": 3.0}, "smollm2": {"equal": 1.25, "ragged": 1.7}}


def lengths(mix: str, mean: int, count: int, seed: int) -> list[int]:
    """How many tokens each completion of a step has; the same mix in another order for every step."""
    if mix == "equal":
        return [mean] * count
    rng = random.Random(seed)
    middle = math.log(mean) - SIGMA**2 / 2
    drawn = random.Random(0)
    sizes = [
        max(2, min(CAP * mean, round(drawn.lognormvariate(middle, SIGMA)))) for _ in range(count)
    ]
    rng.shuffle(sizes)
    return sizes


def prepare(folder: Path, model: Path | None, size: str, mix: str) -> dict[str, Any]:
    """The folder that every side reads: prompts, and what is asked of both."""
    from ascent.models import tiny

    work = WORK[size]
    rng = random.Random(0)
    steps = WARM + work["steps"]
    texts = [
        " ".join(str(rng.randrange(10)) for _ in range(work["words"])) + " ="
        for _ in range(steps * work["prompts"])
    ]
    if model is None:
        model = tiny.create(folder / "model", **QUICK)  # type: ignore[arg-type]
    (folder / "prompts.jsonl").write_text(
        "".join(json.dumps({"prompt": text}) + "\n" for text in texts)
    )
    (folder / "reward.py").write_text(
        "def spread(rollout):\n    return float(sum(map(ord, rollout.text)) % 7) / 7\n"  # cheap, and never all the same
    )
    rows = work["prompts"] * work["group"]
    asked = {
        **work,
        "folder": str(folder),
        "model": str(model),
        "steps": steps,
        "learning_rate": LEARNING_RATE,
        "lengths": [lengths(mix, work["mean"], rows, seed) for seed in range(1, steps + 1)],
    }
    (folder / "work.json").write_text(json.dumps(asked))
    return asked


class Imposed:
    """A sampler whose completions have the lengths that they are to have, whatever the policy says."""

    def __init__(self, engine: Any, group: int, steps: list[list[int]]) -> None:
        engine.stop_ids = NEVER
        self.engine, self.group, self.steps = engine, group, steps

    def sample(self, requests: Iterable[Any]) -> Iterator[Any]:
        """In the order given: `engine.sample` would begin with the longest, which nobody knows in earnest."""
        asked = list(requests)
        for each in asked:
            self.engine.add(replace(each, max_new_tokens=self._length(each)))
        left = len(asked)
        while left:
            done = self.engine.step()
            left -= len(done)
            yield from done

    def _length(self, request: Any) -> int:
        occasion, place, _ = request.prompt_id.split("/", 2)
        return self.steps[int(float(occasion)) - 1][int(place) * self.group + request.sample]

    def set_weights(self, version: int, tensors: Any) -> None:
        self.engine.set_weights(version, tensors)

    def close(self) -> None:
        self.engine.close()


def ours(folder: Path) -> dict[str, Any]:
    """Source, learner and objective as `ascent train` builds them; saving and evaluating are left out."""
    import torch

    from ascent.api.train import assemble
    from ascent.config.load import nest_keys
    from ascent.config.validate import validate
    from ascent.plan.resolve import resolve

    torch.set_num_threads(1)
    asked = json.loads((folder / "work.json").read_text())
    config = nest_keys(
        {
            "algorithm": "grpo",
            "cells.kl": False,
            "cells.kl_controller": False,
            "model.policy": asked["model"],
            "data.train": str(folder / "prompts.jsonl"),
            "data.shuffle": False,
            "rewards": [{"use": f"{folder / 'reward.py'}:spread"}],
            "rollouts.prompts_per_step": asked["prompts"],
            "rollouts.group_size": asked["group"],
            "rollouts.max_new_tokens": CAP * asked["mean"],
            "update.learning_rate": asked["learning_rate"],
            "run.steps": asked["steps"],
        }
    )
    training = assemble(resolve(validate(config)), folder)
    source: Any = training.source
    source.sampler = Imposed(source.sampler, asked["group"], asked["lengths"])
    rows = []
    for step in range(1, asked["steps"] + 1):
        wall, cpu = time.perf_counter(), time.process_time()
        batches = source.next(step)
        sampled, trained = time.perf_counter() - wall, 0
        while batches:
            trained += sum(int(batch["loss_mask_T"].sum()) for batch in batches)
            stats = training.learner.step(batches, training.objective)
            batches = source.more(stats)
        source.refresh(training.learner.weights())
        rows.append(
            {
                "wall": time.perf_counter() - wall,
                "cpu": time.process_time() - cpu,
                "rollout": sampled,
                "tokens": trained,
                "read": sum(len(turn.observed) for each in source.rollouts for turn in each.turns),
            }
        )
    return {
        "steps": rows,
        "peak_bytes": peak_bytes(),
        "versions": versions("torch", "transformers"),
    }


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def versions(*names: str) -> dict[str, str]:
    return {name: metadata.version(name) for name in names}


def measured(python: str, script: Path, *words: str) -> dict[str, Any]:
    """One process; seconds of a step after the warm-up."""
    done = subprocess.run(
        [python, str(script), *words], capture_output=True, text=True, timeout=7200
    )
    if done.returncode:
        raise RuntimeError(f"{script.name} {' '.join(words)} failed:\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    timed = found["steps"][WARM:]
    return {
        "wall": statistics.mean(row["wall"] for row in timed),
        "cpu": statistics.mean(row["cpu"] for row in timed),
        "load": os.getloadavg()[0],
        **found,
    }


def study(
    trl: str | None, size: str, mix: str, model: Path | None
) -> dict[str, list[dict[str, Any]]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        asked = prepare(folder, model, size, mix)
        sides = {"ours": (sys.executable, Path(__file__), ["--ours", name])}
        if trl is not None:
            count = asked["prompts"] * asked["group"]
            sides["trl, 8 at a time"] = (trl, PEER, [name, "8"])
            sides["trl, all at once"] = (trl, PEER, [name, str(count)])
        found: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
        for repetition in range(WORK[size]["runs"]):
            for side, (python, script, words) in sides.items():
                row = measured(python, script, *words)
                found[side].append(row)
                print(
                    f"{size} {mix} {repetition + 1}/{WORK[size]['runs']}  {side:<18} {row['wall']:7.3f} s a step  "
                    f"{row['cpu']:7.3f} CPU s  peak {row['peak_bytes'] / 2**20:6.0f} MiB  load {row['load']:.1f}",
                    flush=True,
                )
    return found


def verdict(found: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Medians over the repetitions; ours against the faster of the others. Both must have trained the same tokens."""
    sides = {
        side: {
            name: statistics.median(row[name] for row in rows)
            for name in ("wall", "cpu", "peak_bytes")
        }
        for side, rows in found.items()
    }
    result: dict[str, Any] = {"sides": sides}
    if len(sides) > 1:
        best = min((side for side in sides if side != "ours"), key=lambda side: sides[side]["wall"])
        result |= {
            "against": best,
            "times_wall": sides[best]["wall"] / sides["ours"]["wall"],
            "times_cpu": min(sides[side]["cpu"] for side in sides if side != "ours")
            / sides["ours"]["cpu"],
            "share_of_memory": sides["ours"]["peak_bytes"] / sides[best]["peak_bytes"],
        }
        work = {
            side: [(row["tokens"], row["read"]) for row in rows[0]["steps"]]
            for side, rows in found.items()
        }
        if len({tuple(each) for each in work.values()}) > 1:
            raise RuntimeError(
                f"the sides did not do the same work (tokens trained, tokens read): {work}"
            )
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trl", metavar="PYTHON")
    parser.add_argument("--smollm2", type=Path, metavar="FOLDER", help="a folder with SmolLM2-135M")
    parser.add_argument("--only", choices=list(WORK))
    parser.add_argument("--write", action="store_true", help="keep the result in bench/results")
    parser.add_argument("--ours", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.ours is not None:
        print(json.dumps(ours(given.ours)))
        return
    models = {"quick": None, **({"smollm2": given.smollm2.resolve()} if given.smollm2 else {})}
    results, raw = {}, {}
    for size, model in models.items():
        if given.only in (None, size):
            for mix in ("equal", "ragged"):
                raw[f"{size} {mix}"] = study(given.trl, size, mix, model)
                results[f"{size} {mix}"] = verdict(raw[f"{size} {mix}"])
    print(json.dumps(results, indent=1))
    if given.write:
        today = datetime.date.today().isoformat()
        record = {
            "study": "grpo",
            "date": today,
            "command": "python bench/grpo.py --trl PYTHON --smollm2 FOLDER --write",
            "hardware": hardware(),
            "threads": 1,
            "work": {size: WORK[size] for size in models},
            "quick": QUICK,
            "warm_up": WARM,
            "targets": TARGETS,
            "results": results,
            "repetitions": raw,
        }
        path = HERE / "results" / f"{today}-grpo.json"
        path.write_text(json.dumps(record, indent=1) + "\n")
        print(f"written to {path.name}")


if __name__ == "__main__":
    main()
