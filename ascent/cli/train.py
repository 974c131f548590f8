"""`ascent train`: check a recipe in full and open its run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Recipe = Annotated[
    str, typer.Argument(metavar="RECIPE", help="A shipped recipe's name (ascent recipes lists them) or a .yaml file.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="Dotted keys to set, such as rollouts.group_size=16."),
]


def train(
    recipe: Recipe,
    overrides: Overrides = None,
    run: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The run folder to create; must be new or empty.")
    ] = None,
) -> None:
    """Train from a recipe (so far: check it in full, then stop)."""
    if run is None:
        raise ValueError("train needs a run folder; add --run DIR, a folder that does not exist yet")
    from ascent import __version__
    from ascent.build import resolve
    from ascent.config.load import load_config
    from ascent.config.show import as_yaml

    plan = resolve(load_config(recipe, overrides or []))
    header = f"# Resolved by ascent {__version__} from {recipe}; itself a recipe.\n"
    path = open_run(run, header + as_yaml(plan.config))
    typer.echo(f"The recipe is sound; the resolved config is in {path}.")
    typer.echo(f"ascent: version {__version__} has no training loop yet, so nothing was trained", err=True)
    raise typer.Exit(2)


def open_run(folder: Path, config: str) -> Path:
    """Make the run folder with its config.yaml; ValueError when there is something in its place."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--run {folder} is a file; name a folder")
    if folder.is_dir() and any(folder.iterdir()):
        raise ValueError(f"--run {folder} is not empty, and a run never writes over another; name a new folder")
    path = folder / "config.yaml"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(config, encoding="utf-8")
    except OSError as error:
        raise ValueError(f"--run {folder} cannot be written: {error.strerror}; name another folder") from None
    return path
