"""`ascent evaluate`."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from ascent.cli.options import AsJson, Limit, MaxNewTokens, Model, Seed, Temperature, TopP, plain_errors


def evaluate(
    model: Model,
    data: Annotated[
        str, typer.Argument(metavar="TASK|FILE", help="A built-in task (held-out split), or prompts with answers.")
    ],
    samples: Annotated[int, typer.Option(help="Sampled completions of each prompt, besides the greedy one.")] = 4,
    limit: Limit = None,
    max_new_tokens: MaxNewTokens = 256,
    temperature: Temperature = 1.0,
    top_p: TopP = 1.0,
    seed: Seed = 0,
    reward: Annotated[
        str | None, typer.Option(metavar="NAME", help="Scores a file: exact, mathematics, file.py:function, ...")
    ] = None,
    env: Annotated[
        str | None, typer.Option(metavar="NAME", help="A multi-turn environment: tools, maze, or '{use: ..., ...}'.")
    ] = None,
    invalid_rows: Annotated[str, typer.Option(help="Rows that cannot be read: fail or skip.")] = "fail",
    as_json: AsJson = False,
) -> None:
    """Measure accuracy, mean@k, pass@k, ROUGE-L and lengths."""
    policy: Any = invalid_rows
    with plain_errors():
        from ascent.api.evaluate import evaluate
        from ascent.cli.evaluation_table import print_evaluation

        result = evaluate(
            model, data, samples=samples, limit=limit, max_new_tokens=max_new_tokens, temperature=temperature,
            top_p=top_p, seed=seed, reward=reward, env=env, invalid_rows=policy,
        )  # fmt: skip
    if as_json:
        typer.echo(json.dumps(result.as_dict()))
    else:
        print_evaluation(result)
