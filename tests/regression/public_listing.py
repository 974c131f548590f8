"""Everything that users see, as one text with a fact a line: a change of the code shows as a few lines of its diff.

    .venv/bin/python -m tests.regression.public_listing            # print it
    .venv/bin/python -m tests.regression.public_listing --write    # accept it, into public_listing.txt

The facts come from signatures, from the tables of the package, from tiny runs and from requests to servers in this
process. They do not depend on the machine, the folder, the time, or on versions of Python and torch.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import functools
import importlib
import inspect
import json
import pkgutil
import random
import re
import shutil
import struct
import sys
import tempfile
import threading
import tomllib
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, ForwardRef, NamedTuple
from unittest import mock
from urllib.parse import urlencode, urlsplit

import torch
import typer.main
from pydantic import BaseModel

import ascent
from ascent import http_server
from ascent.algorithms import TABLE
from ascent.algorithms.row import EXTRAS, VOCABULARY
from ascent.cells import Cell, cell_numbers, recipe_numbers
from ascent.cli.main import app
from ascent.config.changes import ON_RESUME
from ascent.config.iterate import IterateConfig
from ascent.config.load import nest_keys, shipped_recipes
from ascent.config.renamed import KEYS, REWARD_OPTIONS, VALUES
from ascent.config.schema import SHORT_FORMS
from ascent.config.show import json_schema
from ascent.data.benchmarks import BENCHMARKS
from ascent.data.schemas import SCHEMAS
from ascent.diagnose.table import CAUSES
from ascent.engines import openai_requests
from ascent.engines.remote import RemoteSampler
from ascent.engines.weight_updates import AscentUpdates, check_vocabulary
from ascent.envs import registry as envs
from ascent.envs import tools
from ascent.feedback.comparisons import FORMS, Answer, Comparison, ShownComparison
from ascent.feedback.endpoint import ComparisonEndpoint
from ascent.feedback.labeling import LabelingPlan, LabelingSession
from ascent.feedback.preference_log import PreferenceLog
from ascent.feedback.simulated import SimulatedAnnotator
from ascent.http_client import RetryPolicy
from ascent.metrics import REGISTRY, range_text
from ascent.models import tiny
from ascent.parameter_ranges import OneOf, Range
from ascent.plan.cell_schema import cell_schema
from ascent.plan.unused_keys import OF_THE_TRAINER
from ascent.records import Message, Prompt, Request
from ascent.rewards import registry as rewards
from ascent.rewards.calls import CallOptions
from ascent.rewards.rollout_json import call_to_json
from ascent.rewards.serve import create_server
from ascent.rewards.worker import create_worker
from ascent.rollouts.multi_turn import Limits
from ascent.runs.warnings import RULES
from ascent.setup.rewards import OF_A_TERM
from ascent.setup.step_rewards import PROCESS_REWARD_MODEL, process_reward
from ascent.tasks import TASKS
from ascent.tasks.named import KINDS
from ascent.tasks.reasoning import PREFIX
from ascent.tasks.task import SPLITS
from tests.engines.served import KEY, served, tiny_folder
from tests.pictures import stub_pictures
from tests.rewards.rollouts import rollout

ROOT = Path(__file__).parents[2]
FILE = Path(__file__).with_suffix(".txt")
EXTRA_PACKAGES = ("peft", "gymnasium", "starlette", "uvicorn", "markdown_it")
ACCEPT = ".venv/bin/python -m tests.regression.public_listing --write"
HEAD = f"""\
What users see, a fact a line. A change here is a change for users: read the diff, and name it in CHANGELOG.md.
Made by {ACCEPT}
"""


# Signatures


def describe(owner: str, value: Any) -> list[str]:
    """The signature of a function, or of a class with its methods; of anything else only what it is."""
    if inspect.ismodule(value):
        return [f"{owner}: module"]
    if isinstance(value, type):
        return describe_class(owner, value)
    if callable(value) and not type(value).__module__.startswith(("typing", "types", "builtins")):
        return describe_function(owner, value)
    if inspect.isroutine(value):
        return describe_function(owner, value)
    kind = type(value)
    return [f"{owner}: {'alias' if kind.__module__ in ('typing', 'types') else kind.__name__}"]


def describe_function(
    owner: str, function: Callable[..., Any], *, bound: bool = False
) -> list[str]:
    """A line for each parameter and one for what is returned. `bound` leaves out the first parameter, self."""
    signature = inspect.signature(function)
    lines = [f"{owner}() -> {annotation_text(signature.return_annotation)}"]
    return lines + parameter_lines(owner, list(signature.parameters.values())[bound:])


def parameter_lines(owner: str, parameters: Sequence[inspect.Parameter]) -> list[str]:
    """Parameters that may be given by position carry their number; the order of others means nothing."""
    lines = []
    for place, each in enumerate(parameters, start=1):
        mark = {
            each.POSITIONAL_ONLY: f"{place} {each.name}, /",
            each.POSITIONAL_OR_KEYWORD: f"{place} {each.name}",
            each.KEYWORD_ONLY: f"*, {each.name}",
            each.VAR_POSITIONAL: f"*{each.name}",
            each.VAR_KEYWORD: f"**{each.name}",
        }[each.kind]
        default = "" if each.default is each.empty else f" = {default_text(each.default)}"
        lines.append(f"{owner}({mark}: {annotation_text(each.annotation)}{default})")
    return lines


def describe_class(owner: str, kind: type, *, attributes: bool = False) -> list[str]:
    """The constructor's parameters, fields, properties and methods that the package defines.

    `attributes` adds what methods assign to self.
    """
    own = [each for each in kind.__mro__ if each.__module__.partition(".")[0] == "ascent"]
    names = {name: None for each in reversed(own) for name in vars(each)}
    annotations = {
        name: text
        for each in reversed(own)
        for name, text in vars(each).get("__annotations__", {}).items()
    }
    lines, fields = [f"{owner}: {class_word(kind)}"], set[str]()
    if issubclass(kind, BaseModel):
        lines += [
            f"{owner}.{name}: {annotation_text(annotations[name])}" for name in kind.model_fields
        ]
        fields = {*kind.model_fields, "model_config"}
    elif class_word(kind) != "protocol" and any(
        {"__init__", "_fields"} & vars(each).keys() for each in own
    ):
        parameters = list(inspect.signature(kind).parameters.values())
        lines += parameter_lines(owner, parameters)
        if hasattr(kind, "__dataclass_fields__") or hasattr(kind, "_fields"):
            fields = {each.name for each in parameters}
    for name in names:
        if name not in fields and (not name.startswith("_") or name == "__call__"):
            lines += describe_member(
                f"{owner}.{name}", inspect.getattr_static(kind, name), annotations.get(name)
            )
    public = {name for name in annotations if not name.startswith("_")} - fields - set(names)
    lines += [f"{owner}.{name}: {annotation_text(annotations[name])}" for name in public]
    if attributes:
        assigned = (
            {name for each in own for name in assigned_names(each)} - fields - set(names) - public
        )
        lines += [f"{owner}.{name}: attribute" for name in assigned if not name.startswith("_")]
    return lines


def class_word(kind: type) -> str:
    if issubclass(kind, BaseException):
        return f"exception, {', '.join(each.__name__ for each in kind.__bases__)}"
    if getattr(kind, "_is_protocol", False):
        return "protocol"
    if hasattr(kind, "__dataclass_fields__"):
        return "frozen dataclass" if kind.__dataclass_params__.frozen else "dataclass"
    return "named tuple" if hasattr(kind, "_fields") else "class"


def describe_member(owner: str, member: Any, annotation: Any) -> list[str]:
    if isinstance(member, classmethod | staticmethod):
        return describe_function(owner, member.__func__, bound=isinstance(member, classmethod))
    if isinstance(member, property):
        words = "property, may be set" if member.fset else "property"
        return [f"{owner}: {annotation_text(return_annotation(member.fget))} ({words})"]
    if isinstance(member, functools.cached_property):
        return [f"{owner}: {annotation_text(return_annotation(member.func))} (property)"]
    if inspect.isfunction(member):
        return describe_function(owner, member, bound=True)
    text = type(member).__name__ if annotation is None else annotation_text(annotation)
    return [f"{owner}: {text} = {default_text(member)}"]


def return_annotation(function: Any) -> Any:
    return inspect.signature(function).return_annotation


def assigned_names(kind: type) -> set[str]:
    """The names X of `self.X = ...` in a class."""
    tree = ast.parse(inspect.cleandoc(f"\n{inspect.getsource(kind)}"))
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }


def annotation_text(annotation: Any) -> str:
    """As it is written in the code."""
    if annotation is inspect.Parameter.empty:
        return "?"
    if isinstance(annotation, ForwardRef):
        annotation = annotation.__forward_arg__
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return " ".join(text.split()).replace("'", '"')


def default_text(value: Any) -> str:
    if value is None or isinstance(value, bool | int | float | str):
        return json.dumps(value) if isinstance(value, str) else repr(value)
    if isinstance(value, tuple | list):
        inner = ", ".join(map(default_text, value))
        return f"({inner})" if isinstance(value, tuple) else f"[{inner}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {default_text(each)}' for key, each in value.items())}}}"
    if isinstance(value, Path):
        return json.dumps(value.as_posix())
    return (
        repr(value)
        if repr(value) == "<factory>"
        else getattr(value, "__name__", type(value).__name__)
    )


# 1. Public names


def list_names(work: Path) -> list[str]:
    """The names of `ascent`, and the records that its functions return."""
    lines, results = [], dict[str, type]()
    for name in dir(ascent):
        value = getattr(ascent, name)
        if isinstance(value, type):
            lines += describe_class(f"ascent.{name}", value, attributes=True)
        else:
            lines += describe(f"ascent.{name}", value)
            results |= named_classes(value) if inspect.isfunction(value) else {}
    for name, kind in results.items():
        if not hasattr(ascent, name):
            lines += describe_class(f"returned {name}", kind)
    return lines


def named_classes(function: Any) -> dict[str, type]:
    """The records of the package that a function's return annotation names, and those that their fields name."""
    found: dict[str, type] = {}
    waiting = [(return_annotation(function), function.__globals__)]
    while waiting:
        annotation, names = waiting.pop()
        for name in re.findall(r"\w+", annotation if isinstance(annotation, str) else ""):
            kind = names.get(name)
            if (
                isinstance(kind, type)
                and kind.__module__.startswith("ascent")
                and name not in found
            ):
                found[name] = kind
                if hasattr(kind, "__dataclass_fields__") or hasattr(kind, "_fields"):
                    inner = vars(sys.modules[kind.__module__])
                    waiting += [
                        (text, inner) for text in vars(kind).get("__annotations__", {}).values()
                    ]
    return found


# 2. Import paths

DOTTED = re.compile(r"(?<![\w./-])ascent(?:\.[A-Za-z_]\w*)+")
FROM = re.compile(r"from (ascent(?:\.\w+)*) import (?:\(([^)]*)\)|([\w, ]+))")
REFERENCE = re.compile(r"^::: (ascent[\w.]*)\n((?: +.*\n)*)", re.MULTILINE)


class NamedPath(NamedTuple):
    path: str
    file: str


def list_paths(work: Path) -> list[str]:
    """What docs, README, examples, notebooks and recipes import or name, with its signature; of a thing with several
    paths once, under its public name or its shortest path."""
    lines: list[str] = []
    described = {id(getattr(ascent, name)): f"ascent.{name}" for name in dir(ascent)}
    for path in sorted(
        {each.path for each in named_paths()}, key=lambda path: (path.count("."), path)
    ):
        found = resolve_path(path)
        if found is None:
            continue
        other = described.setdefault(id(found), path)
        if other != path:
            lines.append(f"{path}: {other}")
        elif inspect.isfunction(found) and "." in inspect.unwrap(found).__qualname__:
            lines += describe_function(path, found, bound=True)  # a method
        else:
            lines += describe(path, found)
    return lines


def unresolved_paths() -> list[str]:
    """Paths that a page names and that are no longer there."""
    named = sorted(set(named_paths()))
    return [f"{each.file}: {each.path}" for each in named if resolve_path(each.path) is None]


def resolve_path(path: str) -> Any:
    try:
        return pkgutil.resolve_name(path)
    except (ImportError, AttributeError):
        return None


def named_paths() -> Iterator[NamedPath]:
    """Paths below the public names; section 1 has those."""
    public = tuple(f"ascent.{name}" for name in dir(ascent))
    groups = set(entry_point_groups())
    for file, text in user_texts():
        for path in paths_in(text):
            is_public = path.startswith(public) and ".".join(path.split(".")[:2]) in public
            if path != "ascent" and not is_public and path not in groups:
                yield NamedPath(path, file)


def paths_in(text: str) -> Iterator[str]:
    yield from DOTTED.findall(text)
    for module, inside, names in FROM.findall(text):
        for name in re.findall(
            r"^\s*(\w+)(?: as (\w+))?", re.sub(r",|#.*", "\n", inside or names), re.MULTILINE
        ):
            path = f"{module}.{name[0]}"
            yield path
            if inspect.ismodule(resolve_path(path)):  # and what the page takes from that module
                used = re.findall(rf"\b{name[1] or name[0]}\.([A-Za-z]\w*)", text)
                yield from (
                    each for use in used if resolve_path(each := f"{path}.{use}") is not None
                )
    for path, options in REFERENCE.findall(text):
        members = re.search(r"members: \[(.*)\]", options)
        found = resolve_path(path)
        if members:
            yield from (f"{path}.{name.strip()}" for name in members[1].split(","))
        elif inspect.ismodule(found):
            yield from (f"{path}.{name}" for name in public_definitions(found))


def public_definitions(module: Any) -> list[str]:
    """The classes and functions of a module's reference page."""
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and callable(value)
        and getattr(value, "__module__", "") == module.__name__
    ]


def user_texts() -> Iterator[tuple[str, str]]:
    """Name and text of every page and program that users read; history is left out."""
    for pattern in (
        "README.md",
        "docs/**/*.md",
        "examples/**/*.py",
        "notebooks/*.ipynb",
        "ascent/recipes/*.yaml",
    ):
        for path in sorted(ROOT.glob(pattern)):
            name = path.relative_to(ROOT).as_posix()
            text = path.read_text(encoding="utf-8")
            if path.suffix == ".ipynb":
                text = "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])
            if not name.startswith("docs/decisions/"):
                yield name, text


# 3. Recipes


def list_recipes(work: Path) -> list[str]:
    schema = json_schema(TABLE, cell_schema())
    lines = [f"key {line}" for line in key_lines(schema, schema["$defs"])]
    own = IterateConfig.model_json_schema()
    lines += [f"iterate key {line}" for line in key_lines(own, own.get("$defs", {}), resume=False)]
    lines += [f"short key {short}: {key}" for short, key in SHORT_FORMS.items()]
    lines += [f"renamed key {old}: {new}{renamed_for(old)}" for old, new in KEYS.items()]
    lines += [f"renamed value {key} {old}: {new}" for (key, old), new in VALUES.items()]
    lines += [f"shipped recipe {name}" for name in shipped_recipes()]
    return [*lines, *cell_lines(schema), *row_lines(), *plugin_lines(), *data_lines()]


def renamed_for(key: str) -> str:
    uses = REWARD_OPTIONS.get(key)
    return f" (of {', '.join(uses)})" if uses else ""


def key_lines(
    schema: Mapping[str, Any], known: Mapping[str, Any], prefix: str = "", *, resume: bool = True
) -> Iterator[str]:
    """A line for each dotted key: type, default, whether it may change on resume, and its sentence."""
    for name, node in schema["properties"].items():
        key, inner = f"{prefix}{name}", section_of(node, known)
        if "$ref" in node and key != "cells":
            yield from key_lines(inner, known, f"{key}.", resume=resume)
            continue
        if key == "cells":
            continue  # a slot is no key: see `cell_lines`
        needed = "" if name not in schema.get("required", ()) else ", required"
        default = f" = {json.dumps(node['default'])}" if "default" in node else needed
        change = (
            f" [resume: {ON_RESUME[key] or 'may change'}]" if key in ON_RESUME and resume else ""
        )
        yield f"{key}: {schema_text(node, known)}{default}{change} {node.get('description', '')}"
        if inner:
            yield from key_lines(
                inner, known, f"{key}[]." if "items" in node else f"{key}.", resume=resume
            )


def section_of(node: Mapping[str, Any], known: Mapping[str, Any]) -> Mapping[str, Any]:
    """The section that a key holds, or a list of; empty for a plain value."""
    for each in (node, node.get("items", {}), *node.get("anyOf", ())):
        if "$ref" in each:
            found: Mapping[str, Any] = known[each["$ref"].rpartition("/")[2]]
            return found
    return {}


LIMITS = {
    "minimum": "at least",
    "exclusiveMinimum": "above",
    "maximum": "at most",
    "exclusiveMaximum": "below",
    "minLength": "length at least",
    "minItems": "items at least",
}


def schema_text(node: Mapping[str, Any], known: Mapping[str, Any]) -> str:
    """A type of JSON Schema with its limits, in words."""
    if "$ref" in node:
        return "section"
    if "anyOf" in node:
        texts = [schema_text(each, known) for each in node["anyOf"]]
        return " | ".join(texts)
    if "enum" in node:
        names = set(node["enum"])
        return "row" if names == set(TABLE) else f"one of {', '.join(map(str, node['enum']))}"
    if "const" in node:
        return json.dumps(node["const"])
    if "pattern" in node:
        return f"text like {node['pattern']}"
    if node.get("type") == "array":
        return f"list of {schema_text(node.get('items', {}), known)}"
    limits = [
        f"{words} {number_text(node[name])}" for name, words in LIMITS.items() if name in node
    ]
    return ", ".join([node.get("type", "any"), *limits])


def number_text(number: float) -> str:
    return repr(int(number)) if float(number).is_integer() and abs(number) < 2**64 else repr(number)


def cell_lines(schema: Mapping[str, Any]) -> Iterator[str]:
    """Slots, the functions that each takes with their numbers, and the inputs that functions of users may take."""
    for slot, node in schema["$defs"]["Cells"]["properties"].items():
        yield f"slot {slot}: {node['description']} [resume: {ON_RESUME[f'cells.{slot}'] or 'may change'}]"
        several = "properties" in node
        choices = (
            {name: each["anyOf"][0] for name, each in node["properties"].items()}
            if several
            else {
                each["properties"]["use"]["const"]: each
                for each in node["anyOf"]
                if "required" in each
            }
        )
        for name, choice in choices.items():
            function = VOCABULARY[slot][name]
            summary = (inspect.getdoc(function) or "").partition("\n")[0]
            yield f"cell {slot}.{name}: {'a key' if several else 'use'}; {summary}"
            for number, rule in choice["properties"].items():
                default = f" = {json.dumps(rule['default'])}" if "default" in rule else ""
                if number != "use":
                    yield f"cell {slot}.{name}.{number}: {schema_text(rule, {})}{default}"
            yield from own_row_numbers(slot, name, function)
    cells = [Cell(each) for functions in VOCABULARY.values() for each in functions.values()]
    for name in {name for each in cells for name in each.inputs} | set(EXTRAS):
        yield f"cell input {name}{f': needs {EXTRAS[name]}' if name in EXTRAS else ''}"


def own_row_numbers(slot: str, name: str, function: Callable[..., Any]) -> Iterator[str]:
    """Numbers that only a row of the user's own may set."""
    shown = recipe_numbers(function)
    for number, (kind, rule, default) in cell_numbers(function).items():
        if number not in shown:
            bounds = f", {rule_text(rule)}" if rule else ""
            text = "" if default is inspect.Parameter.empty else f" = {default_text(default)}"
            yield f"cell {slot}.{name}.{number}: {kind.__name__}{bounds}{text} (in a row of one's own only)"


def rule_text(rule: Range | OneOf) -> str:
    if isinstance(rule, OneOf):
        return f"one of {', '.join(rule.words)}"
    bounds = [(words, getattr(rule, words)) for words in ("at_least", "at_most", "above", "below")]
    texts = [f"{words} {value:g}" for words, value in bounds if abs(value) != float("inf")]
    return " ".join([*texts, *(["or 0"] if rule.or_zero else [])])


def row_lines() -> Iterator[str]:
    for name, row in TABLE.items():
        needs = f"; needs {', '.join(sorted(row.needs))}" if row.needs else ""
        yield f"row {name}: {row.title}; learns from {row.source}{needs}"
        for slot, each in row.cells():
            weight = [f"weight={each.weight!r}"] if each.weight != 1.0 else []
            numbers = [
                f"{number}={default_text(value)}" for number, value in sorted(each.numbers.items())
            ]
            yield f"row {name}.{slot}: {each.name}({', '.join([*weight, *numbers])})"
        yield from (
            f"row {name} default {key} = {default_text(value)}"
            for key, value in row.defaults.items()
        )


def plugin_lines() -> Iterator[str]:
    """Rewards, environments and tools by name, with their options."""
    for name, place in rewards.BUILT_IN.items():
        yield f"reward {name}"
        yield from option_lines(f"reward {name}", pkgutil.resolve_name(place))
    for name in OF_THE_TRAINER:
        yield f"reward {name}"
    yield from option_lines(f"reward {PROCESS_REWARD_MODEL}", process_reward)
    yield from (f"reward *.{name}" for name in OF_A_TERM)
    yield from parameter_lines(
        "reward * calls", list(inspect.signature(CallOptions).parameters.values())
    )
    yield from parameter_lines(
        "reward * retry", list(inspect.signature(RetryPolicy).parameters.values())
    )
    for name, place in envs.BUILT_IN.items():
        yield f"env {name}"
        yield from option_lines(f"env {name}", pkgutil.resolve_name(place))
    yield from option_lines("env *", Limits, kinds=(inspect.Parameter.POSITIONAL_OR_KEYWORD,))
    yield from (f"tool {name}: {text}" for name, text in tools.BUILT_IN.items())
    yield from option_lines(
        "judge *", SimulatedAnnotator, kinds=(inspect.Parameter.POSITIONAL_OR_KEYWORD,)
    )


def option_lines(
    owner: str, target: Any, kinds: tuple[Any, ...] = (inspect.Parameter.KEYWORD_ONLY,)
) -> Iterator[str]:
    for each in inspect.signature(target).parameters.values():
        if each.kind in kinds:
            default = (
                ", required" if each.default is each.empty else f" = {default_text(each.default)}"
            )
            yield f"{owner}.{each.name}: {annotation_text(each.annotation)}{default}"


def data_lines() -> Iterator[str]:
    """Names that a recipe gives in place of a file or a model."""
    yield from (f"task split {name}" for name in SPLITS)
    yield from (f"task records {name}" for name in KINDS)
    yield f"task {PREFIX}DATASET"
    for name, task in TASKS.items():
        parts = ", ".join(f"{part} {weight:g}" for part, weight in sorted(task.utility.items()))
        yield f"task {name}: utility {parts}{'; scores steps' if task.steps else ''}"
    yield from (f"tiny model {name}" for name in (*tiny.FAMILIES, *tiny.NAMED))
    yield from (f"data schema {each.name}: {each.kind} ({each.used_by})" for each in SCHEMAS)
    for name, schemas in BENCHMARKS.items():
        yield from (
            f"benchmark {name}: {each.kind}, {each.name} ({each.used_by})" for each in schemas
        )


# 4. Commands


def list_commands(work: Path) -> list[str]:
    return list(command_lines("ascent", typer.main.get_command(app)))


def command_lines(name: str, command: Any) -> Iterator[str]:
    hidden = " (hidden)" if command.hidden else ""
    yield f"{name}{hidden}: {' '.join((command.help or '').partition(chr(10) * 2)[0].split())}"
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    for each in command.params:
        if each.name in ("help", "install_completion", "show_completion"):  # typer's own
            continue
        names = " ".join([*each.opts, *each.secondary_opts])
        if each in arguments:
            names = f"{arguments.index(each) + 1} {each.metavar or each.name}"
        several = " (several)" if each.nargs == -1 or each.multiple else ""
        default = (
            " (required)" if each.required else f" = {default_text(plain_default(each.default))}"
        )
        text = (each.help or "").partition("\n")[0]
        yield f"{name} {names}: {option_type(each)}{several}{default} {text}"
    if hasattr(command, "list_commands"):
        context = command.make_context(name, [], resilient_parsing=True)
        for inner in command.list_commands(context):
            yield from command_lines(f"{name} {inner}", command.get_command(context, inner))


TYPES = {"boolean": "bool", "integer": "int", "text": "str", "path": "Path", "file": "Path"}


def option_type(parameter: Any) -> str:
    """The type in words, by what either generation of typer says."""
    annotation = getattr(getattr(parameter, "type_descriptor", None), "annotation", None)
    if annotation is None:
        choices = getattr(parameter.type, "choices", None)
        name = parameter.type.name
        return f"one of {', '.join(choices)}" if choices else TYPES.get(name, name)
    choices = getattr(annotation, "__args__", ()) if not isinstance(annotation, type) else ()
    words = [each for each in choices if isinstance(each, str)]
    if words:
        return f"one of {', '.join(words)}"
    return getattr(annotation, "__name__", str(annotation))


def plain_default(value: Any) -> Any:
    """Some versions of click mark a missing default by an object of their own."""
    return None if callable(value) or type(value).__name__ == "Sentinel" else value


# 5. Run folders

SAMPLED = {
    "model.policy": "tiny:llama",
    "model.dtype": "float32",
    "data.train": "sort_digits:8",
    "data.evaluate": "sort_digits@heldout:2",
    "rewards": [{"use": "exact"}],
    "rollouts.prompts_per_step": 2,
    "rollouts.max_new_tokens": 4,
    "run.steps": 2,
    "run.save_every": 2,
    "run.evaluate_every": 1,
}
FILES = {
    **{key: value for key, value in SAMPLED.items() if key.startswith(("model.", "data.", "run."))},
    "data.batch_size": 4,
}
RUNS: dict[str, dict[str, Any]] = {
    "grpo": {**SAMPLED, "rollouts.group_size": 2},
    "ppo": {**SAMPLED, "update.learning_rate": 0.1},  # so large that there is a warning
    "dpo": FILES,
    "sft": FILES,
}
# Mappings whose keys are data: names of packages, rewards and files.
KEYED_BY_DATA = {"packages", "parts", "content", "weights", "recipe", "origins"}
FOREIGN = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")


def train(work: Path, name: str) -> Path:
    """The folder of a tiny run, trained where it is not there yet; that of sft was resumed with a changed key."""
    folder = work / "runs" / name
    if folder.exists():
        return folder
    recipe = nest_keys({"algorithm": name, **RUNS[name]})
    random.seed(0)  # the checkpoint has its state
    with mock.patch.object(torch.cuda, "is_available", return_value=False):
        ascent.train(recipe, run=folder, progress=False, say=ignore)
        if name == "sft":
            config = folder / "config.yaml"
            text = config.read_text(encoding="utf-8").replace("steps: 2", "steps: 3")
            config.write_text(text, encoding="utf-8")
            ascent.resume(folder, progress=False, say=ignore)
    return folder


def ignore(line: str) -> None:
    pass


def list_run_folders(work: Path) -> list[str]:
    """Files, keys of JSON and tensors of run folders, with the runs that have them."""
    found: dict[str, list[str]] = defaultdict(list)
    for name in RUNS:
        for fact in sorted(set(folder_facts(train(work, name)))):
            found[fact].append(name)
    lines = [f"{fact} ({', '.join(sorted(names))})" for fact, names in found.items()]
    return [*lines, *(f"warnings.jsonl name: {each.name}, reads {each.reads}" for each in RULES)]


def folder_facts(folder: Path) -> Iterator[str]:
    for path in sorted(folder.rglob("*")):
        name = re.sub(r"(?<=/)\d+(?=/)", "<step>", path.relative_to(folder).as_posix())
        if path.is_dir():
            continue
        yield f"file {name}"
        if path.suffix == ".safetensors":
            yield from (f"{name} {each}" for each in tensor_facts(path))
        elif path.suffix in (".json", ".jsonl") and path.name not in FOREIGN:
            text = path.read_text(encoding="utf-8")
            values = text.splitlines() if path.suffix == ".jsonl" else [text]
            yield from (f"{name} {each}" for each in shape([json.loads(each) for each in values]))


def tensor_facts(path: Path) -> Iterator[str]:
    """Name, dtype and number of axes of each tensor, from the header; layers count as one."""
    with path.open("rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    yield from (f"metadata {each}" for each in shape([header.pop("__metadata__", {})]))
    for name, each in header.items():
        name = re.sub(r"[.][0-9]+[.]", ".<n>.", re.sub("[0-9a-f]{32}", "<hash>", name))
        yield f"{name}: {each['dtype']}, {len(each['shape'])} axes"


def shape(values: Iterable[Any]) -> list[str]:
    """`key.inner[]: types` for every place in JSON values of one kind; of a version of a format, its value."""
    types: dict[str, set[str]] = defaultdict(set)
    for value in values:
        collect_types(value, "", types)
    lines = []
    for place, found in types.items():
        inside = place.removesuffix("]")  # items[] is empty where nothing is listed as items[...
        if found or not any(each.startswith(inside) for each in types if each != place):
            lines.append(f"{place}: {'|'.join(sorted(found)) or 'empty'}")
    return lines


def collect_types(value: Any, place: str, types: dict[str, set[str]]) -> None:
    name = place.rpartition(".")[2]
    if name == "git":  # outside of a repository there is none
        types[place] |= {"object", "null"}
    elif isinstance(value, dict) and value:
        keyed = name in KEYED_BY_DATA or all(re.search("[./:]", key) for key in value)
        for key, each in value.items():
            collect_types(each, f"{place}.{'<name>' if keyed else key}".removeprefix("."), types)
    elif isinstance(value, list):
        types[f"{place}[]"] |= set()
        nested = [isinstance(each, list | dict) for each in value if each is not None]
        is_record = any(nested) and not all(nested)  # then an element is known by its place
        for index, each in enumerate(value):
            collect_types(each, f"{place}[{index if is_record else ''}]", types)
    else:
        types[place].add(str(value) if place == "format" else JSON_WORDS[type(value)])


JSON_WORDS = {
    type(None): "null",
    bool: "bool",
    int: "int",
    float: "float",
    str: "str",
    dict: "object",
}


# 6. Wire forms


class Recorder:
    """Takes the place of a server's routes, to see what its clients send and what it answers. Requests without a
    `sender` are not counted."""

    def __init__(self, routes: Mapping[str, http_server.Route]) -> None:
        self.sender = ""
        self.routes = {path: self._wrap(path, route) for path, route in routes.items()}
        self._seen: dict[str, list[Any]] = defaultdict(list)

    @property
    def lines(self) -> list[str]:
        lines = [f"{route.method} {path}" for path, route in self.routes.items()]
        for owner, values in self._seen.items():
            lines += [f"{owner} {each}" for each in shape(values)]
        return lines

    def _wrap(self, path: str, route: http_server.Route) -> http_server.Route:
        owner = f"{route.method} {path}"

        def handle(call: http_server.Call) -> http_server.Reply:
            if call.body and self.sender:
                self._seen[f"{owner} sent by {self.sender}"].append(json.loads(call.body))
            reply = route.handle(call)
            if not isinstance(reply, Mapping):
                return self._record(f"{owner} event", reply)
            self._seen[f"{owner} reply"].append(reply)
            return reply

        return replace(route, handle=handle)

    def _record(self, owner: str, events: Iterator[str]) -> Generator[str]:
        for event in events:
            self._seen[owner].append(event if event == "[DONE]" else json.loads(event))
            yield event


def list_wire_forms(work: Path) -> list[str]:
    lines = [*model_server_lines(work), *reward_server_lines(), *reward_worker_lines()]
    return [*lines, *view_lines(work), *label_lines(work)]


def model_server_lines(work: Path) -> list[str]:
    """`ascent serve`: the keys that it takes with their rules, and what passes between it and its clients."""
    folder = tiny_folder(work / "served")
    token_file = work / "token"
    token_file.write_text(KEY, encoding="utf-8")
    lines = [f"completions take {key}: ignored" for key in openai_requests.IGNORED]
    for key, allowed in openai_requests.NEUTRAL.items():
        lines.append(f"completions take {key}: only {' or '.join(map(json.dumps, allowed))}")
    with (
        mock.patch.object(torch.cuda, "is_available", return_value=False),
        served(folder) as server,
    ):
        recorder = Recorder(server.http.routes)
        server.http.routes = recorder.routes
        with record_fields() as taken:
            for path, body in COMPLETIONS.items():
                recorder.sender = "a client"
                status, reply = server.ask(path, body)
                assert status == 200, reply
                server.ask(path, {**body, **STREAM})
                lines += [f"POST {path} takes {line}" for line in taken]
                taken.clear()
        ask_as_ascent(server, recorder, folder, str(token_file))
        for path, key in (("/v1/models", "another key"), ("/none", KEY)):
            status, reply = server.ask(path, key=key)
            lines += [f"refusal {status} {each}" for each in shape([reply])]
    return [f"serve {line}" for line in (*lines, *recorder.lines)]


COMMON = {
    "max_tokens": 2,
    "seed": 1,
    "return_token_ids": True,
    "return_tokens_as_token_ids": True,
    "top_p": 0.5,
}
COMPLETIONS: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "1+1=", "echo": True, "logprobs": 1, **COMMON},
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": "1+1="}],
        "logprobs": True,
        "top_logprobs": 1,
        **COMMON,
    },
}
STREAM = {
    "stream": True,
    "stream_options": {"include_usage": True},
    "echo": None,
    "top_logprobs": None,
}
STREAM |= {"logprobs": None}


@contextmanager
def record_fields() -> Iterator[list[str]]:
    """The keys that bodies may have, with their rules, as the reader of a body asks for them."""
    taken: list[str] = []
    take = openai_requests.Fields.take

    def record(self: Any, key: str, default: Any, rule: str, is_valid: Any) -> Any:
        taken.append(f"{key}: {rule} = {default_text(default)}")
        return take(self, key, default, rule, is_valid)

    with mock.patch.object(openai_requests.Fields, "take", record):
        yield taken


def ask_as_ascent(server: Any, recorder: Recorder, folder: Path, token_file: str) -> None:
    """What the samplers and judges of Ascent send to a server, and `ascent serve` answers."""
    retry, tokenizer = RetryPolicy(tries=1), server.model.tokenizer
    recorder.sender = "the updates of weights"
    updates = AscentUpdates(server.url, KEY, retry)
    updates.check()
    check_vocabulary(server.url, KEY, retry, tokenizer.encode)
    updates.push(1, folder)
    request = Request("p", 0, (5, 6), 2, seed=0)
    for exact in (False, True):
        recorder.sender = "a sampler of ascent serve" if exact else "a sampler of any server"
        sampler = RemoteSampler(server.url, "tiny", [1], key=KEY, exact=exact, retry=retry)
        list(sampler.sample([request]))
        sampler.close()
    recorder.sender = "the reward judge"
    url = {"url": server.url, "model": "tiny", "token_file": token_file}
    judge = rewards.find("judge", rubric="right or wrong", max_tokens=2, **url)
    assert isinstance(judge, rewards.Batch)
    judge.score([rollout("2")])
    recorder.sender = "a judge of pairs"
    question = Comparison("q", Prompt("p", (Message("user", "?"),)), ANSWERS)
    ComparisonEndpoint(max_tokens=2, **url).verdicts([ShownComparison(question, (0, 1))])
    server.ask("/health")


ANSWERS = (Answer("0.0", "a", "yes", 1), Answer("1.0", "b", "no", 1))


@contextmanager
def running(server: http_server.Server) -> Iterator[Recorder]:
    """A server in a thread, and what is seen of it."""
    recorder = Recorder(server.routes)
    server.routes = recorder.routes
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
    )
    thread.start()
    try:
        yield recorder
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def reward_server_lines() -> list[str]:
    """`ascent serve-reward` and its client, the reward `remote`."""
    server = create_server(lambda items: [0.5, None][: len(items)], serves="a model")
    with running(server) as recorder:
        recorder.sender = "the reward remote"
        client = rewards.find("remote", url=server.url)
        client.check_server()  # type: ignore[union-attr]
        client.score([rollout("a", answer="a"), rollout("b")])  # type: ignore[union-attr]
        recorder.sender = ""
        status, reply = ask(server.url, "POST", "/score", {})
        lines = [f"refusal {status} {each}" for each in shape([reply])]
    return [f"serve-reward {line}" for line in (*lines, *recorder.lines)]


def reward_worker_lines() -> list[str]:
    """The processes of `ascent train --reward-workers`."""
    server = create_worker({"exact": rewards.find("exact")})
    with running(server) as recorder:
        recorder.sender = "a rank"
        body = call_to_json("exact", 5.0, [rollout("a", answer="a")])
        assert ask(server.url, "POST", "/v1/score", json.loads(body))[0] == 200
        ask(server.url, "GET", "/v1/health")
    return [f"reward worker {line}" for line in recorder.lines]


def ask(url: str, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """Status and JSON of a reply."""
    place = urlsplit(url)
    connection = HTTPConnection(place.hostname or "", place.port, timeout=30)
    headers = {"Origin": f"{place.scheme}://{place.netloc}"}
    connection.request(method, path, None if body is None else json.dumps(body), headers)
    reply = connection.getresponse()
    text = reply.read()
    connection.close()
    return reply.status, json.loads(text)


# A parameter of the page's requests, and a value that shows that it is read: a refusal, or another reply.
VIEW_REQUESTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("runs", {}),
    ("runs", {"since": "REVISION"}),
    ("run", {}),
    ("run", {"run": "none"}),
    ("curves", {"name": "policy/loss", "window": 2}),
    *(("curves", {key: "none"}) for key in ("axis", "window", "points")),
    ("rollouts", {}),
    ("rollouts", {"everywhere": "true", "text": "nothing has this"}),
    ("rollouts", {"everywhere": "true", "before": "none"}),
    *(("rollouts", {key: "none"}) for key in ("step", "which", "order")),
    ("rollout", {"step": 1, "sample": 0, "id": "ID"}),
    *(("rollout", {key: "none"}) for key in ("step", "sample")),
    ("heldout", {}),
    ("heldout", {"place": 0}),
    ("heldout", {"place": "none"}),
    ("compare", {"run": ["grpo", "again"], "name": "policy/loss", "fold": "true"}),
    ("compare", {"run": "grpo"}),
)


def view_lines(work: Path) -> list[str]:
    """What the page of `ascent view` asks its server for."""
    from ascent.view.library import Library
    from ascent.view.page import page_app
    from tests.view.browser import serving

    runs = work / "page"
    for name in ("grpo", "again"):
        shutil.copytree(train(work, "grpo"), runs / name, dirs_exist_ok=True)
    page = page_app(Library([runs]))
    lines = route_lines(page)
    with serving(page) as url:
        while (listed := ask(url, "GET", "/api/runs?since=none")[1])["pending"]:
            pass  # the server has not read every run yet
        groups = ask(url, "GET", "/api/rollouts?run=grpo&step=1")[1]["groups"]
        values = {"REVISION": listed["revision"], "ID": groups[0]["id"]}
        for name, parameters in VIEW_REQUESTS:
            words = urlencode(parameters, doseq=True, safe="/")
            sent = {key: values.get(str(value), value) for key, value in parameters.items()}
            query = urlencode(sent if name == "runs" else {"run": "grpo", **sent}, doseq=True)
            status, reply = ask(url, "GET", f"/api/{name}?{query}")
            owner = f"GET /api/{name}{f'?{words}' if words else ''}"
            if status == 200:
                lines += [f"{owner} reply {each}" for each in shape([reply])]
            else:
                lines.append(f"{owner} refusal {status}: {reply['error']}")
    return [f"view {line}" for line in lines]


def route_lines(page: Any) -> list[str]:
    """Method and path; the files of the page are left out."""
    return [
        f"{method} {route.path}"
        for route in page.routes
        for method in route.methods - {"HEAD"}
        if not route.path.startswith("/static/")
    ]


def label_lines(work: Path) -> list[str]:
    """The page of `ascent label`, and the lines that verdicts of each form leave in its file."""
    from ascent.view.label import label_app
    from tests.view.browser import serving

    lines: list[str] = []
    question = [
        Comparison(f"p{n}", Prompt(f"p{n}", (Message("user", "?"),)), ANSWERS) for n in range(2)
    ]
    for form in FORMS:
        path = work / f"{form}.jsonl"
        path.unlink(missing_ok=True)
        with PreferenceLog(path) as log:
            session = LabelingSession(
                log, question, LabelingPlan(form=form, overlap=1.0, repeat=0.0)
            )
            if form == "pairs":
                page = label_app(session)
                lines += route_lines(page)
                with serving(page) as url:
                    lines += judge_over_http(url)
            shown = session.next("ann")
            assert shown is not None
            word, numbers = {
                "pairs": ("tie", []),
                "rankings": ("ranked", [1, 2]),
                "ratings": ("rated", [2, 1]),
            }[form]
            session.judge("ann", session.ticket("ann", shown), word, numbers, "why")
            lines += [f"{form} row {each}" for each in shape(log.rows[-1:])]
    return [f"label {line}" for line in lines]


def judge_over_http(url: str) -> list[str]:
    _, session = ask(url, "GET", "/api/session")
    _, state = ask(url, "GET", "/api/question?annotator=ann")
    verdict = {"annotator": "ann", "ticket": state["question"]["ticket"], "verdict": "first"}
    verdict |= {"numbers": [], "comment": "why"}
    undo = {"annotator": "ann", "done": 1}
    lines = [f"GET /api/session reply {each}" for each in shape([session])]
    lines += [f"GET /api/question?annotator= reply {each}" for each in shape([state])]
    for path, body in (("/api/judge", verdict), ("/api/undo", undo)):
        status, reply = ask(url, "POST", path, body)
        lines += [f"POST {path} sent {each}" for each in shape([body])]
        lines += [f"POST {path} reply {status} {each}" for each in shape([reply])]
    return lines


# 7. Surroundings, metrics, diagnosis


def list_surroundings(work: Path) -> list[str]:
    lines = [f"environment variable {name}" for name in environment_variables()]
    lines += [f"entry point group {name}" for name in entry_point_groups()]
    lines += [f"diagnosis {name}" for name in CAUSES]
    for each in REGISTRY:
        healthy = f"; healthy {range_text(each)}" if range_text(each) else ""
        place = f"; plot {each.plot}" if each.plot else ""
        label = f"; label {each.label}" if each.label else ""
        lines.append(f"metric {each.name} [{each.unit}]: {each.summary}{healthy}{label}{place}")
    return lines


@functools.cache
def package_trees() -> tuple[tuple[str, ast.Module], ...]:
    """The modules of the package that have a word of interest, by name, parsed."""
    words = re.compile(r"os\.environ|getenv|ASCENT_|entry_points|find_target")
    found = []
    for path in sorted((ROOT / "ascent").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if words.search(text):
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            found.append((module.removesuffix(".__init__"), ast.parse(text)))
    return tuple(found)


def environment_variables() -> set[str]:
    """Constants that read os.environ, in whatever way, and every constant that is named like a variable of ours."""
    found: set[str] = set()
    for module, tree in package_trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and re.fullmatch(r"ASCENT_[A-Z_]+", str(node.value)):
                found.add(str(node.value))
            key = environment_key(node)
            if isinstance(key, ast.Constant):
                found.add(str(key.value))
            elif isinstance(key, ast.Name):
                value = getattr(importlib.import_module(module), key.id, None)
                found |= {value} if isinstance(value, str) else set()
    return found


def environment_key(node: ast.AST) -> ast.expr | None:
    """K of os.environ[K], os.environ.get(K), os.getenv(K) and K in os.environ."""
    if isinstance(node, ast.Subscript) and is_environment(node.value):
        return node.slice
    if isinstance(node, ast.Compare) and any(map(is_environment, node.comparators)):
        return node.left
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
        name = ast.unparse(node.func)
        return node.args[0] if is_environment(node.func.value) or name == "os.getenv" else None
    return None


def is_environment(node: ast.expr) -> bool:
    return ast.unparse(node) == "os.environ"


@functools.cache
def entry_point_groups() -> tuple[str, ...]:
    """Groups that are read by their name, and one for each kind of plugin."""
    found: set[str] = set()
    for module, tree in package_trees():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            name = ast.unparse(node.func).rpartition(".")[2]
            if name == "find_target" and isinstance(node.args[0], ast.Constant):
                found.add(f"ascent.{node.args[0].value}s")
            for each in node.keywords if name == "entry_points" else ():
                value = each.value
                if isinstance(value, ast.Name):
                    found.add(getattr(importlib.import_module(module), value.id))
                elif isinstance(value, ast.Constant):
                    found.add(str(value.value))
    return tuple(sorted(found))


# 8. The package


def list_package(work: Path) -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [f"name {project['name']}", f"python {project['requires-python']}"]
    lines += [f"script {name}: {target}" for name, target in project["scripts"].items()]
    lines += [f"dependency {each}" for each in project["dependencies"]]
    for name, packages in project["optional-dependencies"].items():
        lines += [f"extra {name}: {each}" for each in packages]
    return lines


SECTIONS: dict[str, Callable[[Path], Iterable[str]]] = {
    "1. Public names": list_names,
    "2. Import paths in docs, examples, notebooks and recipes": list_paths,
    "3. Recipes": list_recipes,
    "4. Commands": list_commands,
    "5. Run folders and checkpoints": list_run_folders,
    "6. Wire forms": list_wire_forms,
    "7. Environment variables, entry points, metrics, diagnosis": list_surroundings,
    "8. Package": list_package,
}


def make_section(title: str, work: Path) -> list[str]:
    """The lines of a section, sorted. `work` is a folder for runs, which sections share."""
    return sorted({" ".join(line.split()) for line in SECTIONS[title](work)}, key=natural_order)


def natural_order(line: str) -> list[tuple[int, str]]:
    """Parameter 2 before parameter 10."""
    return [
        (int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"([0-9]+)", line)
    ]


def write_text(sections: Mapping[str, Sequence[str]]) -> str:
    return "\n".join(
        [HEAD, *(f"## {title}\n\n" + "\n".join(lines) + "\n" for title, lines in sections.items())]
    )


def read_text(text: str) -> dict[str, list[str]]:
    """The sections of a listing."""
    parts = [part.partition("\n\n") for part in f"\n{text}".split("\n## ")[1:]]
    return {title: lines.rstrip("\n").split("\n") for title, _, lines in parts}


def compare(accepted: Sequence[str], now: Sequence[str]) -> str:
    """The lines that went and came, and the command that accepts them; empty where there are none."""
    lines = [
        line
        for line in difflib.unified_diff(accepted, now, n=0, lineterm="")
        if not line.startswith(("---", "+++", "@@"))
    ]
    return "\n".join([*lines, "", f"To accept: {ACCEPT}"]) if lines else ""


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.regression.public_listing", description=__doc__
    )
    parser.add_argument("--write", action="store_true", help=f"write {FILE.name}")
    given = parser.parse_args()
    torch.set_num_threads(1)
    stub_pictures()
    if missing := unresolved_paths():
        raise SystemExit("\n".join(["these paths lead nowhere:", *missing]))
    with tempfile.TemporaryDirectory() as folder:
        text = write_text({title: make_section(title, Path(folder)) for title in SECTIONS})
    if given.write:
        FILE.write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
