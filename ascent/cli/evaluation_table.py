"""The report of `ascent evaluate`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from ascent.api.evaluate import EvalResult
    from ascent.maths.estimates import Estimate


def print_evaluation(found: EvalResult) -> None:
    console = Console(highlight=False, soft_wrap=True)
    drawn = f", {found.samples} samples each" if found.samples else ""
    console.print(
        f"{found.model} on {found.data}: {found.prompts} prompts{drawn}, scored by {found.scored_by}", markup=False
    )
    table = _table("", "mean", "95% interval", "prompts")
    for name, each in found.metrics.items():
        table.add_row(name, f"{each.value:.3f}", _interval(each), str(each.prompts))
    console.print(table)
    tokens = _table("tokens", "mean", "median", "max")
    for kind, numbers in found.tokens.items():
        tokens.add_row(kind, f"{numbers['mean']:.1f}", f"{numbers['median']:g}", f"{numbers['max']:g}")
    console.print(tokens)
    for reason, count in found.unscored.items():
        console.print(f"unscored, left out: {count} ({reason})")


def _interval(each: Estimate) -> str:
    return "one prompt" if each.low is None else f"{each.low:.3f} to {each.high:.3f}"


def _table(*columns: str) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for place, column in enumerate(columns):
        table.add_column(column, justify="right" if place else "left")
    return table
