"""`ascent replay`, `ascent bisect`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ascent.cli.lines import echo
from ascent.cli.options import AsJson, Overrides, Run, plain_errors, say

if TYPE_CHECKING:
    from ascent.api.replay import ReplayedStep

SHOWN = 5  # sequences with the largest contributions
# Metrics that are shown beside the run's own where settings were changed.
COMPARED = (
    "loss/total",
    "optim/grad_norm",
    "policy/update_kl",
    "policy/entropy",
    "reward/mean",
    "preference/margin",
)
Out = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="The JSON file; by default RUN/replays/STEP.json."),
]


def replay(
    run: Run,
    step: Annotated[int, typer.Option("--step", help="The step to take again.")],
    overrides: Overrides = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Take a step of a run again and capture everything.

    It has the same bits, from the newest checkpoint before it. KEY=VALUE changes settings for this step alone.
    """
    with plain_errors():
        from ascent.api.replay import replay

        found = replay(run, step, overrides or (), out=out, say=say)
    if as_json:
        typer.echo(json.dumps(asdict(found)))
    else:
        print_replay(found)


def bisect(
    run: Run,
    when: Annotated[
        str, typer.Option("--when", metavar="CONDITION", help="Such as 'reward/mean < 0.1'.")
    ],
    consecutive: Annotated[int, typer.Option(help="Logged values in a row that must meet it.")] = 1,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Find the step where a metric first went wrong; replay it."""
    with plain_errors():
        from ascent.api.replay import bisect

        found = bisect(run, when, consecutive=consecutive, out=out, say=say)
    if as_json:
        typer.echo(json.dumps(asdict(found)))
    else:
        before = "" if found.before is None else f", {found.before:.4g} before"
        echo(f"{found.name} is {found.value:.4g} at step {found.step}{before}")
        print_replay(found.replay)


def print_replay(found: ReplayedStep) -> None:
    weights = {
        True: "the same weights to the bit",
        False: "OTHER WEIGHTS",
        None: "no checkpoint of this step to compare",
    }
    if found.changed:
        echo(
            f"step {found.step} with {', '.join(found.changed)}: as it was, and as it would have been"
        )
        for name in COMPARED:
            if name in found.metrics:
                was, now = found.differing.get(name, (found.metrics[name],) * 2)
                echo(f"  {name:<20} {_number(was):>12} {_number(now):>12}")
    else:
        same = (
            "every logged metric is the same"
            if not found.differing
            else f"{len(found.differing)} metrics differ"
        )
        echo(
            f"step {found.step}, from checkpoint {found.checkpoint}: {weights[found.same_weights]}; {same}"
        )
        for name, (was, now) in list(found.differing.items())[:SHOWN]:
            echo(f"  {name}: {_number(was)} logged, {_number(now)} replayed")
        if found.differing and not found.not_promised:
            echo("nothing explains this: please report it, with the run folder")
    for place, update in enumerate(found.updates, 1):
        terms = ", ".join(
            f"{name} {each.value:.4g} (weight {each.weight:g}, gradient {each.grad_norm:.3g})"
            for name, each in update.terms.items()
        )
        echo(
            f"update {place} of {update.model}: gradient norm {update.grad_norm:.4g}; {terms}",
            hang=2,
        )
        largest = sorted(update.sequences, key=lambda each: -abs(each.contribution or 0.0))[:SHOWN]
        for each in largest:
            if each.contribution is not None:
                advantage = each.values.get("advantages") or [0.0]
                echo(
                    f"  {each.contribution:7.1%} of the gradient: {sum(each.trained)} trained tokens, "
                    f"advantage {advantage[0]:.3g}",
                    hang=4,
                )
    echo(f"everything is in {found.file}")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"
