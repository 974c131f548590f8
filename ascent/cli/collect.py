"""`ascent collect`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ascent.cli.completion import run_folders
from ascent.cli.lines import echo
from ascent.cli.options import (
    INTERRUPTED,
    Engine,
    Limit,
    MaxNewTokens,
    Seed,
    Temperature,
    TopP,
    plain_errors,
    say,
)

if TYPE_CHECKING:
    from ascent.api.collect import CollectResult


def collect(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODELS...",
            help="Runs, model folders or hub names.",
            autocompletion=run_folders,
        ),
    ],
    prompts: Annotated[
        str, typer.Argument(metavar="PROMPTS", help="A built-in task, or prompts as for training.")
    ],
    out: Annotated[
        Path, typer.Option(help="The .jsonl file of verdicts; it grows by one line for each.")
    ],
    judge: Annotated[
        str,
        typer.Option(
            "--judge",
            "--from",
            metavar="JUDGE",
            help="person, a reward model, simulated:TASK?noise=0.1, file.py:function, or an endpoint.",
        ),
    ] = "person",
    annotator: Annotated[
        str | None,
        typer.Option(help="The name written into the file; by default your login, or the judge."),
    ] = None,
    form: Annotated[
        str, typer.Option("--form", "--ask", help="pairs, rankings or ratings.")
    ] = "pairs",
    samples: Annotated[int, typer.Option(help="Completions of each model for each prompt.")] = 2,
    per_prompt: Annotated[int, typer.Option(help="Pairs to ask about for each prompt.")] = 1,
    repeat: Annotated[
        float, typer.Option(help="Share of questions asked again in the other order.")
    ] = 0.1,
    limit: Limit = None,
    max_new_tokens: MaxNewTokens = 256,
    temperature: Temperature = 1.0,
    top_p: TopP = 1.0,
    seed: Seed = 0,
    engine: Engine = "native",
) -> None:
    """Sample answers and collect preferences about them.

    The same command again continues where it stopped.
    """
    with plain_errors():
        from ascent.api.collect import collect
        from ascent.cli.annotate import TerminalAnnotator

        checked_form: Any = form
        try:
            result = collect(
                models,
                prompts,
                out=out,
                judge=judge,
                annotator=annotator,
                form=checked_form,
                samples=samples,
                per_prompt=per_prompt,
                repeat=repeat,
                limit=limit,
                max_new_tokens=max_new_tokens,
                temperature=temperature,
                top_p=top_p,
                seed=seed,
                engine=engine,
                person=TerminalAnnotator(),
                say=say,
            )
        except KeyboardInterrupt:
            say(
                f"\nstopped; every verdict so far is in {out}, and the same command continues from there"
            )
            raise typer.Exit(INTERRUPTED) from None
    _print_result(result)


def _print_result(result: CollectResult) -> None:
    from ascent.feedback.agreement import agreement_lines

    for reason, count in sorted(result.left_out.items()):
        say(f"not asked about: {count} {reason}")
    for reason, count in sorted(result.unjudged.items()):
        say(f"no verdict: {count} ({reason}); they are asked again next time")
    for line in agreement_lines(result.agreement):
        echo(line)
    rest = "" if result.finished else "; the same command continues from there"
    echo(
        f"{result.annotator} has answered {result.done} of {result.questions} questions, all in {result.out}{rest}"
    )
