"""`ascent quickstart`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ascent.cli.lines import echo
from ascent.cli.options import INTERRUPTED, Progress, Seed, plain_errors, say

if TYPE_CHECKING:
    from rich.console import Console

    from ascent.api.quickstart import QuickstartResult

EXAMPLES = 3
PLOT_WIDTH = 24


def quickstart(
    rlhf: Annotated[
        bool, typer.Option("--rlhf", help="Learn from preferences: reward model and PPO.")
    ] = False,
    run: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The folder; runs/quickstart or runs/quickstart-rlhf."),
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
    from rich.text import Text

    from ascent.cli.console import make_console, print_text
    from ascent.runs.sparkline import sparkline

    console = make_console()
    _print_models(console, result)
    improved = result.improved()
    echo(
        f"\n{len(improved)} answers of the first model changed from wrong to right; the first {EXAMPLES}:"
    )
    for before, after in improved[:EXAMPLES]:
        question = before.prompt.messages[-1].content
        texts = ((before.text.strip(), "red"), " -> ", (after.text.strip(), "green"))
        print_text(console, Text.assemble(f"  {question} ", *texts))
    prompt = (
        (improved[0][0] if improved else result.models[0].answers[0]).prompt.messages[-1].content
    )
    where = result.trained
    if result.rewards:
        first, last = result.rewards[0], result.rewards[-1]
        line = sparkline(result.rewards, PLOT_WIDTH)
        echo(
            f"\nReward in training, step 1 to {len(result.rewards)}:  {first:.2f} {line} {last:.2f}"
        )
    echo(f"More curves: {where / 'curves.png'}")
    echo("\nWhat to run next:")
    for command in (
        f'ascent sample {where} "{prompt}" --greedy',
        f"ascent show run {where}",
        *result.next_commands,
    ):
        echo(f"  {command}")
    echo("Then docs/tutorial: your own reward function, your own model, your own preferences.")


def _print_models(console: Console, result: QuickstartResult) -> None:
    from ascent.cli.console import print_table

    rows = []
    for each in result.models:
        score = each.metrics[f"greedy/{result.part}"]
        interval = "" if score.low is None else f"{score.low:.3f} to {score.high:.3f}"
        rows.append((each.name, f"{score.value:.3f}", interval, f"{each.seconds:.0f}"))
    columns = (f"held-out {result.task}", result.part, "95% interval", "seconds of training")
    print_table(console, columns, rows, numbers=True)
