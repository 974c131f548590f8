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
    from ascent.cli import algorithms_page, cell_text, search, tables
    from ascent.plan.rows import installed_rows

    if markdown:
        typer.echo(algorithms_page.markdown(TABLE.values()), nl=False)
        return
    rows = [*TABLE.values(), *installed_rows()]
    if like is None:
        tables.print_all(rows)
    else:
        tables.print_found(search.like([*rows, *cell_text.choices()], like))


@app.command("algorithm")
def algorithm(name: Annotated[str, typer.Argument(help="A name from ascent show algorithms, or file.py:ROW.")]) -> None:
    """Print one algorithm: formula, cells, defaults and their origin, needs, pitfalls."""
    from ascent.cli import tables
    from ascent.plan import find_row

    tables.print_one(find_row(name))


@app.command("config")
def config(recipe: Recipe, overrides: Overrides = None) -> None:
    """Print the config that a recipe and overrides come to, with every effective key."""
    from ascent.config.load import load_config
    from ascent.config.show import as_yaml
    from ascent.plan import resolve

    typer.echo(as_yaml(resolve(load_config(recipe, overrides or [])).config), nl=False)


@app.command("schema")
def schema() -> None:
    """Print the JSON Schema of recipes, for editors."""
    from ascent.algorithms import TABLE
    from ascent.config.show import json_schema
    from ascent.plan.cell_schema import cell_schema

    typer.echo(json.dumps(json_schema(TABLE, cell_schema()), indent=2))
