"""`ascent export`, `ascent score`, `ascent sample`: what to do with a trained model."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from ascent.cli.train import plain_errors, say

Model = Annotated[str, typer.Argument(metavar="MODEL", help="A run, a model folder or a hub name.")]


def export(
    model: Annotated[str, typer.Argument(metavar="RUN", help="A run or a model folder.")],
    target: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to create.")],
) -> None:
    """Write a run's newest model as a plain Hugging Face folder."""
    with plain_errors():
        from ascent.api.export import export as write

        typer.echo(f"written to {write(model, target)}")


def score(
    model: Model, file: Annotated[str, typer.Argument(metavar="FILE", help="Records as for training, or a task.")]
) -> None:
    """Score every record of a file with a reward model; one JSON line each, chosen or best first."""
    with plain_errors():
        from ascent.api.score import score as scores

        for line in scores(model, file, say=say):
            typer.echo(json.dumps({"record": line.record, "scores": line.scores}))


def sample(
    model: Model,
    prompt: Annotated[
        list[str] | None, typer.Argument(metavar="PROMPT", help="Questions; none: lines of stdin.")
    ] = None,
    samples: Annotated[int, typer.Option(help="Answers to each prompt.")] = 1,
    max_new_tokens: Annotated[int, typer.Option(help="Token budget of an answer.")] = 128,
    temperature: Annotated[float, typer.Option(help="Divides the logits; above 0.")] = 1.0,
    top_p: Annotated[float, typer.Option(help="Draw from the likeliest tokens of this much mass.")] = 1.0,
    greedy: Annotated[bool, typer.Option("--greedy", help="Take the likeliest token every time.")] = False,
    seed: Annotated[int, typer.Option(help="The same seed gives the same answers.")] = 0,
) -> None:
    """Answer prompts with a model."""
    prompts = prompt or [line.rstrip("\n") for line in sys.stdin if line.strip()]
    if not prompts:
        raise ValueError("sample needs a prompt; give one as an argument, or lines on standard input")
    with plain_errors():
        from ascent.api.sample import sample as answers

        for done in answers(
            model, prompts, samples=samples, max_new_tokens=max_new_tokens, temperature=temperature, top_p=top_p,
            greedy=greedy, seed=seed,
        ):  # fmt: skip
            typer.echo(f"{done.prompt} -> {done.completion}  [{done.tokens} tokens, {done.stop}]")
