"""The quick-start step on one and on several ranks, one thread each, at fixed work: seconds of a step, and CPU seconds.

    python bench/ranks.py [--processes 1,2] [--prompts 32] [--steps 12] [--rounds 3] [--out FILE]

The numbers of ranks take turns. At most .62 of one rank's time is asked of two. One process with half of the prompts
shows what dividing the work can give at best. On a machine that does other work the CPU seconds of the busiest rank are
the steadier number.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

RANK = """
import json, sys, time
from pathlib import Path
from ascent.api.train import plan_of, train_plan
from ascent.parallel.distributed import process_group
seconds = []
import ascent.loop as loop
update = loop._update
def timed(parts, step):
    began = time.process_time()
    found = update(parts, step)
    seconds.append(time.process_time() - began)
    return found
loop._update = timed
words = json.loads(sys.argv[2])
with process_group() as ranks:
    train_plan(plan_of(words[0], words[1:]), Path(sys.argv[1]) / "run", progress=False, ranks=ranks)
    if (found := ranks.gather(seconds, "the end")) and ranks.is_first:
        (Path(sys.argv[1]) / "cpu.json").write_text(json.dumps(found))
"""


def measure(processes: int, words: list[str]) -> tuple[float, float]:
    """The median step without the first two, and the CPU seconds of the busiest rank."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from ascent.parallel.launch import launch

    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", RANK, folder, json.dumps(words)]
        status = (
            launch(command, processes, say=print) if processes > 1 else subprocess.call(command)
        )
        assert status == 0, status
        lines = [
            json.loads(line)
            for line in (Path(folder) / "run/metrics.jsonl").read_text().splitlines()
        ]
        wall = [line["time/step"] for line in lines if "time/step" in line][2:]
        cpu = json.loads((Path(folder) / "cpu.json").read_text())
        return statistics.median(wall), max(statistics.median(own[2:]) for own in cpu)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--processes", default="1,2")
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    counts = [int(each) for each in options.processes.split(",")]
    words = [
        "quickstart_rlvr",
        "model=tiny:digits",
        f"run.steps={options.steps}",
        "run.save_every=1000",
        "run.evaluate_every=1000",
        "update.schedule=constant",
        "data.evaluate=sort_long@heldout:8",
        f"rollouts.prompts_per_step={options.prompts}",
        "cells.filter.nonzero_variance=false",  # every group is trained on
    ]
    found: dict[int, list[tuple[float, float]]] = {count: [] for count in counts}
    for _ in range(options.rounds):
        for count in counts:
            found[count].append(measure(count, words))
            print(
                f"{count} ranks: {found[count][-1][0]:.3f} s a step, {found[count][-1][1]:.3f} CPU s",
                flush=True,
            )
    medians = {
        count: [statistics.median(each) for each in zip(*runs, strict=True)]
        for count, runs in found.items()
    }
    base = medians[counts[0]]
    for count, (wall, cpu) in medians.items():
        print(
            f"{count} ranks: {wall:.3f} s a step ({wall / base[0]:.2f}), {cpu:.3f} CPU s ({cpu / base[1]:.2f})"
        )
    if options.out is not None:
        load = os.getloadavg()[0]
        record = {
            "options": {**vars(options), "out": None},
            "load": load,
            "runs": found,
            "medians": medians,
        }
        options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
