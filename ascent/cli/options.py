"""Arguments and options that several commands share, and how commands report."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from ascent.cli.completion import recipe_names, run_folders
from ascent.cli.lines import echo

INTERRUPTED = 130  # the exit status after Ctrl-C

Recipe = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE",
        help="A shipped recipe, an algorithm or a .yaml file.",
        autocompletion=recipe_names,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE", help="Keys to set: model=NAME, data=NAME, update.learning_rate=1e-5."
    ),
]
Run = Annotated[
    Path, typer.Argument(metavar="RUN", help="A run folder.", autocompletion=run_folders)
]
Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="A run, a model folder or a hub name.", autocompletion=run_folders
    ),
]
Limit = Annotated[int | None, typer.Option(help="At most this many prompts.")]
MaxNewTokens = Annotated[int, typer.Option(help="Token budget of a completion.")]
Temperature = Annotated[float, typer.Option(help="Sampling temperature, above 0.")]
TopP = Annotated[float, typer.Option(help="Nucleus sampling: keep this much probability mass.")]
Seed = Annotated[int, typer.Option(help="The same seed gives the same result.")]
Engine = Annotated[
    str,
    typer.Option(
        metavar="ENGINE",
        help="native, vllm, remote (ascent serve), or URLs of servers: URL,URL or vllm:URL.",
    ),
]
Progress = Annotated[
    bool, typer.Option("--progress/--no-progress", help="Show progress on standard error.")
]
Processes = Annotated[
    int, typer.Option(help="Processes of this machine that train together, one for each GPU.")
]
Layout = Annotated[
    Literal["auto", "replicated", "sharded"],
    typer.Option(
        help="Weights whole on every rank, or divided over them (FSDP2); auto: what fits."
    ),
]
Ray = Annotated[
    bool,
    typer.Option(
        "--ray",
        help="Place ranks and samplers on a Ray cluster: RAY_ADDRESS, a running or a local one.",
    ),
]
Samplers = Annotated[
    int, typer.Option(help="With --ray: servers that sample the rollouts (ascent serve).")
]
RewardWorkers = Annotated[
    int, typer.Option(help="With --ray: processes that call the rewards; without any the ranks do.")
]
Cpus = Annotated[
    float, typer.Option(help="With --ray: CPUs of each rank, sampler and reward worker.")
]
Gpus = Annotated[
    float | None,
    typer.Option(
        help="With --ray: GPUs of each rank and each sampler; by default 1 where there are any."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def say(text: str) -> None:
    echo(text, err=True)


class OverridesCommand(TyperCommand):
    """A command that takes overrides: a key given as an option, such as --model X, gets the hint model=X."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        words = list(args)
        try:
            return super().parse_args(ctx, args)
        except (
            Exception
        ) as error:  # click's NoSuchOption, whose module depends on the version of typer
            option, similar = (
                getattr(error, "option_name", ""),
                getattr(error, "possibilities", None) or (),
            )
            if type(error).__name__ != "NoSuchOption" or difflib.get_close_matches(
                option, similar, cutoff=0.8
            ):
                raise
            raise ValueError(f"there is no option {option}; {_fix(option, words)}") from None


class ResumeCommand(TyperCommand):
    """`ascent resume`: a key after the run folder gets the hint where it is set."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        words = list(args)
        try:
            return super().parse_args(ctx, args)
        except Exception as error:  # click's UsageError, as above; for an argument too many it has no kind of its own
            keys = [
                word
                for word in words
                if "=" in word and "/" not in word.partition("=")[0] and word[0] != "-"
            ]
            if type(error).__name__ != "UsageError" or not keys:
                raise
            key, _, value = keys[-1].partition("=")
            raise ValueError(
                f"ascent resume takes no keys; set {key} to {value} in the config.yaml of the run folder, then resume"
            ) from None


def _fix(option: str, words: list[str]) -> str:
    """What to write instead of an option that does not exist."""
    from ascent.config.peer_keys import peer_remark

    remark = peer_remark(option.lstrip("-").replace("-", "_"))
    return remark or f"a key is set as KEY=VALUE: {_as_key(option, words)}"


def _as_key(option: str, words: list[str]) -> str:
    """--learning-rate 1e-5 -> update.learning_rate=1e-5."""
    from ascent.config.schema import SHORT_FORMS
    from ascent.config.validate import nearest_keys

    name = option.lstrip("-").replace("-", "_")
    key = name if name in SHORT_FORMS else next(iter(nearest_keys(name)), name)
    joined = next((word.partition("=")[2] for word in words if word.startswith(f"{option}=")), None)
    after = words[words.index(option) + 1 :] if option in words else []
    value = joined or next((word for word in after[:1] if not word.startswith("-")), "VALUE")
    return f"{key}={value}"


@contextmanager
def plain_errors() -> Iterator[None]:
    """Turn errors that the user can fix into ValueError, which is printed without a traceback."""
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except (OSError, ImportError) as error:
        raise ValueError(str(error)) from error
    except RuntimeError as error:
        from ascent.parallel.launch import RanksFailed

        if isinstance(error, RanksFailed):  # rank 0 has printed it
            raise typer.Exit(error.status) from None
        from ascent.checkpoints.manifest import CheckpointError
        from ascent.engines.remote import RemoteError
        from ascent.parallel.watch import RankFailed
        from ascent.runs.lock import FolderLockedError
        from ascent.update.learner import Diverged

        if isinstance(
            error, CheckpointError | FolderLockedError | Diverged | RankFailed | RemoteError
        ):
            raise ValueError(str(error)) from error
        raise
