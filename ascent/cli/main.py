"""The `ascent` command: all subcommands in their help sections, `--version`, and how errors are printed."""

from __future__ import annotations

import os
import sys
from typing import Annotated, ClassVar

import typer

from ascent import __version__
from ascent.cli import (
    classic,
    collect,
    compare,
    compare_runs,
    diagnose,
    doctor,
    evaluate,
    forecast,
    inspect,
    iterate,
    label,
    models,
    quickstart,
    recipes,
    replay,
    runs,
    serve,
    show,
    sweep,
    train,
    view,
)
from ascent.cli.help import SectionedGroup, add, examples
from ascent.cli.options import say
from ascent.cli.startup import shorten_imports


class AscentGroup(SectionedGroup):
    sections: ClassVar = {
        "Train": (
            "quickstart",
            "train",
            "resume",
            "samplers",
            "sweep",
            "iterate",
            "check",
            "forecast",
        ),
        "Evaluate and use": (
            "evaluate",
            "compare",
            "sample",
            "score",
            "serve",
            "serve-reward",
            "export",
        ),
        "Data and labels": ("inspect", "collect", "label"),
        "Runs": ("runs", "view", "compare-runs", "diagnose", "replay", "bisect", "forecast-score"),
        "Reference": ("recipes", "show", "doctor", "classic"),
    }


app = typer.Typer(
    name="ascent",
    help="Reinforcement-learning post-training for language models.",
    epilog=examples("ascent quickstart", "ascent recipes", "ascent train --help"),
    cls=AscentGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich's help would double the time to answer
)
add(
    app,
    "quickstart",
    quickstart.quickstart,
    "ascent quickstart",
    "ascent quickstart --rlhf --seed 1",
)
add(
    app,
    "train",
    train.train,
    "ascent train sft model=tiny:llama data=arithmetic --run runs/sft",
    "ascent train mine.yaml update.learning_rate=1e-5 --run runs/mine",
)
add(app, "resume", train.resume, "ascent resume runs/sft")
add(app, "samplers", train.samplers, "ascent samplers runs/mine 4")
add(
    app,
    "sweep",
    sweep.sweep,
    "ascent sweep mine.yaml update.learning_rate=1e-5,1e-6 seed=1,2,3",
    "ascent sweep mine.yaml rollouts.group_size=4,8 --jobs 2 --run runs/group-size",
)
add(
    app,
    "iterate",
    iterate.iterate,
    "ascent iterate rlhf_iterated --run runs/iterated",
    "ascent iterate rlhf_iterated rounds=4 --run runs/iterated",
)
add(app, "check", train.check, "ascent check sft model=tiny:llama data=arithmetic")
add(
    app,
    "evaluate",
    evaluate.evaluate,
    "ascent evaluate runs/sft arithmetic --samples 8",
    "ascent evaluate runs/sft questions.jsonl --reward exact --json",
)
add(
    app,
    "compare",
    compare.compare,
    "ascent compare runs/dpo runs/sft style --judge simulated:style",
    "ascent compare runs/dpo runs/sft prompts.jsonl --judge runs/reward_model",
)
add(
    app,
    "sample",
    models.sample,
    'ascent sample runs/sft "1+1=" --samples 4',
    'ascent sample runs/sft "1+1=" --greedy',
)
add(app, "score", models.score, "ascent score runs/reward_model pairs.jsonl")
add(
    app,
    "serve",
    serve.serve,
    "ascent serve runs/grpo --port 8000",
    "ascent serve runs/grpo --host 0.0.0.0 --token-file key",
)
add(
    app,
    "serve-reward",
    serve.serve_reward,
    "ascent serve-reward runs/reward_model --port 8765",
    "ascent serve-reward runs/reward_model --host 0.0.0.0 --token-file token",
)
add(
    app,
    "export",
    models.export,
    "ascent export runs/sft models/sft",
    "ascent export runs/sft models/sft --push me/sft --private",
)
add(
    app,
    "inspect",
    inspect.inspect,
    "ascent inspect train.jsonl heldout.jsonl",
    "ascent inspect pairs.jsonl --model runs/sft --as pairs",
)
add(
    app,
    "collect",
    collect.collect,
    "ascent collect runs/sft style:200 --out labels.jsonl",
    "ascent collect runs/sft style:200 --out labels.jsonl --judge simulated:style",
)
add(
    app,
    "label",
    label.label,
    "ascent label runs/grpo --step 40 --guidelines rules.md",
    "ascent label answers.jsonl --form rankings --annotator ann --annotator bob",
    "ascent label runs/sft --prompts style:200 --out labels.jsonl",
)
add(app, "runs", runs.runs, "ascent runs", "ascent runs studies")
add(
    app,
    "view",
    view.view,
    "ascent view",
    "ascent view runs/sft studies --port 9000",
    "ascent view --host 0.0.0.0",
)
add(
    app,
    "compare-runs",
    compare_runs.compare_runs,
    "ascent compare-runs runs/a runs/b --plot curves.png",
    "ascent compare-runs runs/sweep --metric eval/loss/total",
)
add(
    app,
    "diagnose",
    diagnose.diagnose,
    "ascent diagnose runs/mine",
    "ascent diagnose runs/mine --against runs/other-seeds",
)
add(
    app,
    "replay",
    replay.replay,
    "ascent replay runs/mine --step 40",
    "ascent replay runs/mine update.learning_rate=1e-6 --step 40",
)
add(
    app,
    "forecast",
    forecast.forecast,
    "ascent forecast sft model=tiny:llama data=arithmetic",
    "ascent forecast mine.yaml --gpu H200",
)
add(app, "forecast-score", forecast.forecast_score, "ascent forecast-score runs/mine")
add(app, "bisect", replay.bisect, "ascent bisect runs/mine --when 'reward/mean < 0.1'")
add(app, "recipes", recipes.recipes, "ascent recipes")
app.add_typer(show.app, name="show")
add(app, "doctor", doctor.doctor, "ascent doctor")
app.add_typer(classic.app, name="classic")


@app.command(
    "rounds",
    hidden=True,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)
def rounds() -> None:
    """The old name of iterate."""
    raise ValueError("rounds is now called iterate")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ascent {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    pass


def refuse_ranks(words: list[str]) -> None:
    """ValueError where a launcher started several processes of a command that is not made for them."""
    command = next((word for word in words if not word.startswith("-")), "")
    if os.environ.get("WORLD_SIZE", "1") != "1" and command not in ("", "train", "resume"):
        raise ValueError(
            f"WORLD_SIZE={os.environ['WORLD_SIZE']}: {command} runs in one process; several run train and resume only"
        )


def run() -> None:
    """Entry point. ValueError and OSError are the user's: one line for each problem, exit status 2, no traceback."""
    shorten_imports()
    try:
        refuse_ranks(sys.argv[1:])
        app()
    except (ValueError, OSError) as error:
        for line in str(error).splitlines():
            say(f"ascent: {line}")
        sys.exit(2)
