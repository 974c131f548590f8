"""An instruction-tuned model learns to sort: examples/sort_numbers.py with several seeds, recorded.

    python bench/sort_numbers.py MODEL [--seeds 0,1,2] [--dtype bfloat16] [--write]

Held-out accuracy by step, seconds from the first evaluation to the last, how many held-out prompts changed from wrong
to correct and back, and the first answers before and after. --write: bench/results/DATE-sort-numbers.json, and the
curves of the first seed in docs/results.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

import torch  # noqa: E402
import transformers  # noqa: E402
from hardware import hardware  # noqa: E402

import ascent  # noqa: E402
from ascent.runs.folder import Run, read_run  # noqa: E402
from examples.sort_numbers import in_order  # noqa: E402

SHOWN = 4


def curve(run: Run) -> dict[str, Any]:
    rows = [row for row in run.metrics if "eval/reward/correct" in row]
    accuracy = {int(row["step"]): row["eval/reward/correct"] for row in rows}
    return {"accuracy": accuracy, "seconds": rows[-1]["timestamp"] - rows[0]["timestamp"]}


def answers(model: str, data: Path, dtype: str) -> list[tuple[str, str, float]]:
    """Question, greedy answer, and whether it is correct."""
    prompts = list(ascent.load_data(str(data), "prompts"))
    drawn = ascent.Policy(model, dtype=dtype, max_new_tokens=32).sample(prompts, greedy=True)
    return [
        (each.prompt.messages[-1].content, each.text, in_order(each)["correct"]) for each in drawn
    ]


def measure(model: str, folder: Path, seed: int, given: argparse.Namespace) -> dict[str, Any]:
    words = [
        sys.executable,
        str(ROOT / "examples/sort_numbers.py"),
        model,
        "--run",
        str(folder),
        "--seed",
        str(seed),
    ]
    words += ["--dtype", given.dtype, "--steps", str(given.steps), "--prompts", str(given.prompts)]
    words += ["--heldout", str(given.heldout)]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    data = folder.with_name(f"{folder.name}-data") / "heldout.jsonl"
    before, after = (answers(name, data, given.dtype) for name in (model, str(folder)))
    pairs = list(zip(before, after, strict=True))
    found = {
        "learned": sum(not a[2] and bool(b[2]) for a, b in pairs),
        "lost": sum(bool(a[2]) and not b[2] for a, b in pairs),
        "examples": [[a[0], a[1], b[1]] for a, b in pairs[:SHOWN]],
    }
    return {"seed": seed, **curve(read_run(folder)), **found}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--heldout", type=int, default=256)
    parser.add_argument("--write", action="store_true")
    parser.add_argument(
        "--out", type=Path, default=ROOT, help="in place of the root of the repository"
    )
    given = parser.parse_args()
    today, runs = datetime.date.today().isoformat(), []
    for name in ("bench/results", "docs/results"):
        (given.out / name).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        for seed in map(int, given.seeds.split(",")):
            folder = Path(work) / str(seed)
            runs.append(measure(given.model, folder, seed, given))
            print(
                json.dumps({key: value for key, value in runs[-1].items() if key != "examples"}),
                flush=True,
            )
            if given.write and len(runs) == 1:
                shutil.copy(folder / "curves.png", given.out / "docs/results/sort_numbers.png")
    record = {
        "study": "sort-numbers",
        "date": today,
        "hardware": hardware(),
        "command": "python bench/sort_numbers.py MODEL",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "dtype": given.dtype,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "runs": runs,
    }
    if given.write:
        path = given.out / f"bench/results/{today}-sort-numbers.json"
        path.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
