"""`ascent collect`: preferences from a person, a judge or a simulated annotator."""

from __future__ import annotations

import getpass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ascent.cli.train import plain_errors, say

if TYPE_CHECKING:
    from ascent.api.collect import CollectResult

PERSON = "person"
INTERRUPTED = 130


def collect(
    models: Annotated[
        list[str], typer.Argument(metavar="MODELS...", help="Runs, model folders or hub names to sample from.")
    ],
    prompts: Annotated[str, typer.Argument(metavar="PROMPTS", help="A built-in task, or prompts as for training.")],
    out: Annotated[Path, typer.Option(help="The file of verdicts; it grows by a line for each.")],
    judge: Annotated[
        str,
        typer.Option(
            "--from", metavar="WHO", help="person; a reward model; simulated:TASK?noise=0.1; file.py:fn; an endpoint."
        ),
    ] = PERSON,
    annotator: Annotated[
        str | None, typer.Option(help="Who judges, as written in the file; unset: your login, or the judge's name.")
    ] = None,
    form: Annotated[str, typer.Option("--ask", help="pairs, rankings or ratings.")] = "pairs",
    samples: Annotated[int, typer.Option(help="Answers of each model to each prompt.")] = 2,
    per_prompt: Annotated[int, typer.Option(help="Pairs to ask about for each prompt.")] = 1,
    repeat: Annotated[float, typer.Option(help="Share of questions asked again, the other way round.")] = 0.1,
    limit: Annotated[int | None, typer.Option(help="Ask about at most this many prompts.")] = None,
    max_new_tokens: Annotated[int, typer.Option(help="Token budget of an answer.")] = 256,
    temperature: Annotated[float, typer.Option(help="Divides the logits; above 0.")] = 1.0,
    top_p: Annotated[float, typer.Option(help="Draw from the likeliest tokens of this much mass.")] = 1.0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same answers, questions and orders.")] = 0,
) -> None:
    """Sample answers and gather preferences about them; the same command again goes on where it stopped."""
    with plain_errors():
        from ascent.api.collect import CollectOptions
        from ascent.api.collect import collect as gather
        from ascent.cli.annotate import AtTerminal
        from ascent.setup.judges import judge_of

        shape: Any = form
        asked = CollectOptions(
            tuple(models), prompts, form=shape, samples=samples, per_prompt=per_prompt, limit=limit,
            max_new_tokens=max_new_tokens, temperature=temperature, top_p=top_p, seed=seed,
        )  # fmt: skip
        who = annotator or (getpass.getuser() if judge == PERSON else judge)
        found_judge = None if judge == PERSON else judge_of(judge, seed=seed)
        person = AtTerminal() if judge == PERSON else None
        try:
            found = gather(asked, out, annotator=who, judge=found_judge, person=person, repeat=repeat, say=say)
        except KeyboardInterrupt:
            say(f"\nstopped; every verdict so far is in {out}, and the same command goes on from there")
            raise typer.Exit(INTERRUPTED) from None
        finally:
            if found_judge is not None:
                found_judge.close()
    _report(found, out, who)


def _report(found: CollectResult, out: Path, who: str) -> None:
    from ascent.feedback.summary import lines_of

    for reason, count in sorted(found.left_out.items()):
        say(f"not asked about: {count} {reason}")
    for reason, count in sorted(found.unjudged.items()):
        say(f"no verdict: {count} ({reason}); they are asked again next time")
    for line in lines_of(found.agreement):
        typer.echo(line)
    rest = "" if found.finished else "; the same command goes on from there"
    typer.echo(f"{who} has answered {found.done} of {found.questions} questions, all in {out}{rest}")
