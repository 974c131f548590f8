"""`ascent show`: the table of algorithms, one algorithm, a resolved config, the schema of recipes."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from ascent.cli import runs
from ascent.cli.train import Overrides, Recipe

app = typer.Typer(
    help="Print algorithms, a resolved config, the schema of recipes, or a run.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.command("run")(runs.show_run)
app.command("samples")(runs.show_samples)


@app.command("algorithms")
def algorithms(
    markdown: Annotated[bool, typer.Option("--markdown", help="Print docs/algorithms.md instead.")] = False,
    like: Annotated[str | None, typer.Option(help="Only rows and cells about these words, best first.")] = None,
) -> None:
    """Print every algorithm as a row of its cells, or the rows and cells that match some words."""
    from ascent.algorithms import TABLE
    from ascent.build.rows import installed_rows
    from ascent.cli import page, search, tables, words

    if markdown:
        typer.echo(page.markdown(TABLE.values()), nl=False)
        return
    rows = [*TABLE.values(), *installed_rows()]
    if like is None:
        tables.print_all(rows)
    else:
        tables.print_found(search.like([*rows, *words.choices()], like))


@app.command("algorithm")
def algorithm(name: Annotated[str, typer.Argument(help="A name from ascent show algorithms, or file.py:ROW.")]) -> None:
    """Print one algorithm: formula, cells, defaults and their origin, needs, pitfalls."""
    from ascent.build import find_row
    from ascent.cli import tables

    tables.print_one(find_row(name))


@app.command("config")
def config(recipe: Recipe, overrides: Overrides = None) -> None:
    """Print the config that a recipe and overrides come to, with every effective key."""
    from ascent.build import resolve
    from ascent.config.load import load_config
    from ascent.config.show import as_yaml

    typer.echo(as_yaml(resolve(load_config(recipe, overrides or [])).config), nl=False)


@app.command("schema")
def schema() -> None:
    """Print the JSON Schema of recipes, for editors."""
    from ascent.algorithms import TABLE
    from ascent.build.vocabulary import described
    from ascent.config.show import json_schema

    typer.echo(json.dumps(json_schema(TABLE, described()), indent=2))
