"""Read recipes (YAML files and the shipped ones) and dotted overrides, and merge them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from ascent.cells import nearest
from ascent.config import yaml_text
from ascent.config.schema import SHORT_FORMS
from ascent.config.validate import format_value

MAX_DEPTH = 20  # names in a dotted key


def shipped_recipes() -> dict[str, str]:
    """Name -> first comment line of every shipped recipe."""
    found = {}
    for entry in sorted(
        resources.files("ascent").joinpath("recipes").iterdir(), key=lambda entry: entry.name
    ):
        if entry.name.endswith(".yaml"):
            first = entry.read_text(encoding="utf-8").partition("\n")[0]
            found[entry.name.removesuffix(".yaml")] = first.removeprefix("#").strip()
    return found


def read_recipe(recipe: str, others: Iterable[str] = ()) -> dict[str, Any]:
    """The mapping of a recipe: a path if it has a slash or ends in .yaml or .yml, else a shipped name.

    `others` are further names that an error may suggest.
    """
    if "/" in recipe or recipe.endswith((".yaml", ".yml")):
        text = _read_file(Path(recipe))
    else:
        known = shipped_recipes()
        if recipe not in known:
            close = nearest(recipe.lower(), dict.fromkeys((*known, *others)))
            hint = (
                close
                if close.startswith("did")
                else "ascent recipes and ascent show algorithms list the names"
            )
            raise ValueError(f"no recipe named {recipe!r}; {hint} (a file's path ends in .yaml)")
        text = (
            resources.files("ascent")
            .joinpath("recipes", f"{recipe}.yaml")
            .read_text(encoding="utf-8")
        )
    value = yaml_text.read(text, recipe)
    if value is None:
        raise ValueError(
            f"{recipe} is empty; a recipe names at least algorithm, model.policy and data.train"
        )
    if not isinstance(value, dict):
        raise ValueError(
            f"{recipe} holds {_kind(value)}, but a recipe is a mapping of keys, such as 'algorithm: rlvr'"
        )
    return value


def parse_overrides(overrides: Sequence[str]) -> dict[str, Any]:
    """['a.b=1', 'a.c=x'] -> {'a': {'b': 1, 'c': 'x'}}; the right-hand side is read as YAML."""
    tree: dict[str, Any] = {}
    seen: set[str] = set()
    for text in overrides:
        key, equals, word = text.partition("=")
        if not equals or not all(key.strip().split(".")):
            raise ValueError(
                f"override {format_value(text)} must look like key=value, such as rollouts.group_size=16"
            )
        value = yaml_text.read(word, f"override {format_value(text)}")
        key = _full_key(key.strip(), value)
        if key in seen:
            raise ValueError(f"override {key} is given twice; keep one")
        seen.add(key)
        _put(tree, key.split("."), value, text)
    return tree


def nest_keys(flat: Mapping[str, Any]) -> dict[str, Any]:
    """{'a.b': 1, 'a.c': 'x'} -> {'a': {'b': 1, 'c': 'x'}}."""
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        _put(tree, _full_key(key, value).split("."), value, key)
    return tree


def _full_key(key: str, value: Any) -> str:
    """model=X is model.policy=X, and data=X is data.train=X."""
    return key if isinstance(value, Mapping) else SHORT_FORMS.get(key, key)


def merge_configs(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` merged into `base`, section by section; other values are replaced."""
    if over.get("use", base.get("use")) != base.get("use"):
        return dict(over)  # another function: the parameters of the old one do not apply
    result = dict(base)
    for key, value in over.items():
        under = result.get(key)
        result[key] = (
            merge_configs(under, value)
            if isinstance(under, Mapping) and isinstance(value, Mapping)
            else value
        )
    return result


def _put(tree: dict[str, Any], parts: list[str], value: Any, text: str) -> None:
    if len(parts) > MAX_DEPTH:
        raise ValueError(
            f"override {format_value(text)} has {len(parts)} names with dots between; no key has more than 4"
        )
    for depth, part in enumerate(parts[:-1], start=1):
        if parts[depth].isdigit():
            raise ValueError(
                f"override {format_value(text)}: {'.'.join(parts[:depth])} is a list; give all of it: {part}='[...]'"
            )
        tree = tree.setdefault(part, {})
        if not isinstance(tree, dict):
            raise ValueError(
                f"override {format_value(text)} clashes with another override of {'.'.join(parts[:depth])}; keep one"
            )
    clash = tree.get(parts[-1])
    if clash is not None and not (isinstance(clash, dict) and isinstance(value, dict)):
        raise ValueError(
            f"override {format_value(text)} clashes with another override inside {'.'.join(parts)}; keep one"
        )
    tree[parts[-1]] = merge_configs(clash, value) if isinstance(clash, dict) else value


def _read_file(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ValueError(
            f"no recipe file at {path}; ascent recipes lists the shipped ones"
        ) from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{path}, line {line}, is not UTF-8 text (byte {error.start}); save it as UTF-8"
        ) from None
    except OSError as error:
        raise ValueError(
            f"{path} cannot be read: {error.strerror}; a recipe is a YAML file"
        ) from None


def _kind(value: Any) -> str:
    return "a list" if isinstance(value, list) else f"the single value {format_value(value)}"
