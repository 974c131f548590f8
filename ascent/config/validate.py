"""Validation of recipes: a Config, or an error with the key, the value, the rule and the fix."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from ascent.config.peer_keys import peer_key, peer_remark
from ascent.config.renamed import check_renamed
from ascent.config.schema import (
    MAX_FLOAT,
    MULTI_CELL_SLOTS,
    OPTIONAL_SLOTS,
    SHORT_FORMS,
    TERM_SLOTS,
    Cells,
    Config,
    MixEntry,
    Reward,
    leaves,
)

MAX_SHOWN = 100  # characters of a value in an error message

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
    """The Config of a mapping; ValueError with one line per problem."""
    check_renamed(mapping)
    try:
        return Config.model_validate(dict(mapping))
    except ValidationError as error:
        lines = [explain(problem) for problem in error.errors(include_url=False)]
        raise ValueError("\n".join(dict.fromkeys(lines))) from None


def explain(problem: Any) -> str:
    """A pydantic error as one line: the key, the value, the rule, the fix."""
    path, kind, value = _dotted(problem["loc"]), problem["type"], problem["input"]
    if kind == "extra_forbidden":
        return _unknown(path, value)
    if kind == "missing":
        path = SHORT_FORMS.get(path, path)
        return f"{path} is missing{_description(path)}"
    about = _description(path)
    return f"{path}={format_value(value)}, but it must be {_rule(kind, problem)}{about}{_fix(path, value)}"


def format_value(value: Any) -> str:
    """A value as in YAML, for error messages; a long one is truncated."""
    if isinstance(value, bool) or value is None:
        return "null" if value is None else str(value).lower()
    if isinstance(value, int) and abs(value) >= 10**MAX_SHOWN:
        return f"a number of about {round(value.bit_length() * math.log10(2))} digits"  # repr is limited to 4300 digits
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."


def _rule(kind: str, problem: Any) -> str:
    if kind == "float_type" and type(problem["input"]) is int:  # too large for a float
        return f"at most {MAX_FLOAT:g}"
    if kind in KINDS:
        return KINDS[kind]
    context = problem.get("ctx", {})
    if kind in BOUNDS:
        name, words = BOUNDS[kind]
        return (
            f"{words} {context[name]}"
            if isinstance(context[name], int)
            else f"{words} {context[name]:g}"
        )
    if kind == "literal_error":
        return f"one of {context['expected']}"
    if kind == "string_too_short":
        return "given"
    return str(problem["msg"]).removeprefix("Value error, it must be ")


def _dotted(location: tuple[int | str, ...]) -> str:
    """('rewards', 0, 'use') -> 'rewards[0].use'; without pydantic's union tags."""
    text = ""
    for part in location:
        if isinstance(part, int):
            text += f"[{part}]"
        elif not part.startswith("<"):
            text += f".{part}" if text else part
    return text


def _unknown(path: str, value: Any) -> str:
    while isinstance(value, dict) and value:  # the section is unknown: name the key inside it
        name, value = next(iter(value.items()))
        path = f"{path}.{name}"
    return f"{path[:MAX_SHOWN]} is not a key; {hint_for(path)}"


def hint_for(path: str) -> str:
    """What to write instead of a key that does not exist."""
    if peer_remark(path) and not _in_slot(path):
        return peer_remark(path)
    close = nearest_keys(path)
    return (
        "did you mean " + " or ".join(close) + "?"
        if close
        else "ascent show schema lists every key"
    )


def nearest_keys(path: str) -> list[str]:
    """Known keys similar to `path`, best first: by the full path, the last word, or its initials (lr).

    A name of other libraries stands for one key.
    """
    if _in_slot(path):
        return [f"cells.{path}"]
    if peer_key(path):
        return [peer_key(path)]
    known = [*leaves(), *(f"rewards[].{name}" for name in Reward.model_fields)]
    known += [f"data.mix[].{name}" for name in MixEntry.model_fields]
    known += [f"cells.{slot}.weight" for slot in TERM_SLOTS]
    scores = {key: _similarity(path, key) for key in known}
    ranked = sorted(known, key=lambda key: -scores[key])
    return [key for key in ranked[:3] if scores[key] > max(0.75, scores[ranked[0]] - 0.15)]


def _in_slot(path: str) -> bool:
    """A slot without its section: kl.weight."""
    return path.partition(".")[0] in Cells.model_fields


def _similarity(path: str, key: str) -> float:
    last, word = path.rpartition(".")[2], key.rpartition(".")[2]
    initials = "".join(part[0] for part in word.split("_"))
    whole = difflib.SequenceMatcher(None, path, key).ratio()
    same_word = (
        1.0
        if len(last) > 1 and last == initials
        else difflib.SequenceMatcher(None, last, word).ratio()
    )
    return max(whole, same_word) + whole / 10


def _fix(path: str, value: Any) -> str:
    """What to write where a function is chosen by its bare name, or without the list around it."""
    if path.startswith("cells."):
        return _fix_of_cell(path, value)
    if (
        path.partition("[")[0] not in ("rewards", "env")
        or "." in path
        or not isinstance(value, str | dict)
    ):
        return ""
    name = value if isinstance(value, str) else value.get("use", "NAME")
    return f"; write [{{use: {name}}}]" if path == "rewards" else f"; write {{use: {name}}}"


def _fix_of_cell(path: str, value: Any) -> str:
    slot, _, inner = path.removeprefix("cells.").partition(".")
    if slot in OPTIONAL_SLOTS and not inner and value in (None, "none"):
        return "; write false to remove it"
    if slot in MULTI_CELL_SLOTS and inner and "." not in inner and value is True:
        return "; write {}"
    if inner or not isinstance(value, str) or len(value) > MAX_SHOWN:
        return ""
    if slot in MULTI_CELL_SLOTS:
        return f"; write {{{value}: {{}}}}"
    return f"; write {{use: {value}}} (as an override: {path}.use={value})"


def _description(path: str) -> str:
    """The sentence of the key in the schema, in brackets."""
    field: FieldInfo | None = leaves().get(path)
    if field is None or not field.description:
        return ""
    return f" ({field.description.rstrip('.')})"
