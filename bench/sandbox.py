"""How many honest programs a second the sandbox grades.

    python bench/sandbox.py [--write]

Prints programs per second over 200 programs of ten cases each, three times, with one worker for each core, and the
load of the machine before and after.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import time
from pathlib import Path

from ascent.sandbox.programs import Sandbox, Suite

PROGRAMS, RUNS = 200, 3
SOURCE = (
    "def solve(n):\n    return n * n\nif __name__ == '__main__':\n    print(solve(int(input())))\n"
)
SUITES = {
    "calls": Suite.calls("solve", [((n,), n * n) for n in range(10)]),
    "stdio": Suite.stdio([(f"{n}\n", f"{n * n}\n") for n in range(10)]),
    "asserts": Suite.asserts([f"assert solve({n}) == {n * n}" for n in range(10)]),
}


def measure(suite: Suite) -> list[float]:
    sandbox, rates = Sandbox(), []
    sandbox.grade([(SOURCE, suite)] * 4)  # start the workers
    for _ in range(RUNS):
        start = time.perf_counter()
        verdicts = sandbox.grade([(SOURCE, suite)] * PROGRAMS)
        rates.append(PROGRAMS / (time.perf_counter() - start))
        assert all(verdict.solved for verdict in verdicts), "an honest program failed"
    sandbox.close()
    return rates


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--write", action="store_true")
    write, before = arguments.parse_args().write, os.getloadavg()
    found = {name: measure(suite) for name, suite in SUITES.items()}
    for name, rates in found.items():
        print(f"{name}: {', '.join(f'{rate:.1f}' for rate in rates)} programs/s")
    loads = {"before": before, "after": os.getloadavg()}
    print(f"{os.cpu_count()} cores, load {before[0]:.1f} before, {loads['after'][0]:.1f} after")
    if write:
        today = datetime.date.today().isoformat()
        record = {
            "machine": platform.machine(),
            "cores": os.cpu_count(),
            "load": loads,
            "programs_per_s": found,
        }
        path = Path(__file__).parent / "results" / f"{today}-sandbox.json"
        path.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
