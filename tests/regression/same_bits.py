"""Do two trees of this repository train to the same bits?

    make same-bits                   this tree against the revision in tests/regression/BASE
    make same-bits BASE=rev          against another revision
    make same-bits ONLY="lora ppo"   only cases whose names hold these words
    make same-bits DEVICE=cuda       eight recipes on a card

Every case of `cases.py` is trained with both trees, one thread each, and what it leaves is compared: weights, contents
of the checkpoint, rollouts, metrics, notes, config. Bits of float32 differ between kinds of CPU and versions of torch,
so references are made on this machine, from the revision itself, and kept in .same-bits/ for the next comparison.

A commit that changes bits on purpose changes nothing else and names the cases in its message; the next one moves BASE.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.regression.cases import OLD, REWARDS, Case, cases_on_cuda, list_cases
from tests.regression.one_tree import THREADS, Result, digest

ROOT = Path(__file__).resolve().parents[2]
BASE = Path(__file__).with_name("BASE")
KEPT = ROOT / ".same-bits"
PARTS = ("config", "notes", "weights", "checkpoint", "rollouts", "metrics")
SHOWN = 8  # differences of a case


# --- measuring -------------------------------------------------------------------------------------------------------


def describe_machine() -> str:
    """What bits depend on besides the tree."""
    import torch
    import transformers

    processor = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        names = re.findall(r"(?:model name|CPU part)\s*: (.*)", Path("/proc/cpuinfo").read_text())
        processor = names[0] if names else processor
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{processor}, {platform.machine()} {capability}, {versions}, {THREADS} threads"


@contextlib.contextmanager
def check_out(revision: str, trees: Mapping[str, str]) -> Iterator[Path]:
    """A folder with the tree of a revision; `trees` has those of a machine without git."""
    if revision in trees:
        yield Path(trees[revision]).resolve()
        return
    with tempfile.TemporaryDirectory(prefix="same-bits-tree-") as folder:
        archive = subprocess.Popen(["git", "archive", revision], cwd=ROOT, stdout=subprocess.PIPE)
        subprocess.run(["tar", "-x", "-C", folder], stdin=archive.stdout, check=True)
        if archive.wait():
            raise SystemExit(f"git archive {revision} failed; its error is above")
        yield Path(folder)


def resolve_revision(name: str) -> str:
    command = ["git", "rev-parse", "--verify", f"{name}^{{commit}}"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if found.returncode:
        raise SystemExit(f"git has no revision {name}; fetch it, or name another BASE")
    return found.stdout.strip()


def measure(
    tree: Path, cases: Mapping[str, Case], old: Path, *, write_old: bool = False, jobs: int
) -> dict[str, Result]:
    """The results of a process whose package is that of `tree`, whatever is installed."""
    plain = {name: asdict(case) for name, case in cases.items()}
    given: dict[str, Any] = {"rewards": REWARDS, "cases": plain, "jobs": jobs}
    given |= {"old": str(old), "write_old": write_old}
    with tempfile.TemporaryDirectory() as folder:
        given_file, out = Path(folder, "given.json"), Path(folder, "results.jsonl")
        given_file.write_text(json.dumps(given))
        # By its path: the tree need not have this file, nor have it as it is here.
        script = str(Path(__file__).with_name("one_tree.py"))
        path = os.pathsep.join([str(tree), os.environ.get("PYTHONPATH", "")])
        environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": str(THREADS)}
        command = [sys.executable, "-P", script, str(given_file), str(out)]
        if subprocess.run(command, env=environment, cwd=folder).returncode:
            raise SystemExit(f"the tree in {tree} could not be measured; its error is above")
        return dict(json.loads(line) for line in out.read_text().splitlines())


class References:
    """The results of a revision on this machine, kept in a file; those that it lacks are made."""

    def __init__(self, device: str, trees: Mapping[str, str], jobs: int) -> None:
        self.device, self.trees, self.jobs = device, trees, jobs
        self.machine = f"{describe_machine()}, {device}"

    def of(self, revision: str, cases: Mapping[str, Case]) -> dict[str, Result]:
        file = KEPT / f"{revision[:12]}-{digest(self.machine.encode())}.json"
        known = json.loads(file.read_text())["results"] if file.exists() else {}
        recipes = {name: digest((str(asdict(cases[name])) + REWARDS).encode()) for name in cases}
        missing = {
            name: case
            for name, case in cases.items()
            if known.get(name, {}).get("recipe") != recipes[name] or "error" in known[name]
        }
        if missing:
            print(f"{len(missing)} references are made from {revision[:12]} ({self.machine})")
            old = self.write_old(missing)
            with check_out(revision, self.trees) as tree:
                for name, result in measure(tree, missing, old, jobs=self.jobs).items():
                    known[name] = result | {"recipe": recipes[name]}
            KEPT.mkdir(exist_ok=True)
            kept = {"revision": revision, "machine": self.machine, "results": known}
            file.write_text(json.dumps(kept, indent=1))
        return {name: known[name] for name in cases}

    def write_old(self, cases: Mapping[str, Case]) -> Path:
        """The folder of the runs that OLD wrote."""
        cases = {name: case for name, case in cases.items() if case.old}
        written = digest((str(cases) + REWARDS).encode())
        folder = KEPT / f"old-{OLD[:12]}-{digest(self.machine.encode())}"
        if cases and not (folder / written).exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            with check_out(OLD, self.trees) as tree:
                results = measure(tree, cases, folder, write_old=True, jobs=self.jobs)
            errors = [
                f"{name}: {result['error']}"
                for name, result in results.items()
                if "error" in result
            ]
            if errors:
                raise SystemExit("the old runs could not be written:\n" + "\n".join(errors))
            (folder / written).touch()
        return folder


# --- comparing -------------------------------------------------------------------------------------------------------


def differences(before: Result, after: Result) -> tuple[list[str], list[str]]:
    """What differs; and what is new: config keys, metrics and fields that the tree of before did not have."""
    if "error" in after:
        return [f"fails: {after['error']}"], []
    if "error" in before:  # a row or a key that the tree of before did not have
        return [], [f"trains; before: {before['error']}"]
    different = [
        f"the resumed run ends in other {part}"
        for part, equal in after.get("resumed", {}).items()
        if not equal
    ]
    new = []
    for part in PARTS:
        old, values = before.get(part, {}), after.get(part, {})
        if part == "notes":
            different += [f"note gone: {line}" for line in old if line not in values]
            different += [f"note added: {line}" for line in values if line not in old]
            if old != values and sorted(old) == sorted(values):
                different.append("the notes come in another order")
            continue
        for key in old:
            if key not in values:
                different.append(f"{part}: {key} is gone")
            elif old[key] != values[key]:
                shown = f": {old[key]!r} -> {values[key]!r}" if part == "config" else ""
                different.append(f"{part}: {key} differs{shown}")
        # No case names a key that the tree of before does not know, so a new one is at its default.
        shown_value = part == "config"
        new += [
            f"{part}: {key}" + (f" = {values[key]!r}" if shown_value else "")
            for key in values
            if key not in old
        ]
    return different, new


def report(before: Mapping[str, Result], after: Mapping[str, Result], verbose: bool) -> bool:
    """Print what differs, by case; true if nothing does."""
    added: dict[str, list[str]] = {}
    equal = 0
    for name in before:
        different, new = differences(before[name], after[name])
        for line in new:
            added.setdefault(line, []).append(name)
        if not different:
            equal += 1
            continue
        print(f"DIFFERENT  {name}")
        shown = different if verbose else different[:SHOWN]
        print(*(f"    {line}" for line in shown), sep="\n")
        if len(different) > len(shown):
            print(f"    and {len(different) - len(shown)} more; --verbose shows them")
    for line, names in added.items():
        print(f"new in {len(names)} of {len(before)} cases, such as {names[0]!r}: {line}")
    print(f"{equal} of {len(before)} cases have equal bits")
    return equal == len(before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--base", default=None, help="a revision; by default the one in tests/regression/BASE"
    )
    parser.add_argument(
        "--tree", action="append", default=[], metavar="REV=DIR", help="where there is no git"
    )
    parser.add_argument("--only", default="", help="words that the name of a case must hold")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--verbose", action="store_true", help="show every difference")
    options = parser.parse_args()
    started = time.monotonic()
    cases = cases_on_cuda() if options.device == "cuda" else list_cases()
    if options.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    words = options.only.split()
    cases = {name: case for name, case in cases.items() if all(word in name for word in words)}
    if not cases:
        raise SystemExit(f"no case's name holds {' and '.join(words)}")
    trees = dict(given.split("=", 1) for given in options.tree)
    base = options.base or BASE.read_text().split()[0]
    base = base if base in trees else resolve_revision(base)
    references = References(options.device, trees, options.jobs)
    before = references.of(base, cases)
    after = measure(ROOT, cases, references.write_old(cases), jobs=options.jobs)
    same = report(before, after, options.verbose)
    print(f"{time.monotonic() - started:.0f} s; base {base}")
    sys.exit(not same)


if __name__ == "__main__":
    main()
