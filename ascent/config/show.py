"""A config as YAML, and the JSON Schema of recipes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ascent.config import yaml_text
from ascent.config.schema import MULTI_CELL_SLOTS, TERM_SLOTS, Config

# slot -> function -> {"description": ..., "numbers": {name: JSON Schema}}, from `ascent.plan.cell_schema`
Vocabulary = Mapping[str, Mapping[str, Mapping[str, Any]]]

USER_ROW = r"\.py:"  # file.py:ROW


def as_yaml(config: Config) -> str:
    """The set keys, in the order of the schema; reading it gives the same config."""
    return yaml_text.write(config.model_dump(mode="json", exclude_unset=True))


def json_schema(algorithms: Iterable[str], vocabulary: Vocabulary) -> dict[str, Any]:
    """JSON Schema of a recipe, with the names of algorithms, functions and parameters."""
    schema = Config.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "Ascent recipe"
    schema["properties"]["algorithm"]["anyOf"] = [
        {"enum": sorted(algorithms)},
        {"pattern": USER_ROW},
    ]
    slots = schema["$defs"]["Cells"]["properties"]
    for slot, functions in vocabulary.items():
        texts = {"title": slots[slot].get("title", slot), "description": slots[slot]["description"]}
        slots[slot] = texts | (
            _multi_cell_slot(slot, functions)
            if slot in MULTI_CELL_SLOTS
            else _single_cell_slot(slot, functions)
        )
    for unused in ("CellOverride", "TermOverride"):
        schema["$defs"].pop(unused, None)
    return schema


def _single_cell_slot(slot: str, functions: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """A function with its parameters, or parameters alone for the function of the row."""
    weight = {"weight": WEIGHT} if slot in TERM_SLOTS else {}
    choices = [
        _object({"use": {"const": name}, **weight, **each["numbers"]}, ["use"])
        for name, each in functions.items()
    ]
    numbers = {name: rule for each in functions.values() for name, rule in each["numbers"].items()}
    return {
        "anyOf": [
            *choices,
            _object({**weight, **{name: {} for name in numbers}}, []),
            {"const": False},
        ]
    }


def _multi_cell_slot(slot: str, functions: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    weight = {"weight": WEIGHT} if slot == "extra_losses" else {}
    entries = {}
    for name, each in functions.items():
        cell = _object({**weight, **each["numbers"]}, [])
        entries[name] = {"description": each["description"], "anyOf": [cell, {"const": False}]}
    return _object(entries, [])


def _object(properties: Mapping[str, Any], required: list[str]) -> dict[str, Any]:
    needed = {"required": required} if required else {}
    return {
        "type": "object",
        "properties": dict(properties),
        "additionalProperties": False,
    } | needed


WEIGHT = {"type": "number", "minimum": 0}
