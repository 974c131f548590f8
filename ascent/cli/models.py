"""`ascent sample`, `ascent score`, `ascent export`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ascent.cli.lines import echo
from ascent.cli.options import (
    Engine,
    MaxNewTokens,
    Model,
    Seed,
    Temperature,
    TopP,
    plain_errors,
    say,
)


def export(
    model: Model,
    target: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to create.")],
    trust_remote_code: Annotated[
        bool,
        typer.Option("--trust-remote-code", help="Run the base's own code to merge an adapter."),
    ] = False,
    push: Annotated[
        str | None,
        typer.Option(metavar="OWNER/NAME", help="Also upload it to this repository of the hub."),
    ] = None,
    private: Annotated[
        bool, typer.Option("--private", help="Create that repository as a private one.")
    ] = False,
) -> None:
    """Write a run's newest model as a plain Hugging Face folder.

    With a model card made from the run; --push uploads the folder to the hub.
    """
    with plain_errors():
        from ascent.api.export import export

        folder = export(
            model, target, trust_remote_code=trust_remote_code, push=push, private=private, say=say
        )
        echo(f"written to {folder}")


def score(
    model: Model,
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="Records as for training, or a built-in task.")
    ],
    tokens_per_microbatch: Annotated[
        int, typer.Option(help="The longest record, in tokens.")
    ] = 16384,
) -> None:
    """Score every record of a file with a reward model.

    Prints one line of JSON for each record, with the chosen or best answer first.
    """
    with plain_errors():
        from ascent.api.score import score

        for each in score(model, data, tokens_per_microbatch=tokens_per_microbatch, say=say):
            typer.echo(json.dumps(asdict(each)))


def sample(
    model: Model,
    prompts: Annotated[
        list[str] | None,
        typer.Argument(metavar="PROMPT", help="What to complete; without any, lines of stdin."),
    ] = None,
    samples: Annotated[int, typer.Option(help="Completions of each prompt.")] = 1,
    max_new_tokens: MaxNewTokens = 128,
    temperature: Temperature = 1.0,
    top_p: TopP = 1.0,
    greedy: Annotated[
        bool, typer.Option("--greedy", help="Take the likeliest token every time.")
    ] = False,
    seed: Seed = 0,
    engine: Engine = "native",
) -> None:
    """Sample completions of prompts."""
    texts = prompts or [line.rstrip("\n") for line in sys.stdin if line.strip()]
    with plain_errors():
        from ascent.api.sample import sample

        for each in sample(
            model,
            texts,
            samples=samples,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            top_p=top_p,
            greedy=greedy,
            seed=seed,
            engine=engine,
        ):
            echo(f"{each.prompt} -> {each.completion}  [{each.tokens} tokens, {each.stop}]")
