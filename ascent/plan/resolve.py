"""`resolve`: a config and the table become a plan in which nothing is left unsaid.

Values are taken in this order: schema default < the row's own default < recipe < command line. The plan's config holds
every key that has an effect and no other, with every cell spelled out. It is itself a recipe, and resolves to itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ascent.algorithms import Row
from ascent.config.changes import flatten
from ascent.config.schema import Config, leaves
from ascent.config.validate import format_value, validate
from ascent.models.dtype import default_dtype
from ascent.plan.compatibility import check_compatibility
from ascent.plan.overrides import resolved_cells, with_budget, with_cells
from ascent.plan.rows import find_row
from ascent.plan.unused_keys import unused_keys


@dataclass(frozen=True)
class Plan:
    """A config in full, and the row of the table it asks for, with the config's own cells in place.

    `inputs` are the fingerprints of what a run depends on, by key, once they are known (`ascent.setup.fingerprints`).
    `objects` are the Python objects that the config names (`ascent.setup.objects`). `origins` says of every key whether
    its value is the recipe's, the row's, or the schema's default; `ascent.api` adds the command line.
    """

    config: Config
    row: Row
    inputs: Mapping[str, str] = field(default_factory=dict)
    objects: Mapping[str, Any] = field(default_factory=dict, repr=False)
    origins: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)


def resolve(config: Config) -> Plan:
    """Complete and check a config; ValueError when a key has no effect or keys contradict each other."""
    base, row, values = _complete(config)
    given, idle = _given(config), unused_keys(row, values)
    wrong = [
        f"{key}={format_value(given[key])} has no effect: {idle[key]}"
        for key in given
        if key in idle
    ]
    if wrong:
        raise ValueError("\n".join(wrong))
    effective = {key: value for key, value in values.items() if key not in idle}
    complete = validate(_nested(effective) | {"cells": resolved_cells(row, base)})
    check_compatibility(complete, row)
    return Plan(complete, row, origins=_origins(config, base, complete))


def _origins(config: Config, base: Row, complete: Config) -> dict[str, str]:
    given = flatten(config)
    rest = {
        key: "row" if key.startswith("cells.") or key in base.defaults else "default"
        for key in flatten(complete)
    }
    return {key: "recipe" if key in given else origin for key, origin in rest.items()}


def find_unused(config: Config) -> set[str]:
    """The keys that a config sets without any effect."""
    _, row, values = _complete(config)
    return unused_keys(row, values).keys() & _given(config).keys()


def _complete(config: Config) -> tuple[Row, Row, dict[str, Any]]:
    """The row of the table, the row with the config's cells, and the value of every key outside `cells`."""
    base = find_row(config.algorithm)
    sampled = (
        {"run.best_metric": "reward/mean"} if base.samples else {}
    )  # what samples evaluates no loss
    values = _defaults() | sampled | dict(base.defaults) | _given(config)
    if values["model.dtype"] == "auto":
        values["model.dtype"] = default_dtype()
    row = with_budget(
        with_cells(base, config.cells), config.cells, values["rollouts.max_new_tokens"]
    )
    return base, row, values


def _defaults() -> dict[str, Any]:
    """The schema's default for every key outside `cells`."""
    found = {}
    for key, info in leaves().items():
        if not key.startswith("cells.") and not info.is_required():
            found[key] = info.get_default()
    return found


def _given(config: Config) -> dict[str, Any]:
    """The keys that recipe and command line really set, dotted; `cells` is handled apart."""
    tree = config.model_dump(exclude_unset=True, exclude={"cells", "env"})
    if "rewards" in tree:
        tree["rewards"] = [
            reward.model_dump() for reward in config.rewards
        ]  # with their weights, set or not
    given = dict(_flat(tree))
    if "env" in config.model_fields_set:
        given["env"] = (
            None if config.env is None else config.env.model_dump()
        )  # whole: its options are its own
    return given


def _flat(tree: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    pairs = []
    for name, value in tree.items():
        pairs += (
            _flat(value, f"{prefix}{name}.")
            if isinstance(value, Mapping)
            else [(prefix + name, value)]
        )
    return pairs


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key in [
        key for key in leaves() if key in flat
    ]:  # the schema's order, whatever order the recipe had
        section, _, name = key.rpartition(".")
        (tree.setdefault(section, {}) if section else tree)[name] = flat[key]
    return tree
