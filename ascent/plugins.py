"""Plugins by name: a built-in, an entry point of another package, or `file.py:NAME` from a file of the user.

Keyword-only parameters are options, checked before anything runs.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def find_target(kind: str, use: str, built_in: Mapping[str, str]) -> Any:
    """What a name stands for. `built_in` maps names to `module:attribute`; other packages declare entry points in the
    group `ascent.KINDs`."""
    if use in built_in:
        module, _, name = built_in[use].partition(":")
        return getattr(importlib.import_module(module), name)
    if ".py:" in use:
        file, _, name = use.rpartition(":")
        names = load_names(f"{kind} {use}", Path(file))
        if name not in names:
            own = ", ".join(
                each
                for each, value in names.items()
                if callable(value) and not each.startswith("_")
            )
            raise ValueError(
                f"{kind} {use}: {Path(file).name} defines no {name}; it defines {own or 'nothing'}"
            )
        return names[name]
    found = {
        entry.name: entry for entry in importlib.metadata.entry_points(group=f"ascent.{kind}s")
    }
    if use in found:
        return found[use].load()
    near = difflib.get_close_matches(use, [*built_in, *found], n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join([*built_in, *found])}"
    raise ValueError(f"no {kind} named {use!r}; {hint} Your own is written file.py:function")


def check_options(
    owner: str,
    target: Callable[..., Any],
    options: Mapping[str, Any],
    *,
    called_with: str | None = None,
) -> None:
    """ValueError unless the options are among the keyword-only parameters and none of those is missing. A function has
    exactly one parameter besides: `called_with`."""
    parameters = list(inspect.signature(target).parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    keyword = {p.name: p for p in parameters if p.kind == p.KEYWORD_ONLY}
    if called_with is not None and len([p for p in positional if p.default is p.empty]) != 1:
        raise ValueError(
            f"{owner} takes {len(positional)} positional parameters, but it is called with one: {called_with}; make "
            "the others keyword-only"
        )
    unknown = [name for name in options if name not in keyword]
    if unknown:
        raise ValueError(
            f"{owner} has no option {unknown[0]}; it has {', '.join(keyword) or 'none'}"
        )
    missing = [p.name for p in keyword.values() if p.default is p.empty and p.name not in options]
    if missing:
        raise ValueError(f"{owner} needs the option {missing[0]}")


def load_names(owner: str, path: Path) -> dict[str, Any]:
    """What the file defines. `owner` begins the error where there is none."""
    path = path.expanduser().resolve()
    if not path.is_file():
        raise ValueError(f"{owner}: there is no file {path}")
    # Path and text are part of the name: two files called rewards.py do not meet, one that was changed is read again.
    # And the module stays findable, so that what it defines can be pickled.
    mark = hashlib.sha256(str(path).encode() + path.read_bytes()).hexdigest()[:8]
    module_name = f"ascent_own_{path.stem}_{mark}"
    if module_name not in sys.modules:
        spec = importlib.util.spec_from_file_location(module_name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException as error:  # a half-made module must not stay behind
            del sys.modules[module_name]
            if not isinstance(error, Exception):
                raise
            raise ValueError(
                f"{owner}: {path}{_line(error, path)}: {type(error).__name__}: {error}; fix it"
            ) from error
    return vars(sys.modules[module_name])


def _line(error: Exception, path: Path) -> str:
    """`:LINE` of the file, where the error came from there."""
    if isinstance(error, SyntaxError):
        return f":{error.lineno}" if error.lineno else ""
    frames = traceback.extract_tb(error.__traceback__)
    return next(
        (f":{frame.lineno}" for frame in reversed(frames) if frame.filename == str(path)), ""
    )
