"""What the layouts of several ranks cost on one: seconds of an optimizer step, beside the learner of one process.

    python bench/one_rank.py [--size 0.5b] [--tokens 16384] [--steps 10] [--device cuda] [--out FILE]

A Qwen2.5 shape with random weights in bfloat16, four micro-batches of `--tokens` tokens in sequences of 1,024, SFT. The
layouts take turns, a block of `--steps` steps each, three times; of each the median step is reported. At most 1.03 is
asked for.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from ascent.algorithms import TABLE
from ascent.models.tiny import create
from ascent.update.objective import objective_of
from bench.step_gpu import SHAPES, VOCAB
from tests.update.test_sharded_optim import LAYOUTS, one_rank_learner, text_batch

SEQUENCE, MICROBATCHES, ROUNDS, WARM = 1024, 4, 3, 2


def seconds_of(layout: str, folder: Path, given: argparse.Namespace) -> list[float]:
    """Of every step after the first ones."""
    learner, found = one_rank_learner(layout, folder, "bfloat16", given.device), []
    lengths = [min(SEQUENCE, given.tokens)] * max(1, given.tokens // SEQUENCE)
    batches = [text_batch(lengths, seed) for seed in range(MICROBATCHES)]
    objective = objective_of(TABLE["sft"])
    for _ in range(WARM + given.steps):
        began = time.perf_counter()
        {name: each.value() for name, each in learner.step(batches, objective).items()}
        if given.device == "cuda":
            torch.cuda.synchronize()
        found.append(time.perf_counter() - began)
    learner.close()
    del learner
    if given.device == "cuda":
        torch.cuda.empty_cache()
    return found[WARM:]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", default="0.5b", choices=SHAPES)
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    steps: dict[str, list[float]] = {layout: [] for layout in LAYOUTS}
    with tempfile.TemporaryDirectory() as folder:
        shape: dict[str, Any] = {
            "vocab_size": VOCAB,
            "tie_word_embeddings": True,
            **SHAPES[given.size],
        }
        with torch.device(given.device):  # billions of random numbers take minutes on a CPU
            create(folder, family="qwen2", longest=SEQUENCE, **shape)
        for _ in range(ROUNDS):
            for layout, found in steps.items():
                found += seconds_of(layout, Path(folder), given)
    median = {layout: statistics.median(found) for layout, found in steps.items()}
    for layout, seconds in median.items():
        print(f"{layout}: {seconds:.4f} s a step ({seconds / median['single']:.3f})", flush=True)
    if given.out is not None:
        device = torch.cuda.get_device_name() if given.device == "cuda" else "cpu"
        given.out.write_text(
            json.dumps({"device": device, "torch": torch.__version__, "seconds": steps}, indent=1)
            + "\n"
        )


if __name__ == "__main__":
    main()
