"""`ascent evaluate`."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
    from ascent.api.evaluate import EvalResult
    from ascent.maths.estimates import Estimate


def evaluate(
    model: Model,
    data: Annotated[
        str,
        typer.Argument(
            metavar="TASK|FILE", help="A built-in task (held-out split), or prompts with answers."
        ),
    ],
    samples: Annotated[
        int, typer.Option(help="Sampled completions of each prompt, besides the greedy one.")
    ] = 4,
    limit: Limit = None,
    max_new_tokens: MaxNewTokens = 256,
    temperature: Temperature = 1.0,
    top_p: TopP = 1.0,
    seed: Seed = 0,
    engine: Engine = "native",
    reward: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Scores a file: exact, mathematics, file.py:function, '{use: ..., ...}'.",
        ),
    ] = None,
    env: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="A multi-turn environment: tools, maze, or '{use: ..., ...}'."
        ),
    ] = None,
    invalid_rows: Annotated[
        str, typer.Option(help="Rows that cannot be read: fail or skip.")
    ] = "fail",
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write every answer with its scores to this .jsonl file."
        ),
    ] = None,
    show: Annotated[
        int, typer.Option(metavar="N", help="Print the answers to the first N prompts.")
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Measure accuracy, mean@k, pass@k, ROUGE-L and lengths."""
    if show < 0:
        raise ValueError(f"show={show}, but it counts prompts whose answers are printed")
    policy: Any = invalid_rows
    with plain_errors():
        from ascent.api.evaluate import evaluate

        result = evaluate(
            model,
            data,
            samples=samples,
            limit=limit,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            top_p=top_p,
            seed=seed,
            engine=engine,
            reward=reward,
            env=env,
            invalid_rows=policy,
            out=out,
        )
    if as_json:
        typer.echo(json.dumps(result.as_dict(answers=show)))
        return
    print_answers(result, show)
    print_evaluation(result)
    if out is not None:
        echo(f"{len(result.answers)} answers are in {out}")


def print_answers(found: EvalResult, prompts: int) -> None:
    """The answers to the first prompts, each after its prompt and reference; control characters as symbols."""
    from ascent.cli.samples import escape_controls

    groups = itertools.groupby(found.answers, key=lambda each: each.id)
    for _, answers in itertools.islice(groups, prompts):
        for place, each in enumerate(answers):
            if place == 0:
                echo(escape_controls(each.prompt), color="cyan")
            if place == 0 and each.answer is not None:
                echo(f"  reference: {escape_controls(each.answer)}")
            scores = [
                f"{name} {'unknown' if value is None else f'{value:.3g}'}"
                for name, value in each.scores.items()
            ]
            facts = ", ".join([f"{each.tokens} tokens", each.stop, *scores])
            echo(f"  {each.sample}: {escape_controls(each.completion)}  [{facts}]")
        echo()


def print_evaluation(found: EvalResult) -> None:
    from ascent.cli.console import make_console, print_table

    console = make_console()
    drawn = f", {found.samples} samples each" if found.samples else ""
    echo(
        f"{found.model} on {found.data}: {found.prompts} prompts{drawn}, scored by {found.scored_by}"
    )
    scores = [
        (name, f"{each.value:.3f}", _interval(each), str(each.prompts))
        for name, each in found.metrics.items()
    ]
    print_table(console, ("", "mean", "95% interval", "prompts"), scores, numbers=True)
    lengths = [
        (kind, f"{n['mean']:.1f}", f"{n['median']:g}", f"{n['max']:g}")
        for kind, n in found.tokens.items()
    ]
    print_table(console, ("tokens", "mean", "median", "max"), lengths, numbers=True)
    for reason, count in found.unscored.items():
        echo(f"unscored, left out: {count} ({reason})")


def _interval(each: Estimate) -> str:
    return "one prompt" if each.low is None else f"{each.low:.3f} to {each.high:.3f}"
