"""A mapping becomes a Config, or an error that says the key, the value, the rule and what to write instead."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from ascent.config.renamed import check_renamed
from ascent.config.schema import LARGEST, TERM_SLOTS, Cells, Config, MixEntry, Reward, leaves

LONGEST_SHOWN = 100  # characters of a value in an error message

KINDS = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "a word",
    "model_type": "a section with keys of its own",
    "dict_type": "a section with keys of its own",
    "tuple_type": "a list",
}
BOUNDS = {
    "greater_than": ("gt", "above"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "below"),
    "less_than_equal": ("le", "at most"),
}


def validate(mapping: Mapping[str, Any]) -> Config:
    """The Config a mapping stands for; ValueError with one line for each thing that is wrong."""
    check_renamed(mapping)
    try:
        return Config.model_validate(dict(mapping))
    except ValidationError as error:
        lines = [explain(problem) for problem in error.errors(include_url=False)]
        raise ValueError("\n".join(dict.fromkeys(lines))) from None


def explain(problem: Any) -> str:
    """One of pydantic's findings in a line: the key, the value, the rule, and what to write."""
    path, kind, value = _dotted(problem["loc"]), problem["type"], problem["input"]
    if kind == "extra_forbidden":
        return _unknown(path, value)
    about = _sentence(path)
    if kind == "missing":
        return f"{path} is missing{about}"
    return f"{path}={shown(value)}, but it must be {_rule(kind, problem)}{about}"


def shown(value: Any) -> str:
    """A value as YAML would have it, for error messages: whole, or its beginning where it is long."""
    if isinstance(value, bool) or value is None:
        return "null" if value is None else str(value).lower()
    if isinstance(value, int) and abs(value) >= 10**LONGEST_SHOWN:
        return f"a number of about {round(value.bit_length() * math.log10(2))} digits"  # repr refuses over 4300 of them
    text = repr(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN - 3]}..."


def _rule(kind: str, problem: Any) -> str:
    if kind == "float_type" and type(problem["input"]) is int:  # more digits than a float can hold
        return f"at most {LARGEST:g}"
    if kind in KINDS:
        return KINDS[kind]
    context = problem.get("ctx", {})
    if kind in BOUNDS:
        name, words = BOUNDS[kind]
        return f"{words} {context[name]}" if isinstance(context[name], int) else f"{words} {context[name]:g}"
    if kind == "literal_error":
        return f"one of {context['expected']}"
    if kind == "string_too_short":
        return "given"
    return str(problem["msg"]).removeprefix("Value error, it must be ")


def _dotted(location: tuple[int | str, ...]) -> str:
    """('rewards', 0, 'use') -> 'rewards[0].use'; the union tags in a pydantic location are left out."""
    text = ""
    for part in location:
        if isinstance(part, int):
            text += f"[{part}]"
        elif not part.startswith("<"):
            text += f".{part}" if text else part
    return text


def _unknown(path: str, value: Any) -> str:
    while isinstance(value, dict) and value:  # the section itself is unknown: name the key inside it that was meant
        name, value = next(iter(value.items()))
        path = f"{path}.{name}"
    close = nearest_keys(path)
    hint = "did you mean " + " or ".join(close) + "?" if close else "ascent show schema lists every key"
    return f"{path[:LONGEST_SHOWN]} is not a key; {hint}"


def nearest_keys(path: str) -> list[str]:
    """Known keys that look like `path`, best first: alike as a whole, in the last word, or by initials (lr)."""
    if path.partition(".")[0] in Cells.model_fields:  # a slot without its section
        return [f"cells.{path}"]
    known = [*leaves(), *(f"rewards[].{name}" for name in Reward.model_fields)]
    known += [f"data.mix[].{name}" for name in MixEntry.model_fields]
    known += [f"cells.{slot}.weight" for slot in TERM_SLOTS]
    likeness = {key: _likeness(path, key) for key in known}
    ranked = sorted(known, key=lambda key: -likeness[key])
    return [key for key in ranked[:3] if likeness[key] > max(0.75, likeness[ranked[0]] - 0.15)]


def _likeness(path: str, key: str) -> float:
    last, word = path.rpartition(".")[2], key.rpartition(".")[2]
    initials = "".join(part[0] for part in word.split("_"))
    whole = difflib.SequenceMatcher(None, path, key).ratio()
    same_word = 1.0 if len(last) > 1 and last == initials else difflib.SequenceMatcher(None, last, word).ratio()
    return max(whole, same_word) + whole / 10


def _sentence(path: str) -> str:
    """The key's own sentence from the schema, as an aside."""
    field: FieldInfo | None = leaves().get(path)
    if field is None or not field.description:
        return ""
    return f" ({field.description.rstrip('.')})"
