"""`ascent show`: algorithms, metrics, a resolved config, the schema of recipes, runs and their samples."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from ascent.cli import runs
from ascent.cli.completion import algorithm_names
from ascent.cli.help import SectionedGroup, add
from ascent.cli.options import Overrides, Recipe

app = typer.Typer(
    help="Print algorithms, metrics, a config, the schema, or a run.",
    cls=SectionedGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
)


def algorithms(
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print docs/algorithms.md instead.")
    ] = False,
    like: Annotated[
        str | None, typer.Option(help="Only rows and cells about these words, best first.")
    ] = None,
) -> None:
    """Print every algorithm as a row of its cells."""
    from ascent.algorithms import TABLE
    from ascent.cli import algorithms_page, cell_text, search, tables
    from ascent.plan.rows import installed_rows

    if markdown:
        typer.echo(algorithms_page.markdown(TABLE.values()), nl=False)
        return
    rows = [*TABLE.values(), *installed_rows()]
    if like is None:
        tables.print_rows(rows)
    else:
        tables.print_matches(search.find_matches([*rows, *cell_text.choices()], like))


def algorithm(
    name: Annotated[
        str,
        typer.Argument(
            help="A name from ascent show algorithms, or file.py:ROW.",
            autocompletion=algorithm_names,
        ),
    ],
) -> None:
    """Print one algorithm: formula, cells, defaults, pitfalls."""
    from ascent.cli import tables
    from ascent.plan import find_row

    tables.print_row(find_row(name))


def metrics(
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print docs/metrics.md instead.")
    ] = False,
) -> None:
    """Print every metric: unit, healthy range, meaning."""
    from ascent import metrics as registry
    from ascent.cli import tables

    if markdown:
        typer.echo(registry.markdown(), nl=False)
    else:
        tables.print_metrics(registry.REGISTRY)


def config(recipe: Recipe, overrides: Overrides = None) -> None:
    """Print the config of a recipe, with every effective key."""
    from ascent.config.show import as_yaml
    from ascent.plan import load_config, resolve

    typer.echo(as_yaml(resolve(load_config(recipe, overrides or [])).config), nl=False)


def schema() -> None:
    """Print the JSON Schema of recipes, for editors."""
    from ascent.algorithms import TABLE
    from ascent.config.show import json_schema
    from ascent.plan.cell_schema import cell_schema

    typer.echo(json.dumps(json_schema(TABLE, cell_schema()), indent=2))


add(app, "run", runs.show_run, "ascent show run runs/sft")
add(app, "samples", runs.show_samples, "ascent show samples runs/rlvr --best")
add(
    app,
    "algorithms",
    algorithms,
    "ascent show algorithms",
    'ascent show algorithms --like "entropy bonus"',
)
add(app, "algorithm", algorithm, "ascent show algorithm grpo")
add(app, "metrics", metrics, "ascent show metrics")
add(app, "config", config, "ascent show config rlvr rollouts.group_size=16")
add(app, "schema", schema, "ascent show schema")
