"""Objects among the arguments of `ascent.train` and `ascent.resume`: found, named, and passed beside the plan."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from ascent.config.changes import flatten, flatten_mapping
from ascent.config.load import nest_keys
from ascent.config.peer_keys import ARGUMENTS
from ascent.config.schema import Config
from ascent.config.validate import hint_for
from ascent.plan.resolve import Plan
from ascent.runs.folder import CONFIG
from ascent.setup.objects import (
    Objects,
    PythonObject,
    argument_of,
    code_of,
    is_object,
    model_of,
    refuse_missing,
    rows_of,
)

P = ParamSpec("P")
R = TypeVar("R")

ENTRY = "a name, a function, (function, weight), or a dict with the key use"


class Collector:
    """Replaces the objects in a tree of keys by their names."""

    def __init__(self, tokenizer: Any = None) -> None:
        self.objects: dict[str, PythonObject] = {}
        self._tokenizer, self._tokenizer_used = tokenizer, False

    def replace(self, tree: Mapping[str, Any]) -> dict[str, Any]:
        """A tree with nested keys, of which model.policy, data.train, data.evaluate, rewards and env may be objects."""
        found = {
            name: dict(value) if isinstance(value, Mapping) else value
            for name, value in tree.items()
        }
        for section, key in (("model", "policy"), ("data", "train"), ("data", "evaluate")):
            values = found.get(section)
            if isinstance(values, dict) and not _is_word(values.get(key)):
                values[key] = self._name(f"{section}.{key}", values[key])
        if "rewards" in found:
            found["rewards"] = self._rewards(found["rewards"])
        if "env" in found:
            found["env"] = self._section(
                "env", found["env"], "a name, a class, a function, or a dict with the key use"
            )
        return found

    def finish(self) -> None:
        if self._tokenizer is not None and not self._tokenizer_used:
            raise ValueError(
                "tokenizer= goes with a loaded model (model=...); a model's name or folder has its own"
            )

    def _name(self, key: str, value: Any) -> str:
        if key == "model.policy":
            made, self._tokenizer_used = model_of(key, value, self._tokenizer), True
        else:
            made = rows_of(key, value) if key.startswith("data.") else code_of(key, value)
        self.objects.setdefault(made.name, made)
        return made.name

    def _rewards(self, value: Any) -> Any:
        if value is None:
            return None
        several = value if isinstance(value, list) or _is_list_of_entries(value) else [value]
        return [self._entry(f"rewards[{place}]", each) for place, each in enumerate(several)]

    def _entry(self, key: str, value: Any) -> Any:
        if not isinstance(value, tuple):
            return self._section(key, value, ENTRY)
        if len(value) != 2 or isinstance(value[1], bool) or not isinstance(value[1], int | float):
            raise ValueError(
                f"{key} is {value!r:.80}; a reward is {ENTRY}, and a weight is a number"
            )
        return {**self._section(key, value[0], ENTRY), "weight": float(value[1])}

    def _section(self, key: str, value: Any, rule: str) -> Any:
        """A name, an object, or a section whose `use` is either."""
        if value is None or isinstance(value, str):
            return value if value is None else {"use": value}
        if not isinstance(value, Mapping):
            return {"use": self._code(key, value, rule)}
        if "use" not in value or isinstance(value["use"], str):
            return dict(value)
        return {**value, "use": self._code(f"{key}.use", value["use"], rule)}

    def _code(self, key: str, value: Any, rule: str) -> str:
        if inspect.iscoroutine(value):
            value.close()
            raise ValueError(
                f"{key} is a coroutine, the result of a call; give the function itself, without ()"
            )
        if not callable(value) and not hasattr(value, "score"):
            raise ValueError(f"{key} is a {type(value).__name__} ({value!r:.60}); give {rule}")
        return self._name(key, value)


def _is_word(value: Any) -> bool:
    return value is None or isinstance(value, str | Path)


def _is_list_of_entries(value: Any) -> bool:
    """Whether a tuple is a list of rewards, and not one reward with its weight."""
    return isinstance(value, tuple) and not (len(value) == 2 and isinstance(value[1], int | float))


def hint_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """The function, whose TypeError for an unknown argument says where its value belongs."""
    known = inspect.signature(function).parameters

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        name = next((name for name in kwargs if name not in known), None)
        if name is None:
            return function(*args, **kwargs)
        hint = (
            f"write {ARGUMENTS[name]}="
            if name in ARGUMENTS
            else f"keys are in the second argument: {hint_for(name)}"
        )
        raise TypeError(f"ascent.{function.__name__} has no argument {name!r}; {hint}")

    return call


def check_arguments(recipe: Any, overrides: Any, run: Any) -> None:
    """ValueError for arguments of another type than a recipe, overrides and a folder can have."""
    if not isinstance(recipe, str | Path | Mapping | Plan):
        fix = (
            "ascent.resolve(config)"
            if isinstance(recipe, Config)
            else "a name, a .yaml file or a mapping of keys"
        )
        raise ValueError(f"recipe is a {type(recipe).__name__} ({recipe!r:.60}); give {fix}")
    listed = isinstance(overrides, Sequence) and not isinstance(overrides, str)
    if not isinstance(overrides, Mapping) and not (
        listed and all(isinstance(each, str) for each in overrides)
    ):
        raise ValueError(
            f'overrides is {overrides!r:.60}; give a mapping, {{"run.steps": 2}}, or a list of texts, ["run.steps=2"]'
        )
    if run is not None and not isinstance(run, str | Path):
        raise ValueError(
            f"run is a {type(run).__name__} ({run!r:.60}); give the path of the run folder"
        )


def as_json(key: str, value: Any) -> str:
    """A value of a recipe as JSON, of which YAML is more."""

    def word(each: Any) -> str:
        if isinstance(each, Path):
            return str(each)
        raise ValueError(
            f"{key} is a {type(each).__name__} ({each!r:.60}); objects are taken at the keys model.policy, data.train, "
            "data.evaluate, rewards and env"
        )

    return json.dumps(value, default=word)


def as_keys(**arguments: Any) -> dict[str, Any]:
    """The arguments by their keys of a recipe, without those that are None."""
    keys = {"model": "model.policy", "data": "data.train", "eval_data": "data.evaluate"}
    return {keys.get(name, name): value for name, value in arguments.items() if value is not None}


def objects_again(config: Config, given: Mapping[str, Any], folder: Path) -> Objects:
    """The objects of a run that is resumed, by the names that its config has for them.

    ValueError if one is missing, or if something else is passed than the config has. Whether an object is still the
    same is seen by its fingerprint (`ascent.api.input_changes`).
    """
    collector, was = Collector(), flatten(config)
    tree = collector.replace(nest_keys(given))
    _refuse_other_number(tree.get("rewards"), len(config.rewards), folder)
    found: dict[str, Any] = {}
    for key, value in flatten_mapping(tree) if tree else ():
        if is_object(value) and is_object(was.get(key)):
            found[was[key]] = collector.objects[value]
        elif was.get(key) != value:
            raise ValueError(
                f"{argument_of(key)}= gives {key}={value}, but {folder / CONFIG} has {key}={was.get(key)}; pass what "
                f"the run was started with, or edit {CONFIG}"
            )
    others = {
        key: value for key, value in was.items() if key != "model.policy"
    }  # its copy is in the run folder
    refuse_missing(others, found, f'ascent.resume("{folder}"')
    return found


def _refuse_other_number(rewards: Any, number: int, folder: Path) -> None:
    if rewards is not None and len(rewards) != number:
        raise ValueError(
            f"rewards= has {len(rewards)} entries, but {folder / CONFIG} has {number}; pass all of them, in their order"
        )
