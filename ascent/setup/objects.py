"""Python objects in place of names in a recipe: rows of data, functions, classes, a loaded model.

A recipe holds words. An object is named there by what it is and the start of its fingerprint, as in
`python:list[3f2a9c0d11ab]`, and is found beside the plan by that name (`Plan.objects`).
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ascent.rewards.outcome import place_of
from ascent.setup.code_fingerprints import code_content

if TYPE_CHECKING:
    from pathlib import Path

PREFIX = "python:"
MAX_ROWS = 10**7
ROWS = "a list of dicts, a datasets.Dataset, or a function without parameters that returns an iterator of dicts"


class PythonObject(NamedTuple):
    """An object and its fingerprints by part. `unchecked` are parts that have none."""

    label: str
    value: Any
    content: Mapping[str, str]
    unchecked: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{PREFIX}{self.label}[{_sha256(repr(sorted(self.content.items())))[:12]}]"


class Rows(NamedTuple):
    """Lines of JSON, and the key of the recipe that they were given for."""

    key: str
    lines: tuple[str, ...]


Objects: TypeAlias = Mapping[str, PythonObject]
NO_OBJECTS: Objects = {}


def is_object(name: Any) -> bool:
    """Whether a value of a recipe names a Python object."""
    return isinstance(name, str) and name.startswith(PREFIX)


def label_of(name: str) -> str:
    """python:brief[3f2a9c0d11ab] -> brief."""
    return name.removeprefix(PREFIX).rpartition("[")[0]


def rows_of(key: str, value: Any) -> PythonObject:
    """Rows as lines of JSON, so that they are read as those of a JSONL file. They are read once, here."""
    label = (
        getattr(value, "__name__", type(value).__name__)
        if callable(value)
        else type(value).__name__
    )
    label = "".join(each if each.isalnum() or each == "_" else "" for each in label)
    lines = []
    for number, row in enumerate(_reported(key, _iterate(key, value)), 1):
        if number > MAX_ROWS:
            raise ValueError(
                f"{key}: {label} gave {MAX_ROWS} rows and has not ended; data are read once, so they end"
            )
        lines.append(_as_line(f"{key} row {number}", row))
    if not lines:
        raise ValueError(f"{key}: {label} holds no rows; there is nothing to train on")
    return PythonObject(label, Rows(key, tuple(lines)), {"rows": _sha256("\n".join(lines))})


def _iterate(key: str, value: Any) -> Iterator[Any]:
    kind = type(value).__name__
    if kind == "DataFrame":
        raise ValueError(f'{key} is a DataFrame; give its rows: frame.to_dict("records")')
    if isinstance(value, Mapping):
        splits = ", ".join(map(str, islice(value, 5)))
        way = (
            f'one split, as in data["{next(iter(value), "train")}"]'
            if kind.endswith("DatasetDict")
            else ROWS
        )
        raise ValueError(f"{key} is a {kind} with the keys {splits}; give {way}")
    if inspect.iscoroutine(value):
        value.close()
    if isinstance(value, Iterator) or inspect.iscoroutine(value):
        raise ValueError(
            f"{key} is a {kind}, which can be read once only; give the function that makes it"
        )
    if isinstance(value, str | bytes | type) or not (
        callable(value) or isinstance(value, Iterable)
    ):
        raise ValueError(f"{key} is a {kind} ({value!r:.60}); give {ROWS}")
    if not callable(value):
        return iter(value)
    if inspect.iscoroutinefunction(value) or inspect.isasyncgenfunction(value):
        raise ValueError(
            f"{key}: {value.__name__} is async; give a plain function that returns an iterator of dicts"
        )
    return _call(key, value)


def _reported(key: str, rows: Iterator[Any]) -> Iterator[Any]:
    """Rows of the user's code; what it raises is an error of the argument."""
    try:
        yield from rows
    except Exception as error:
        raise ValueError(
            f"{key}: reading it raised {type(error).__name__}: {error}{place_of(error)}"
        ) from error


def _call(key: str, function: Callable[[], Any]) -> Iterator[Any]:
    try:
        parameters = inspect.signature(function).parameters.values()
        named = [
            each for each in parameters if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
        ]
        needed = [each.name for each in named if each.default is each.empty]
    except (TypeError, ValueError):
        needed = []
    if needed:
        raise ValueError(
            f"{key}: the function takes {needed[0]}, but it is called without arguments; bind it first"
        )
    try:
        made = function()
    except Exception as error:
        raise ValueError(
            f"{key}: the function raised {type(error).__name__}: {error}{place_of(error)}"
        ) from error
    if inspect.iscoroutine(made):
        made.close()
    if isinstance(made, str | bytes | Mapping) or not isinstance(made, Iterable):
        raise ValueError(
            f"{key}: the function returned a {type(made).__name__}; it returns an iterator of dicts"
        )
    return iter(made)


def _as_line(place: str, row: Any) -> str:
    if not isinstance(row, Mapping):
        raise ValueError(
            f'{place} is a {type(row).__name__} ({row!r:.60}); a row is a dict such as {{"prompt": "..."}}'
        )
    try:
        return json.dumps(dict(row), default=_plain)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"{place}: {error}; a row holds text, numbers, true or false, None, and lists and dicts of these"
        ) from error


def _plain(value: Any) -> Any:
    """Arrays and numbers of numpy and torch."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} ({value!r:.40}) cannot be written as JSON")


def code_of(key: str, value: Any) -> PythonObject:
    """A function, a class or an instance of one, with the fingerprints of its code and of what that refers to."""
    content, unchecked = code_content(value)
    target = getattr(value, "func", getattr(value, "function", value))  # of a partial, of @batched
    label = getattr(target, "__name__", type(target).__name__)
    return PythonObject("lambda" if label == "<lambda>" else label, value, content, unchecked)


def model_of(key: str, model: Any, tokenizer: Any) -> PythonObject:
    """A loaded model of transformers and its tokenizer."""
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    if hasattr(model, "peft_config"):
        raise ValueError(
            f"{key} is a model with an adapter ({type(model).__name__}); give model.merge_and_unload(), or the base "
            "model with the key model.lora"
        )
    if not isinstance(model, PreTrainedModel):
        raise ValueError(
            f"{key} is a {type(model).__name__}; give a name, a folder, or a loaded transformers model"
        )
    if getattr(model, "is_quantized", False):
        raise ValueError(
            f"{key} is quantized, so it cannot be copied; give its name, with the key model.quantize"
        )
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        found = "no tokenizer" if tokenizer is None else f"a {type(tokenizer).__name__}"
        raise ValueError(
            f"{key} is a loaded model with {found}; pass tokenizer=AutoTokenizer.from_pretrained(...)"
        )
    return PythonObject(
        type(model).__name__, (model, tokenizer), {"weights": _weights_sha256(model)}
    )


def _weights_sha256(model: Any) -> str:
    import torch

    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(
            tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        )
    return digest.hexdigest()


def write_model(found: PythonObject, folder: Path) -> None:
    """A loaded model as a folder, from which every part of a run loads it."""
    from ascent.models.hf_logging import quiet_transformers
    from ascent.models.model import save_module

    model, tokenizer = found.value
    try:
        with quiet_transformers():
            save_module(model, folder)
            tokenizer.save_pretrained(folder)
    except (ValueError, RuntimeError, NotImplementedError) as error:
        raise ValueError(
            f"model.policy: the loaded {found.label} cannot be saved ({error}); fix it, or give a folder"
        ) from error


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def describe_unchecked(objects: Objects) -> list[str]:
    """What of the objects has no fingerprint, in words."""
    return [
        f"{name} uses {', '.join(each.unchecked)}, which cannot be compared when the run is resumed"
        for name, each in objects.items()
        if each.unchecked
    ]


def missing_objects(values: Mapping[str, Any], objects: Objects) -> list[str]:
    """Keys of a flat recipe that name objects which are not there."""
    return [key for key, value in values.items() if is_object(value) and value not in objects]


def refuse_missing(values: Mapping[str, Any], objects: Objects, call: str) -> None:
    """ValueError that says which objects a recipe names and how to pass them; `call` is the Python call."""
    missing = missing_objects(values, objects)
    if missing:
        arguments = list(dict.fromkeys(argument_of(key) for key in missing))
        raise ValueError(
            f"the recipe names Python objects, which it cannot hold: "
            f"{', '.join(f'{key} is {values[key]}' for key in missing)}; pass them from Python: "
            f"{call}, {', '.join(f'{each}=...' for each in arguments)})"
        )


def argument_of(key: str) -> str:
    """The argument of `ascent.train` and `ascent.resume` for the object at a key."""
    arguments: Sequence[tuple[str, str]] = (
        *(("data.train", "data"), ("data.evaluate", "eval_data"), ("model.policy", "model")),
        *(("rewards[", "rewards"), ("env.", "env")),
    )
    return next(argument for start, argument in arguments if key.startswith(start))
