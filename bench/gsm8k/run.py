"""GSM8K on one GPU: ours and TRL's, stage by stage; settings.py says what is trained and was written first.

    python bench/gsm8k/run.py --model FOLDER --data FOLDER --work FOLDER --out FOLDER [--stages sft,grpo] [--seconds N]
        [--jobs 3]
    python bench/gsm8k/run.py --tiny ...        # a trial of the scripts on a CPU, with a small model

A stage (and seed) is a process of its own that writes OUT/STAGE[-SEED].json; one that is there is not run again, so the
same command continues after a stop. With --seconds no stage starts that would end later than that, by what its other
seeds took. Runs that were stopped resume from WORK. Stages whose time is compared with TRL's run alone; of the others
(SIDE_BY_SIDE) --jobs run at a time. TRL has to be importable. bench/gsm8k/report.py makes one JSON and the plots.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["HF_HUB_OFFLINE"] = "1"

from settings import (
    CELLS,
    NEEDS,
    PHASES,
    RL,
    SEEDED,
    SEEDS,
    SIDE_BY_SIDE,
    TINY,
    VARIANTS,
    Settings,
    Study,
)

STAGES = [stage for phase in PHASES for stage in phase]
FIRST_GUESS = 60.0  # seconds of a stage of which none has run


def run_stage(study: Study, stage: str, seed: int | None) -> None:
    """In this process."""
    import torch

    start = time.time()
    if stage in (*RL, *VARIANTS):
        from ours import rl

        found = rl(study, stage, seed or 0)
    elif stage.startswith("test_"):
        from evaluate import peak_gb, test_points

        found = {
            "points": test_points(study, stage.removeprefix("test_"), seed),
            "peak_gb": peak_gb(),
        }
    else:
        import extras
        import ours
        import pairs

        if stage.startswith("trl_"):
            import peers as module
        else:
            module = next(each for each in (ours, pairs, extras) if hasattr(each, stage))
        own = getattr(module, stage.removeprefix("trl_"))
        found = own(study) if seed is None else own(study, seed)
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    study.write(
        stage, seed, {"gpu": gpu, "torch": torch.__version__, "wall": time.time() - start, **found}
    )


def work(phase: tuple[str, ...], seeds: list[int]) -> list[tuple[str, int | None]]:
    """Stages with their seeds. Those of both sides of GRPO alternate, so that each call has all of a seed."""
    numbers: dict[str, Iterable[int]] = {stage: range(count) for stage, count in CELLS.items()}
    numbers |= dict.fromkeys([*SEEDED, *(f"test_{stage}" for stage in SEEDED)], seeds)
    found = [(stage, number) for stage in phase for number in numbers.get(stage, [None])]
    return sorted(found, key=lambda each: each[1] or 0) if phase == PHASES[2] else found


def expected_seconds(study: Study, stage: str) -> float:
    """The longest that another seed of the stage has taken."""
    found = [json.loads(path.read_text())["wall"] for path in study.out.glob(f"{stage}-*.json")]
    return max(found, default=FIRST_GUESS)


def run_apart(study: Study, until: float, stage: str, seed: int | None) -> int:
    """In a process of its own, unless it is done or too late. Returns its status."""
    name, began = study.name(stage, seed), time.time()
    if study.result(stage, seed).exists():
        return 0
    first = (
        study.result(NEEDS[stage])
        if stage in NEEDS
        else study.result(stage.removeprefix("test_"), seed)
    )
    waits = first != study.result(stage, seed) and not first.exists()
    if waits or began + expected_seconds(study, stage) > until:
        print(name, "left for the next call", flush=True)
        return 0
    words = [sys.executable, __file__, *sys.argv[1:], "--stage", stage]
    words += [] if seed is None else ["--seed", str(seed)]
    with (study.out / f"{name}.log").open("w") as log:
        status = subprocess.run(words, stdout=log, stderr=log, check=False).returncode
    print(
        name,
        f"{time.time() - began:.0f} s",
        "" if not status else f"failed: {study.out / name}.log",
        flush=True,
    )
    return status


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("model", "data", "work", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--stages", default=",".join(STAGES))
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)))
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="no stage starts after this many"
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=1,
        help="stages at a time, of those not timed; up to 17 GiB each",
    )
    parser.add_argument("--tiny", action="store_true", help="a trial on a CPU")
    parser.add_argument("--stage", help="this stage in this process")
    parser.add_argument("--seed", type=int)
    given = parser.parse_args()
    if given.jobs > 1:  # or stages side by side wait for each other's threads
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // given.jobs)))
    stages = given.stages.split(",")
    unknown = set(stages) - set(STAGES)
    if unknown:
        parser.error(f"no stage {', '.join(sorted(unknown))}; there are {', '.join(STAGES)}")
    study = Study(
        given.model, given.data, given.work, given.out, TINY if given.tiny else Settings()
    )
    if given.stage:
        run_stage(study, given.stage, given.seed)
        return
    for folder in (given.work, given.out):
        folder.mkdir(parents=True, exist_ok=True)
    from data import prepare

    prepare(study)
    each = partial(run_apart, study, time.time() + given.seconds)
    seeds, failed = [int(seed) for seed in given.seeds.split(",")], 0
    for phase in PHASES:
        queue = [one for one in work(phase, seeds) if one[0] in stages]
        with ThreadPoolExecutor(given.jobs if phase[0] in SIDE_BY_SIDE else 1) as pool:
            failed += sum(map(bool, pool.map(lambda one: each(*one), queue)))
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
