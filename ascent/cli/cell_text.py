"""Rows and cells as text, for the terminal and for docs/algorithms.md."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from ascent.algorithms import VOCABULARY, Row
from ascent.cells import Cell, cell_numbers, recipe_numbers
from ascent.config.schema import MULTI_CELL_SLOTS, TERM_SLOTS
from ascent.parameter_ranges import OneOf, Rule

ROLLOUT_COLUMNS = (
    "name",
    "advantage",
    "advantage_norm",
    "ratio",
    "policy_loss",
    "aggregation",
    "KL",
    "needs",
)
PAIR_COLUMNS = ("name", "loss", "extra_losses", "needs")
FILE_COLUMNS = ("name", "source", "loss", "extra_losses", "needs")


class Choice(NamedTuple):
    """A cell that a recipe may choose, as text."""

    slot: str
    name: str
    recipe: str
    numbers: str
    summary: str


def split(rows: Iterable[Row]) -> list[tuple[str, tuple[str, ...], list[Row]]]:
    """The summary tables: title, columns and rows, by what the rows learn from."""
    every = list(rows)
    return [
        (
            "Learning from rollouts",
            ROLLOUT_COLUMNS,
            [row for row in every if row.source == "rollouts"],
        ),
        (
            "Learning from fresh pairs",
            PAIR_COLUMNS,
            [row for row in every if row.source == "fresh_pairs"],
        ),
        ("Learning from files", FILE_COLUMNS, [row for row in every if not row.samples]),
    ]


def summary(row: Row) -> dict[str, str]:
    """One short text for each column of the summary tables; empty where a cell does nothing."""
    return {
        "name": row.name,
        "source": row.source,
        "advantage": _name(row.advantage),
        "advantage_norm": _name(row.advantage_norm, omit="none"),
        "ratio": _name(row.ratio, omit="none"),
        "policy_loss": _name(row.policy_loss, omit="plain"),
        "aggregation": _name(row.aggregation),
        "KL": kl(row),
        "loss": _name(row.loss),
        "extra_losses": ", ".join(each.name for each in row.extra_losses),
        "needs": ", ".join(sorted(row.needs)),
    }


def kl(row: Row) -> str:
    """The KL terms: in the loss with their weight, in the reward with their beta."""
    found = [] if row.kl is None else [f"{row.kl.name} {number(row.kl.weight)}"]
    found += [
        f"reward {number(each.numbers['beta'])}"
        for each in row.reward_shaping
        if "ref_logprobs_T" in each.required
    ]
    return ", ".join(found)


def cells(row: Row) -> list[tuple[str, str, str, str]]:
    """(slot, function, numbers, first line of its docstring) for every cell, in the order of the data flow."""
    found = []
    for slot, each in row.cells():
        weight = {"weight": each.weight} if slot in (*TERM_SLOTS, "extra_losses") else {}
        found.append((slot, each.name, numbers({**weight, **each.numbers}), each.summary))
    return found


def choices() -> list[Choice]:
    """Every cell by slot, whether a row uses it or not."""
    return [
        Choice(
            slot,
            name,
            _in_a_recipe(slot, name, function),
            _ranges(slot, function),
            Cell(function).summary,
        )
        for slot, known in VOCABULARY.items()
        for name, function in known.items()
    ]


def _in_a_recipe(slot: str, name: str, function: Callable[..., Any]) -> str:
    """How a recipe sets the cell, with all numbers that have no default."""
    if slot not in MULTI_CELL_SLOTS:
        return f"cells.{slot}.use: {name}"
    needed = ["weight"] if slot == "extra_losses" else []
    needed += [
        each
        for each, (_, _, default) in recipe_numbers(function).items()
        if default is inspect.Parameter.empty
    ]
    return f"cells.{slot}.{name}: {{{', '.join(f'{each}: ...' for each in needed)}}}"


def _ranges(slot: str, function: Callable[..., Any]) -> str:
    """The numbers with defaults and bounds; those that no recipe can set come last, after "from Python"."""
    known, open_to_recipes = cell_numbers(function), recipe_numbers(function)
    texts = {name: _ranged(name, bound, default) for name, (_, bound, default) in known.items()}
    weight = ["weight (at least 0)"] if slot in (*TERM_SLOTS, "extra_losses") else []
    shown = ", ".join([*weight, *(text for name, text in texts.items() if name in open_to_recipes)])
    rare = ", ".join(text for name, text in texts.items() if name not in open_to_recipes)
    return "; ".join(part for part in (shown, rare and f"from Python: {rare}") if part)


def _ranged(name: str, bound: Rule | None, default: object) -> str:
    """Such as 'low 0.2 (at least 0)'; empty strings are left out."""
    value = "" if default is inspect.Parameter.empty or default == "" else f" {number(default)}"
    return f"{name}{value}" + (f" ({rule(bound)})" if bound is not None else "")


def rule(bound: Rule) -> str:
    """A range in words: 'above 0', '0 to 1', 'at least 0, below 0.5'."""
    if isinstance(bound, OneOf):
        return " or ".join(bound.words)
    if math.isfinite(bound.at_least) and math.isfinite(bound.at_most):
        return f"{'0 or ' * bound.or_zero}{bound.at_least:g} to {bound.at_most:g}"
    limits = {
        name.replace("_", " "): getattr(bound, name)
        for name in ("at_least", "above", "at_most", "below")
    }
    stated = ", ".join(
        f"{words} {limit:g}" for words, limit in limits.items() if math.isfinite(limit)
    )
    return f"{'0 or ' * bound.or_zero}{stated}"


def numbers(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {number(value)}" for name, value in values.items() if value != "")


def number(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _name(cell: Cell | None, omit: str = "") -> str:
    return "" if cell is None or cell.name == omit else cell.name
