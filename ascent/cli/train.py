"""`ascent train`, `ascent resume`, `ascent check`."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ascent.cli.lines import echo, format_bytes, peak_text
from ascent.cli.options import (
    INTERRUPTED,
    Cpus,
    Gpus,
    Layout,
    Overrides,
    Processes,
    Progress,
    Ray,
    Recipe,
    RewardWorkers,
    Run,
    Samplers,
    plain_errors,
    say,
)

if TYPE_CHECKING:
    from ascent.api.check import CheckResult
    from ascent.models.memory import Forecast
    from ascent.runs.folder import Run as RunResult


def train(
    recipe: Recipe,
    overrides: Overrides = None,
    run: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="The run folder to create, new or empty; by default runs/RECIPE-N."
        ),
    ] = None,
    processes: Processes = 1,
    layout: Layout = "auto",
    ray: Ray = False,
    samplers: Samplers = 0,
    cpus: Cpus = 1.0,
    gpus: Gpus = None,
    reward_workers: RewardWorkers = 0,
    progress: Progress = True,
) -> None:
    """Train from a recipe into a new run folder."""
    with plain_errors():
        from ascent.api.launch import ray_options, train_in_processes, train_on_ray

        options = ray_options(ray, processes, samplers, cpus, gpus, reward_workers)
        given: list[str] = overrides or []
        more: dict[str, Any] = {"run": run, "layout": layout, "progress": progress}
        if options is not None:
            return _exit_status(train_on_ray(recipe, given, options, **more, say=say))
        if processes != 1:
            return _exit_status(train_in_processes(recipe, given, processes, **more, say=say))
        from ascent.api.train import train

        _exit_status(train(recipe, given, **more, say=say))


def resume(
    run: Run,
    accept_changes: Annotated[
        bool,
        typer.Option(
            "--accept-changes", help="Continue although inputs have changed; it is recorded."
        ),
    ] = False,
    processes: Processes = 1,
    layout: Layout = "auto",
    ray: Ray = False,
    samplers: Samplers = 0,
    cpus: Cpus = 1.0,
    gpus: Gpus = None,
    reward_workers: RewardWorkers = 0,
    progress: Progress = True,
) -> None:
    """Continue a run from its newest valid checkpoint, bit for bit."""
    with plain_errors():
        from ascent.api.launch import ray_options, resume_in_processes, resume_on_ray

        options = ray_options(ray, processes, samplers, cpus, gpus, reward_workers)
        more: dict[str, Any] = {
            "accept_changes": accept_changes,
            "layout": layout,
            "progress": progress,
        }
        if options is not None:
            return _exit_status(resume_on_ray(run, options, **more, say=say))
        if processes != 1:
            return _exit_status(resume_in_processes(run, processes, **more, say=say))
        from ascent.api.train import resume

        _exit_status(resume(run, **more, say=say))


def samplers(
    run: Run, count: Annotated[int, typer.Argument(metavar="N", help="How many there should be.")]
) -> None:
    """Change how many samplers a run on Ray has, while it goes on."""
    with plain_errors():
        from ascent.api.launch import set_samplers

        set_samplers(run, count, say=echo)


def _exit_status(run: RunResult) -> None:
    """Ctrl-C finishes the step, saves, and ends with the status of an interrupted command."""
    if run.state == "stopped" and run.message.startswith("stopped by SIGINT"):
        raise typer.Exit(INTERRUPTED)


def check(
    recipe: Recipe,
    overrides: Overrides = None,
    processes: Annotated[
        int, typer.Option(help="Forecast the memory of each of so many ranks.")
    ] = 1,
    progress: Progress = True,
) -> None:
    """Try a recipe without keeping anything; forecast memory and time.

    Everything that a run does is done once: load, render, two optimizer steps, a save.
    """
    with plain_errors():
        from ascent.api.check import check

        print_check(check(recipe, overrides or (), processes=processes, progress=progress, say=say))


def print_check(found: CheckResult) -> None:
    from rich.text import Text

    from ascent.cli.console import make_console, print_text

    for note in found.notes:
        echo(f"- {note}")
    line = Text("first sequence, trained tokens in brackets: ")
    for text, trained in found.sample:
        line.append(f"[{text}]" if trained else text, style="bold green" if trained else "dim")
    print_text(make_console(), line)
    memory, steps = found.memory, found.steps
    minutes = steps * found.seconds / 60
    rows = {
        "one optimizer step": f"{found.microbatches} micro-batches, {found.tokens} tokens, {found.trained} trained",
        "loss, gradient norm": f"{found.loss:.4g}, {found.grad_norm:.4g}",
        "time per step": f"{found.seconds:.2f} s here: {steps} steps take about {minutes:.1f} minutes",
        "peak memory": peak_text(found.peak.bytes, found.peak.available),
        "model memory": _memory_text(memory),
    }
    if memory.host:
        rows["host memory"] = f"{format_bytes(memory.host)}: masters and moments of the optimizer"
    for layout, forecast in found.layouts.items():
        rows[f"per rank, {layout}"] = _memory_text(forecast)
    for name, value in rows.items():
        echo(f"{name:<20} {value}", hang=21)


def _memory_text(memory: Forecast) -> str:
    parts = {
        each.name: getattr(memory, each.name) for each in fields(memory) if each.name != "host"
    }
    return f"{format_bytes(memory.total)}: " + ", ".join(
        f"{name} {format_bytes(count)}" for name, count in parts.items() if count
    )
