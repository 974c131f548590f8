"""`ascent quickstart`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ascent.cli.options import INTERRUPTED, Progress, Seed, plain_errors, say

if TYPE_CHECKING:
    from rich.console import Console

    from ascent.api.quickstart import QuickstartResult

EXAMPLES = 5


def quickstart(
    rlhf: Annotated[bool, typer.Option("--rlhf", help="Learn from preferences: reward model and PPO.")] = False,
    run: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The folder; runs/quickstart or runs/quickstart-rlhf.")
    ] = None,
    seed: Seed = 0,
    progress: Progress = True,
) -> None:
    """Train a small policy from random weights, in minutes.

    First imitation, then rewards from a verifier; with --rlhf, preferences.
    """
    with plain_errors():
        from ascent.api.quickstart import quickstart
        from ascent.api.stages import StageStopped

        try:
            result = quickstart(rlhf=rlhf, run=run, seed=seed, progress=progress, say=say)
        except StageStopped as stopped:
            say(f"{stopped}; the same command continues from there")
            raise typer.Exit(INTERRUPTED) from None
    print_result(result)


def print_result(result: QuickstartResult) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    _print_models(console, result)
    improved = result.improved()
    console.print(f"\n{len(improved)} answers of the first model changed from wrong to right; the first {EXAMPLES}:")
    for before, after in improved[:EXAMPLES]:
        question = before.prompt.messages[-1].content
        console.print(f"  {question} [red]{before.text}[/red] -> [green]{after.text}[/green]")
    prompt = (improved[0][0] if improved else result.models[0].answers[0]).prompt.messages[-1].content
    where = result.trained
    console.print(f"\nThe curves are in {where / 'curves.png'}. To look further:")
    for command in (f"show run {where}", f"show samples {where}", f'sample {where} "{prompt}" --greedy'):
        console.print(f"  ascent {command}", soft_wrap=True)
    console.print("To change something:")
    for command in result.next_commands:
        console.print(f"  {command}", soft_wrap=True)
    console.print("Then docs/tutorial: your own reward function, your own model, your own preferences.")


def _print_models(console: Console, result: QuickstartResult) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column(f"held-out {result.task}")
    for column in (result.part, "95% interval", "seconds of training"):
        table.add_column(column, justify="right")
    for each in result.models:
        score = each.metrics[f"greedy/{result.part}"]
        interval = "" if score.low is None else f"{score.low:.3f} to {score.high:.3f}"
        table.add_row(each.name, f"{score.value:.3f}", interval, f"{each.seconds:.0f}")
    console.print(table)
