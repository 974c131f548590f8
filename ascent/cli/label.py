"""`ascent label`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ascent.cli.completion import run_folders
from ascent.cli.lines import echo
from ascent.cli.options import Limit, MaxNewTokens, Seed, Temperature, TopP, plain_errors, say


def label(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN_OR_FILE",
            help="A run, whose rollouts are judged, or a file of answers; with --prompts, models.",
            autocompletion=run_folders,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="The .jsonl file of verdicts.", show_default="NAME.labels.jsonl"),
    ] = None,
    prompts: Annotated[
        str | None,
        typer.Option(
            help="Sample answers to these first: a built-in task, or prompts as for training."
        ),
    ] = None,
    form: Annotated[
        str, typer.Option("--form", "--ask", help="pairs, rankings or ratings.")
    ] = "pairs",
    guidelines: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A Markdown file that the page shows.")
    ] = None,
    annotators: Annotated[
        list[str] | None,
        typer.Option(
            "--annotator",
            metavar="NAME",
            help="Who may judge; several times for several. Default: anyone.",
        ),
    ] = None,
    overlap: Annotated[
        float, typer.Option(help="Share of questions that every annotator gets.")
    ] = 0.2,
    repeat: Annotated[
        float, typer.Option(help="Share of questions asked again in the other order.")
    ] = 0.1,
    scale: Annotated[int, typer.Option(help="Ratings are 1 to this.")] = 5,
    per_prompt: Annotated[int, typer.Option(help="Pairs to ask about for each prompt.")] = 1,
    step: Annotated[
        int | None, typer.Option(help="Of a run, only the rollouts of this step.")
    ] = None,
    limit: Limit = None,
    samples: Annotated[
        int, typer.Option(help="With --prompts: completions of each model for each prompt.")
    ] = 2,
    max_new_tokens: MaxNewTokens = 256,
    temperature: Temperature = 1.0,
    top_p: TopP = 1.0,
    seed: Seed = 0,
    host: Annotated[
        str,
        typer.Option(
            help="The address to listen on; any other than loopback gets a link with a token."
        ),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen on; 0 takes a free one.")] = 8771,
) -> None:
    """Serve a page on which people judge answers.

    Ctrl-C ends it; the same command again continues.
    """
    with plain_errors():
        from ascent.api.label import label

        checked_form: Any = form
        result = label(
            sources,
            out=out,
            prompts=prompts,
            form=checked_form,
            guidelines=guidelines,
            annotators=annotators,
            overlap=overlap,
            repeat=repeat,
            scale=scale,
            per_prompt=per_prompt,
            step=step,
            limit=limit,
            samples=samples,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            top_p=top_p,
            seed=seed,
            host=host,
            port=port,
            say=say,
        )
        from ascent.feedback.agreement import agreement_lines

    for line in agreement_lines(result.agreement):
        echo(line)
    echo(
        f"{result.verdicts} verdicts on {result.questions} questions are in {result.out}; the same command continues"
    )
