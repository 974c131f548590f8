"""Supervised fine-tuning on one CPU thread: real tokens per second, ours against TRL's SFTTrainer.

    python bench/sft.py [--peer-python PATH] [--write]

PATH is the Python of an environment with torch, transformers and trl (or set PEER_PYTHON); without it only ours is
measured. Every measurement is a process of its own, one at a time, in turns, so that whatever else the machine does
falls on all. The model is a folder that both load; the texts, their order and the sequences of an optimizer step are
the same, except that TRL's packing decides itself which texts share a step. Real tokens are those of the texts and
their EOS, never padding. CPU seconds stand beside wall-clock: on a busy machine they are the steadier of the two.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"

import argparse
import datetime
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from hardware import hardware

HERE = Path(__file__).resolve().parent
PEER = HERE / "peers" / "sft.py"
REPETITIONS, WARM, STEPS, BATCH, LONGEST = 3, 1, 4, 16, 512
LEARNING_RATE = 1e-3
MODEL = {
    "family": "llama",
    "hidden": 256,
    "layers": 4,
    "heads": 4,
    "key_value_heads": 2,
    "intermediate": 1024,
}
VOCABULARY = 2048
# TRL's packing, with as many tokens in an optimizer step as 16 of the texts have: all packs in one flat row, or one
# pack after the other. The faster of the two is what ours is compared with.
PEERS = {
    "trl unpacked": {"packing": False, "rows": BATCH, "accumulate": 1},
    "trl packed, flat": {"packing": True, "rows": 4, "accumulate": 1},
    "trl packed, one by one": {"packing": True, "rows": 1, "accumulate": 4},
}
TARGETS = {"of_unpacked": 1.5, "of_packed": 1.0, "real_share": 0.95}


def texts(count: int, seed: int = 0) -> list[str]:
    """Seeded nonsense of few short and long words; lengths are log-normal, so most are short and some are long."""
    rng = random.Random(seed)
    words = ["".join(rng.choices("etaoinshrdlu", k=rng.randint(2, 7))) for _ in range(1500)]
    sizes = [min(170, max(3, round(rng.lognormvariate(3.3, 1.0)))) for _ in range(count)]
    return [" ".join(rng.choices(words, weights=range(1, 1501), k=size)) for size in sizes]


def prepare(folder: Path) -> None:
    """The model folder and the file of texts that every side reads."""
    from ascent.models import tiny

    lines = texts((WARM + STEPS) * BATCH)
    tiny.create(folder / "model", texts=texts(2000, seed=1), vocabulary=VOCABULARY, seed=0, **MODEL)  # type: ignore[arg-type]
    (folder / "texts.jsonl").write_text(
        "".join(json.dumps({"text": line}) + "\n" for line in lines)
    )


def ours(folder: Path) -> dict[str, Any]:
    """Our source, learner and objective, as `ascent train` builds them; saving and evaluating are left out."""
    import torch

    from ascent.api.train import assemble
    from ascent.config.validate import validate
    from ascent.plan.resolve import resolve

    torch.set_num_threads(1)
    config = {
        "algorithm": "sft",
        "model": {"policy": str(folder / "model")},
        "data": {
            "train": str(folder / "texts.jsonl"),
            "batch_size": BATCH,
            "max_tokens": LONGEST,
            "train_on": "all",
            "shuffle": False,
        },
        "update": {"learning_rate": LEARNING_RATE},
        "run": {"steps": WARM + STEPS},
    }
    training = assemble(resolve(validate(config)), folder)
    seen = {"computed": 0}
    training.model.module.get_input_embeddings().register_forward_pre_hook(
        lambda _, inputs: seen.update(computed=seen["computed"] + inputs[0].numel())
    )
    rows = []
    for step in range(1, WARM + STEPS + 1):
        wall, cpu, before = time.perf_counter(), time.process_time(), seen["computed"]
        batches = training.source.next(step)
        stats = training.learner.step(batches, training.objective)
        loss = stats["loss/total"].value()
        rows.append(
            {
                "wall": time.perf_counter() - wall,
                "cpu": time.process_time() - cpu,
                "real": sum(int(batch["segments"].lengths_B.sum()) for batch in batches),
                "computed": seen["computed"] - before,
                "loss": loss,
            }
        )
    return {"steps": rows, "versions": versions("torch", "transformers")}


def versions(*names: str) -> dict[str, str]:
    return {name: metadata.version(name) for name in names}


def measured(python: str, script: Path, *words: str) -> dict[str, Any]:
    """One process; the rates of its steps after the warm-up."""
    done = subprocess.run(
        [python, str(script), *words], capture_output=True, text=True, timeout=3600
    )
    if done.returncode:
        raise RuntimeError(f"{script.name} {' '.join(words)} failed:\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    timed = found["steps"][WARM:]
    total = {name: sum(row[name] for row in timed) for name in ("wall", "cpu", "real", "computed")}
    return {
        "tokens_per_second": total["real"] / total["wall"],
        "tokens_per_cpu_second": total["real"] / total["cpu"],
        "real_share": total["real"] / total["computed"],
        "load": os.getloadavg()[0],
        **found,
    }


def study(peer: str | None, folder: Path) -> dict[str, list[dict[str, Any]]]:
    sides = {"ours": (sys.executable, Path(__file__), ["--ours", str(folder)])}
    if peer is not None:
        shared = {
            "folder": str(folder),
            "steps": WARM + STEPS,
            "longest": LONGEST,
            "learning_rate": LEARNING_RATE,
        }
        for name, settings in PEERS.items():
            sides[name] = (peer, PEER, [json.dumps({**shared, **settings})])
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in sides}
    for repetition in range(REPETITIONS):
        for name, (python, script, words) in sides.items():
            row = measured(python, script, *words)
            found[name].append(row)
            print(
                f"{repetition + 1}/{REPETITIONS}  {name:<24} {row['tokens_per_second']:7.0f} tokens/s"
                f"  {row['tokens_per_cpu_second']:7.0f} per CPU second  real {row['real_share']:.3f}"
                f"  load {row['load']:.1f}",
                flush=True,
            )
    return found


def verdict(found: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Medians over the repetitions, and ours against each; the first loss must agree or the work was not the same."""
    by_wall = {
        name: statistics.median(row["tokens_per_second"] for row in rows)
        for name, rows in found.items()
    }
    by_cpu = {
        name: statistics.median(row["tokens_per_cpu_second"] for row in rows)
        for name, rows in found.items()
    }
    result: dict[str, Any] = {"tokens_per_second": by_wall, "tokens_per_cpu_second": by_cpu}
    result["real_share"] = found["ours"][0]["real_share"]
    if len(found) > 1:
        for clock, medians in (("wall", by_wall), ("cpu", by_cpu)):
            packed = max(value for name, value in medians.items() if "packed," in name)
            result[clock] = {
                "of_unpacked": medians["ours"] / medians["trl unpacked"],
                "of_packed": medians["ours"] / packed,
            }
        pairs = zip(found["ours"][0]["steps"], found["trl unpacked"][0]["steps"], strict=True)
        result["largest_difference_of_losses"] = max(abs(a["loss"] - b["loss"]) for a, b in pairs)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer-python", default=os.environ.get("PEER_PYTHON"), metavar="PATH")
    parser.add_argument("--write", action="store_true", help="keep the result in bench/results")
    parser.add_argument("--ours", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.ours is not None:
        print(json.dumps(ours(given.ours)))
        return
    with tempfile.TemporaryDirectory() as name:
        prepare(Path(name))
        found = study(given.peer_python, Path(name))
    result = verdict(found)
    print(json.dumps(result, indent=1))
    if given.peer_python is None:
        print("no --peer-python: nothing to compare with")
    if given.write:
        today = datetime.date.today().isoformat()
        record = {
            "study": "sft",
            "date": today,
            "command": "python bench/sft.py --peer-python PATH --write",
            "hardware": hardware(),
            "threads": 1,
            "model": {**MODEL, "vocabulary": VOCABULARY},
            "peers": PEERS,
            "batch": BATCH,
            "steps": STEPS,
            "warm_up": WARM,
            "targets": TARGETS,
            **result,
            "repetitions": found,
        }
        path = HERE / "results" / f"{today}-sft.json"
        path.write_text(json.dumps(record, indent=1) + "\n")
        print(f"written to {path.name}")


if __name__ == "__main__":
    main()
