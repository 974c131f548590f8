"""`ascent compare`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from ascent.cli.lines import echo
from ascent.cli.options import (
    AsJson,
    Engine,
    Limit,
    MaxNewTokens,
    Model,
    Seed,
    Temperature,
    TopP,
    plain_errors,
)

if TYPE_CHECKING:
    from ascent.api.compare import CompareResult
    from ascent.feedback.win_rate import Interval


def compare(
    a: Model,
    b: Model,
    prompts: Annotated[
        str, typer.Argument(metavar="PROMPTS", help="A built-in task (held-out split), or prompts.")
    ],
    judge: Annotated[
        str,
        typer.Option(
            metavar="JUDGE", help="A reward model, an endpoint, simulated:TASK, or a reward."
        ),
    ],
    samples: Annotated[
        int, typer.Option(help="Sampled completions of each prompt; 0: one greedy.")
    ] = 0,
    limit: Limit = None,
    max_new_tokens: MaxNewTokens = 256,
    temperature: Temperature = 1.0,
    top_p: TopP = 1.0,
    seed: Seed = 0,
    engine: Engine = "native",
    as_json: AsJson = False,
) -> None:
    """Compare two models by the verdicts of a judge.

    The judge sees every pair in both orders. The win rate has a 95% interval, and another one with lengths matched.
    """
    with plain_errors():
        from ascent.api.compare import compare

        result = compare(
            a,
            b,
            prompts,
            judge,
            samples=samples,
            limit=limit,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            top_p=top_p,
            seed=seed,
            engine=engine,
        )
    if as_json:
        typer.echo(json.dumps(result.as_dict()))
    else:
        print_comparison(result)


def print_comparison(found: CompareResult) -> None:
    from ascent.cli.console import make_console, print_table

    how = f"{found.samples} samples each" if found.samples else "greedy"
    echo(
        f"A {found.a}\nB {found.b}\n{found.prompts} prompts of {found.data}, {how}, judged by {found.judge}"
    )
    rows = [
        ("win rate", *_cells(found.win_rate)),
        ("win rate, lengths matched", *_cells(found.length_matched)),
    ]
    if found.first_position is not None:
        rows.append(("chosen because shown first", *_cells(found.first_position)))
    print_table(make_console(), ("", "A", "95% interval"), rows, numbers=True)
    echo(", ".join(f"{count} {name}" for name, count in found.outcomes.items() if count))
    echo(f"A's answers are {found.length_diff:+.1f} characters longer on average")
    if found.scores is not None:
        echo(f"mean score of A {found.scores[0]:.4g}, of B {found.scores[1]:.4g}")
    for reason, count in found.unjudged.items():
        echo(f"no verdict, left out: {count} ({reason})")
    name = {"a": f"A wins ({found.a})", "b": f"B wins ({found.b})"}
    echo(name.get(found.winner or "", "no winner: the interval holds one half"))


def _cells(each: Interval) -> tuple[str, str]:
    return f"{each.value:.3f}", f"{each.low:.3f} to {each.high:.3f}"
