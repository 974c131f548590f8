"""Train or resume in several processes, of this machine or on a Ray cluster. The process that starts them imports no
torch."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ascent.config.validate import validate
from ascent.config.yaml_text import read as read_yaml
from ascent.parallel.launch import RanksFailed, ascent_command, launch
from ascent.plan.load import load_config
from ascent.plan.resolve import Plan, resolve
from ascent.plan.unused_keys import OF_THE_TRAINER
from ascent.runs.claim import next_folder
from ascent.runs.folder import CONFIG, Run, read_run
from ascent.runs.sampler_files import FOLDER, read_count, write_count
from ascent.scale.options import RayOptions

Say = Callable[[str], None]


def train_in_processes(
    recipe: str,
    overrides: Sequence[str],
    processes: int,
    *,
    run: str | Path | None,
    layout: str,
    progress: bool,
    say: Say,
) -> Run:
    """`ascent.train` in so many ranks."""
    folder = Path(run) if run is not None else next_folder(Path(recipe).stem)
    words = ["train", recipe, *overrides, "--run", str(folder), "--layout", layout]
    return _run(words, folder, processes, progress=progress, say=say)


def resume_in_processes(
    run: Path, processes: int, *, accept_changes: bool, layout: str, progress: bool, say: Say
) -> Run:
    """`ascent.resume` in so many ranks."""
    words = [
        "resume",
        str(run),
        "--layout",
        layout,
        *(["--accept-changes"] if accept_changes else []),
    ]
    return _run(words, run, processes, progress=progress, say=say)


def train_on_ray(
    recipe: str,
    overrides: Sequence[str],
    options: RayOptions,
    *,
    run: str | Path | None,
    layout: str,
    progress: bool,
    say: Say,
) -> Run:
    """`ascent.train` on a Ray cluster."""
    folder = (Path(run) if run is not None else next_folder(Path(recipe).stem)).absolute()
    plan = resolve(load_config(recipe, overrides))
    if options.samplers and plan.config.rollouts.engine == "native":
        overrides = [*overrides, "rollouts.engine=remote"]
        plan = resolve(load_config(recipe, overrides))
    refuse_idle_samplers(plan, options.samplers)
    refuse_idle_reward_workers(plan, options.reward_workers)
    words = ["train", recipe, *overrides, "--run", str(folder), "--layout", layout]
    return _run_on_ray(words, folder, options, progress=progress, say=say)


def resume_on_ray(
    run: Path, options: RayOptions, *, accept_changes: bool, layout: str, progress: bool, say: Say
) -> Run:
    """`ascent.resume` on a Ray cluster."""
    folder = run.absolute()
    if (folder / CONFIG).is_file():
        config = read_yaml((folder / CONFIG).read_text(encoding="utf-8"), str(folder / CONFIG))
        plan = resolve(validate(config))
        refuse_idle_samplers(plan, options.samplers)
        refuse_idle_reward_workers(plan, options.reward_workers)
    words = [
        "resume",
        str(folder),
        "--layout",
        layout,
        *(["--accept-changes"] if accept_changes else []),
    ]
    return _run_on_ray(words, folder, options, progress=progress, say=say)


def ray_options(
    ray: bool,
    processes: int,
    samplers: int,
    cpus: float,
    gpus: float | None,
    reward_workers: int = 0,
) -> RayOptions | None:
    """None without --ray; ValueError for its options without it."""
    if ray:
        if os.environ.get("WORLD_SIZE", "1") != "1":
            raise ValueError(
                "--ray starts ranks, but this process is one already; use either --ray or torchrun"
            )
        return RayOptions(processes, samplers, cpus, gpus, reward_workers)
    if samplers or reward_workers or cpus != 1 or gpus is not None:
        raise ValueError(
            f"samplers={samplers}, reward_workers={reward_workers}, cpus={cpus:g}, gpus={gpus} are for runs on a Ray "
            "cluster; add --ray"
        )
    return None


def refuse_idle_samplers(plan: Plan, samplers: int) -> None:
    """ValueError where samplers would have nothing to do, or where there are others already."""
    settings = plan.config.rollouts
    if not samplers:
        return
    if not plan.row.samples:
        raise ValueError(
            f"samplers={samplers}, but {plan.row.name} learns from files and samples nothing; leave out --samplers"
        )
    if settings.engine != "remote":
        raise ValueError(
            f"samplers={samplers} are ascent serve, but rollouts.engine={settings.engine}; set "
            "rollouts.engine=remote, or leave out --samplers"
        )
    if settings.servers:
        raise ValueError(
            f"samplers={samplers}, but rollouts.servers names servers already; remove the key, or leave out --samplers"
        )


def refuse_idle_reward_workers(plan: Plan, workers: int) -> None:
    """ValueError where reward workers would have nothing to do."""
    uses = [each.use for each in plan.config.rewards]
    if not workers or (plan.row.samples and not OF_THE_TRAINER.issuperset(uses)):
        return
    names = ", ".join(uses) if uses else "none, or model.reward_model"
    what = (
        f"the rewards ({names}) run in the trainer"
        if plan.row.samples
        else f"{plan.row.name} samples nothing"
    )
    raise ValueError(f"reward_workers={workers}, but {what}; leave out --reward-workers")


def set_samplers(run: str | Path, count: int, *, say: Say = print) -> None:
    """Change how many samplers a run on Ray has, while it goes on.

    run: the run folder of a run that was started with --ray and --samplers.
    count: how many samplers there should be, at least 1.
    say: receives what is changed.

        set_samplers("runs/grpo", 4)
    """
    before = read_count(Path(run))
    write_count(Path(run), count)
    was = "" if before is None else f", before {before}"
    say(f"{count} samplers are wanted{was}; {Path(run) / FOLDER} says which answer")


def refuse_objects(
    processes: int,
    recipe: Any,
    given: Mapping[str, Any],
    tokenizer: Any,
    callbacks: Any,
    *,
    ray: bool = False,
) -> None:
    """ValueError where something that only this process has would have to be in the others."""
    own = [key for key, value in given.items() if value is not None and not isinstance(value, str)]
    own += ["tokenizer"] * (tokenizer is not None) + ["callbacks"] * bool(callbacks)
    if own or not isinstance(recipe, str | Path):
        what = "ray=True" if ray else f"processes={processes}"
        raise ValueError(
            f"{what} starts new processes, which get names only, not Python objects "
            f"({', '.join(own) or 'the recipe'}); start this script with torchrun --nproc-per-node {processes} instead"
        )


def _run(words: Sequence[str], folder: Path, processes: int, *, progress: bool, say: Say) -> Run:
    status = launch(
        ascent_command(*words, *([] if progress else ["--no-progress"])), processes, say=say
    )
    return _result(folder, status)


def _run_on_ray(
    words: Sequence[str], folder: Path, options: RayOptions, *, progress: bool, say: Say
) -> Run:
    from ascent.scale.driver import run_on_ray

    return _result(
        folder, run_on_ray([*words, *([] if progress else ["--no-progress"])], folder, options, say)
    )


def _result(folder: Path, status: int) -> Run:
    ended = read_run(folder) if (folder / CONFIG).exists() else None
    if ended is None or (status != 0 and ended.state not in ("stopped", "finished")):
        raise RanksFailed(status or 1)
    return ended
