"""A row in words: the same for the terminal and for docs/algorithms.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ascent.algorithms import Row
from ascent.cells import Cell
from ascent.config.schema import TERM_SLOTS

ROLLOUT_COLUMNS = ("name", "credit", "normalise", "ratio", "gate", "aggregate", "KL", "needs")
PAIR_COLUMNS = ("name", "loss", "auxiliary", "needs")
FILE_COLUMNS = ("name", "source", "loss", "auxiliary", "needs")


def split(rows: Iterable[Row]) -> list[tuple[str, tuple[str, ...], list[Row]]]:
    """The summary tables: a title, columns, and the rows of one way to learn."""
    every = list(rows)
    return [
        ("Learning from rollouts", ROLLOUT_COLUMNS, [row for row in every if row.source == "rollouts"]),
        ("Learning from fresh pairs", PAIR_COLUMNS, [row for row in every if row.source == "fresh_pairs"]),
        ("Learning from files", FILE_COLUMNS, [row for row in every if not row.samples]),
    ]


def summary(row: Row) -> dict[str, str]:
    """One short text for each column of the summary tables; empty where the row has nothing to say."""
    return {
        "name": row.name,
        "source": row.source,
        "credit": _name(row.credit),
        "normalise": _name(row.normalise, quiet="none"),
        "ratio": _name(row.ratio, quiet="none"),
        "gate": _name(row.gate, quiet="plain"),
        "aggregate": _name(row.aggregate),
        "KL": kl(row),
        "loss": _name(row.loss),
        "auxiliary": ", ".join(each.name for each in row.auxiliary),
        "needs": ", ".join(sorted(row.needs)),
    }


def kl(row: Row) -> str:
    """Where KL enters and how much it counts: a loss term with its weight, or the reward with its beta."""
    found = [] if row.kl is None else [f"{row.kl.name} {number(row.kl.weight)}"]
    found += [f"reward {number(each.numbers['beta'])}" for each in row.shape if "reference_T" in each.required]
    return ", ".join(found)


def cells(row: Row) -> list[tuple[str, str, str, str]]:
    """(slot, function, numbers, first line of its docstring) for every cell, in the order of the data flow."""
    found = []
    for slot, each in row.cells():
        weight = {"weight": each.weight} if slot in (*TERM_SLOTS, "auxiliary") else {}
        found.append((slot, each.name, numbers({**weight, **each.numbers}), each.summary))
    return found


def numbers(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {number(value)}" for name, value in values.items() if value != "")


def number(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _name(cell: Cell | None, quiet: str = "") -> str:
    return "" if cell is None or cell.name == quiet else cell.name
