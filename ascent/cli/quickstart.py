"""`ascent quickstart`: a policy from nothing, in minutes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ascent.cli.train import plain_errors, say

if TYPE_CHECKING:
    from rich.console import Console

    from ascent.api.quickstart import Outcome

EXAMPLES = 5


def quickstart(
    rlhf: Annotated[bool, typer.Option("--rlhf", help="Learn from preferences instead: reward model and PPO.")] = False,
    run: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where it goes; runs/quickstart or runs/quickstart-rlhf.")
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same bits.")] = 0,
) -> None:
    """Train a small policy from nothing in minutes: imitation, then rewards; with --rlhf, preferences."""
    with plain_errors():
        from ascent.api import quickstart as stages
        from ascent.api.stages import StageStopped

        stages.one_thread()
        folder = run or Path("runs", "quickstart-rlhf" if rlhf else "quickstart")
        try:
            outcome = (stages.feedback if rlhf else stages.sorting)(folder, seed=seed, say=say)
        except StageStopped as stopped:
            say(f"{stopped}; the same command goes on from there")
            raise typer.Exit(130) from None
    print_outcome(outcome)


def print_outcome(outcome: Outcome) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    table(console, outcome)
    changed = outcome.changed()
    console.print(f"\n{len(changed)} answers of the first changed from wrong to right; the first {EXAMPLES}:")
    for before, after in changed[:EXAMPLES]:
        question = before.prompt.messages[-1].content
        console.print(f"  {question} [red]{before.text}[/red] -> [green]{after.text}[/green]")
    asked = (changed[0][0] if changed else outcome.shown[0].answers[0]).prompt.messages[-1].content
    where = outcome.trained
    console.print(f"\nThe curves are in {where / 'curves.png'}. To look further:")
    for command in (f"show run {where}", f"show samples {where}", f'sample {where} "{asked}" --greedy'):
        console.print(f"  ascent {command}", soft_wrap=True)
    console.print("To change something:")
    for command in outcome.tries:
        console.print(f"  {command}", soft_wrap=True)
    console.print("Then docs/tutorial: your own reward function, your own model, your own preferences.")


def table(console: Console, outcome: Outcome) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    found = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    found.add_column(f"held-out {outcome.task}")
    for column in (outcome.part, "95% interval", "seconds of training"):
        found.add_column(column, justify="right")
    for each in outcome.shown:
        figure = each.figures[f"greedy/{outcome.part}"]
        interval = "" if figure.low is None else f"{figure.low:.3f} to {figure.high:.3f}"
        found.add_row(each.name, f"{figure.value:.3f}", interval, f"{each.seconds:.0f}")
    console.print(found)
