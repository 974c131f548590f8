"""`ascent evaluate`: how good a model is, with intervals."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from ascent.cli.train import plain_errors


def evaluate(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A run, a model folder or a hub name.")],
    data: Annotated[
        str,
        typer.Argument(metavar="TASK|FILE", help="A built-in task (held-out unless told), or prompts with answers."),
    ],
    samples: Annotated[int, typer.Option(help="Drawn answers to each prompt, besides the greedy one.")] = 4,
    limit: Annotated[
        int | None, typer.Option(help="Ask at most this many prompts; a task has 256 unless told.")
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(help="Token budget of an answer.")] = 256,
    temperature: Annotated[float, typer.Option(help="Divides the logits; above 0.")] = 1.0,
    top_p: Annotated[float, typer.Option(help="Draw from the likeliest tokens of this much mass.")] = 1.0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same answers and intervals.")] = 0,
    reward: Annotated[
        str | None, typer.Option(metavar="NAME", help="What scores a file: exact, mathematics, file.py:function, ...")
    ] = None,
    env: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="What answers talk to: tools, maze, or as in a recipe: '{use: ..., ...}'."),
    ] = None,
    skip_bad_rows: Annotated[bool, typer.Option("--skip-bad-rows", help="Leave out rows that cannot be read.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Measure a model: greedy accuracy, mean@k, pass@k, ROUGE-L, truncation, lengths."""
    with plain_errors():
        from ascent.api.evaluate import evaluate as measure
        from ascent.cli.evaluation_table import print_evaluated
        from ascent.setup.environments import as_section

        found = measure(
            model, data, samples=samples, limit=limit, max_new_tokens=max_new_tokens, temperature=temperature,
            top_p=top_p, seed=seed, reward=reward, invalid_rows="skip" if skip_bad_rows else "fail",
            env=as_section(env),
        )  # fmt: skip
    if as_json:
        typer.echo(json.dumps(found.as_dict()))
    else:
        print_evaluated(found)
