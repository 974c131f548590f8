"""The `cells` section of a config, put into a row, and a row's cells written back as such a section."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ascent.algorithms import VOCABULARY, Row
from ascent.cells import Cell, cell, cell_numbers, nearest, recipe_numbers
from ascent.config.schema import MULTI_CELL_SLOTS, OPTIONAL_SLOTS, TERM_SLOTS, CellOverride, Cells
from ascent.losses import aggregation

FILE_SLOTS = ("loss", "token_weights", "extra_losses")


def with_cells(row: Row, cells: Cells) -> Row:
    """The row with the config's cells in it; ValueError naming the key when one cannot be had or has no effect."""
    changes: dict[str, Any] = {}
    for slot in [slot for slot in VOCABULARY if slot in cells.model_fields_set]:
        override = getattr(cells, slot)
        _check_slot(row, slot)
        changes[slot] = (
            _several(row, slot, override) if slot in MULTI_CELL_SLOTS else _one(row, slot, override)
        )
    return dataclasses.replace(row, **changes)


def with_budget(row: Row, cells: Cells, max_new_tokens: int) -> Row:
    """A constant that stands for the generation budget is the recipe's own budget, unless the recipe names it."""
    current, override = row.aggregation, cells.aggregation
    named = isinstance(override, CellOverride) and "length" in override.model_dump(
        exclude_unset=True
    )
    if current is None or current.function is not aggregation.sequence_mean_token_scaled or named:
        return row
    numbers = {**current.numbers, "length": max_new_tokens}
    return dataclasses.replace(row, aggregation=dataclasses.replace(current, numbers=numbers))


def resolved_cells(row: Row, base: Row) -> dict[str, Any]:
    """Every cell of `row` as a config would write it; what the config took away from `base` is written as false."""
    section: dict[str, Any] = {}
    for slot in VOCABULARY:
        now, before = getattr(row, slot), getattr(base, slot)
        if slot in MULTI_CELL_SLOTS:
            removed = {
                each.name: False
                for each in before
                if each.name not in {other.name for other in now}
            }
            entries = {
                each.name: _numbers(each, weighted=slot == "extra_losses") for each in now
            } | removed
            section |= {slot: entries} if entries else {}
        elif now is not None:
            section[slot] = {"use": now.name} | _numbers(now, weighted=slot in TERM_SLOTS)
        elif before is not None:
            section[slot] = False
    return section


def _numbers(each: Cell, *, weighted: bool) -> dict[str, Any]:
    shown = recipe_numbers(each.function)
    numbers = {name: value for name, value in each.numbers.items() if name in shown}
    return ({"weight": each.weight} if weighted else {}) | numbers


def _check_slot(row: Row, slot: str) -> None:
    if row.loss is not None and slot not in FILE_SLOTS:
        source = row.source if row.samples else "files"
        raise ValueError(
            f"cells.{slot} has no effect: {row.name} learns from {source} and has only the slots loss, "
            "token_weights and extra_losses"
        )
    if row.loss is None and slot == "loss":
        raise ValueError(
            f"cells.loss has no effect: {row.name} learns from rollouts, and ratio, policy_loss and aggregation make "
            "its loss"
        )


def _one(row: Row, slot: str, override: CellOverride | bool) -> Cell | None:
    current: Cell | None = getattr(row, slot)
    if isinstance(override, bool):
        _check_may_empty(row, slot, current)
        return None
    name = override.use or (current.name if current else None)
    if name is None:
        known = ", ".join(VOCABULARY[slot])
        raise ValueError(
            f"cells.{slot} changes a cell that {row.name} does not have; add cells.{slot}.use, one of {known}"
        )
    given = override.model_dump(exclude_unset=True, exclude={"use"})
    function = _function(row, slot, name)
    return _cell(f"cells.{slot}", function, given, current, weighted=slot in TERM_SLOTS)


def _check_may_empty(row: Row, slot: str, current: Cell | None) -> None:
    if current is None:
        raise ValueError(
            f"cells.{slot}=false has no effect: {row.name} has no {slot} cell; remove the key"
        )
    if slot not in OPTIONAL_SLOTS:
        raise ValueError(
            f"cells.{slot}=false, but this slot cannot be empty; use one of {', '.join(VOCABULARY[slot])}"
        )


def _several(
    row: Row, slot: str, overrides: Mapping[str, Mapping[str, Any] | bool]
) -> tuple[Cell, ...]:
    cells: dict[str, Cell] = {each.name: each for each in getattr(row, slot)}
    for name, numbers in overrides.items():
        function = _function(row, slot, name)
        if not isinstance(numbers, bool):
            path = f"cells.{slot}.{name}"
            cells[name] = _cell(
                path, function, numbers, cells.get(name), weighted=slot == "extra_losses"
            )
        elif name in {each.name for each in getattr(row, slot)}:
            del cells[name]
        else:
            raise ValueError(
                f"cells.{slot}.{name}=false has no effect: {row.name} has no such cell; remove the key"
            )
    # The vocabulary lists functions in the order they must be applied, so an added cell falls into its place. What a
    # row of somebody's own brings comes last.
    order = [*VOCABULARY[slot], *(name for name in cells if name not in VOCABULARY[slot])]
    return tuple(cells[name] for name in order if name in cells)


def _function(row: Row, slot: str, name: str) -> Callable[..., Any]:
    """A function of the vocabulary, or one that the row itself has in this slot: rows from files bring their own."""
    own = getattr(row, slot)
    held = own if isinstance(own, tuple) else (own,)
    known = {**VOCABULARY[slot], **{each.name: each.function for each in held if each is not None}}
    if name not in known:
        raise ValueError(f"cells.{slot}: no function named {name!r}; {nearest(name, known)}")
    return known[name]


def _cell(
    path: str,
    function: Callable[..., Any],
    given: Mapping[str, Any],
    current: Cell | None,
    *,
    weighted: bool,
) -> Cell:
    """The function with the numbers given, and the current cell's for the rest where it is the same function.

    A term keeps its weight when its function is swapped: `kl: {use: k2}` must not turn a weight of 0.04 into 1.
    """
    numbers = dict(given)
    name = function.__name__
    weight = numbers.pop("weight", current.weight if current else None) if weighted else 1.0
    if weight is None:
        raise ValueError(
            f"{path}.weight is missing: {name} is a new term of the loss, so say how much it counts"
        )
    rules = recipe_numbers(function)
    unknown = next((number for number in numbers if number not in rules), None)
    if unknown is not None and unknown in cell_numbers(function):
        raise ValueError(
            f"{path}.{unknown} is no key of recipes; write a row of your own with cell({name}, {unknown}=...) and name "
            "it as algorithm: file.py:ROW"
        )
    if unknown is not None:
        hint = _known_numbers(path, unknown, rules, weighted=weighted)
        raise ValueError(
            f"{path}.{unknown} has no effect: {name} has no number {unknown!r}; {hint}"
        )
    kept = dict(current.numbers) if current and current.function is function else {}
    try:
        return cell(function, weight=weight, **(kept | numbers))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _known_numbers(path: str, unknown: str, rules: Collection[str], *, weighted: bool) -> str:
    """What to write instead of an unknown number; a term of the loss has a weight, whatever its function."""
    hint = nearest(unknown, [*rules, "weight"] if weighted else rules)
    if rules or hint.startswith("did you mean"):
        return hint
    return (
        f"its coefficient is {path}.weight" if weighted else "it takes no numbers; remove the key"
    )
