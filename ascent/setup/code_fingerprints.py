"""Fingerprints of functions, classes and instances: code, defaults, closures, attributes, and the globals they use.

The parts have names, so that a difference can be named: `brief`, `brief.limit` (closure), `TABLE` (global). Code from
installed packages and from the standard library counts by its name. Line numbers and file names do not count, so a
function may move within its file, and from a script into a notebook.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import inspect
import pickle
import platform
import re
import types
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ascent.setup.local_modules import files_of_import, is_local, local_files

# Attributes of a class that Python sets itself.
IMPLICIT = {
    *("__dict__", "__weakref__", "__module__", "__doc__", "__qualname__", "__annotations__"),
    *("__firstlineno__", "__static_attributes__", "__annotate_func__", "__annotations_cache__"),
}


def code_content(value: Any) -> tuple[dict[str, str], tuple[str, ...]]:
    """Fingerprints by part, and the parts that have none, such as connections."""
    parts = _Parts()
    text = parts.describe(value, "the object")
    if not isinstance(value, types.FunctionType | type):
        parts.content["object"] = _sha256(text)
    return {**parts.content, "python": ".".join(platform.python_version_tuple()[:2])}, tuple(
        parts.unchecked
    )


class _Parts:
    """Collects the fingerprints of a value and of everything it refers to, each once."""

    def __init__(self) -> None:
        self.content: dict[str, str] = {}
        self.unchecked: list[str] = []
        self._seen: dict[int, Any] = {}  # holds them, so that no other object gets the same id

    def describe(self, value: Any, name: str) -> str:
        """A text that is equal for equal values."""
        if value is None or isinstance(
            value, bool | int | float | complex | str | bytes | type(...)
        ):
            return repr(value)
        if isinstance(value, types.CodeType):
            return self._code(value, name)
        if isinstance(value, re.Pattern):
            return f"re {value.pattern!r} {value.flags}"
        if isinstance(value, Path):
            return f"path {value}"
        if isinstance(value, staticmethod | classmethod):
            return self.describe(value.__func__, name)
        if isinstance(value, tuple):  # equal ones may be one object or several
            return f"tuple {[self.describe(each, name) for each in value]}"
        if isinstance(value, set | frozenset):
            return f"set {sorted(self.describe(each, name) for each in value)}"
        if id(value) in self._seen:
            return f"again {name}"
        self._seen[id(value)] = value
        if isinstance(value, list):
            return f"list {[self.describe(each, name) for each in value]}"
        if isinstance(value, dict):
            return f"dict {[(self.describe(key, name), self.describe(each, name)) for key, each in value.items()]}"
        return self._describe_object(value, name)

    def _describe_object(self, value: Any, name: str) -> str:
        if isinstance(value, types.ModuleType):
            return self._module(value)
        if isinstance(value, functools.partial):
            return f"partial {self.describe((value.func, value.args, value.keywords), name)}"
        if isinstance(value, types.MethodType):
            return f"method {self.describe((value.__func__, value.__self__), name)}"
        if isinstance(value, types.MethodWrapperType | types.BuiltinFunctionType):
            return f"{value.__name__} of {self.describe(value.__self__, name)}"
        if isinstance(value, property):
            return f"property {self.describe((value.fget, value.fset), name)}"
        if isinstance(value, types.MemberDescriptorType):
            return f"slot {value.__name__}"
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, type):
            return self._class(value)
        if "__wrapped__" in (own := getattr(value, "__dict__", {})):  # of functools.cache
            return f"{type(value).__name__} of {self.describe(own['__wrapped__'], name)}"
        if (
            type(value).__module__ == "functools"
        ):  # cached_property and the like, whose lock is no part of what they do
            return f"{type(value).__name__} {self.describe({key: own[key] for key in own if key != 'lock'}, name)}"
        if is_local(type(value).__module__) or type(value).__module__.startswith("ascent."):
            return f"{self.describe(type(value), name)} {self.describe(_state(value), name)}"
        try:
            if type(value).__module__ == "torch" and hasattr(value, "untyped_storage"):
                return _tensor(value)
            return f"pickle {hashlib.sha256(pickle.dumps(value)).hexdigest()}"
        except Exception:  # pickling runs code of any class, and not every tensor is dense
            self.unchecked.append(f"{name} ({type(value).__name__})")
            return f"a {type(value).__name__}"

    def _function(self, function: types.FunctionType) -> str:
        if not is_local(function.__module__):
            return f"{function.__module__}.{function.__qualname__}"
        name = function.__qualname__.rpartition("<locals>.")[2]
        text = [self._code(function.__code__, name), self.describe(function.__defaults__, name)]
        text.append(self.describe(function.__kwdefaults__, name))
        self._keep(name, "\n".join(text))
        for variable, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            try:
                self._refer(f"{name}.{variable}", cell.cell_contents)
            except ValueError:  # not set yet
                continue
        for variable in sorted(set(_names(function.__code__, "LOAD_GLOBAL", "LOAD_NAME"))):
            if variable in function.__globals__:
                self._refer(variable, function.__globals__[variable])
        for module in sorted(set(_names(function.__code__, "IMPORT_NAME"))):
            self._files(files_of_import(module, function.__code__.co_filename))
        registry = getattr(function, "registry", None)  # of functools.singledispatch
        for key, each in registry.items() if isinstance(registry, Mapping) else ():
            self._refer(f"{name}.{getattr(key, '__name__', key)}", each)
        return name

    def _class(self, value: type) -> str:
        if not is_local(value.__module__):
            return f"{value.__module__}.{value.__qualname__}"
        name = value.__qualname__.rpartition("<locals>.")[2]
        own = {key: each for key, each in vars(value).items() if key not in IMPLICIT}
        described = {key: self.describe(each, f"{name}.{key}") for key, each in own.items()}
        self._keep(name, f"{described} {[self.describe(base, name) for base in value.__bases__]}")
        return name

    def _module(self, module: types.ModuleType) -> str:
        if not is_local(module.__name__) or not getattr(module, "__file__", None):
            return f"module {module.__name__}"
        self._files(local_files(Path(str(module.__file__))))
        return f"module {module.__name__}"

    def _files(self, paths: Iterable[Path]) -> None:
        for path in paths:
            self._keep(path.name, hashlib.sha256(path.read_bytes()).hexdigest())

    def _code(self, code: types.CodeType, name: str) -> str:
        constants = [self.describe(each, name) for each in code.co_consts]
        names = (code.co_names, code.co_varnames, code.co_freevars, code.co_argcount, code.co_flags)
        return f"{code.co_code.hex()} {constants} {names}"

    def _refer(self, name: str, value: Any) -> None:
        """A value that a function uses: code has parts of its own, anything else is a part."""
        text = self.describe(value, name)
        if not isinstance(value, types.FunctionType | types.ModuleType | type):
            self._keep(name, text)

    def _keep(self, name: str, text: str) -> None:
        while name in self.content and self.content[name] != _sha256(text):
            name += "'"  # another function of the same name
        self.content[name] = _sha256(text)


def _names(code: types.CodeType, *operations: str) -> Iterator[str]:
    """What these operations of the code, and of the functions in it, name."""
    for each in dis.get_instructions(code):
        if each.opname in operations:
            yield str(each.argval)
    for constant in code.co_consts:
        if inspect.iscode(constant):
            yield from _names(constant, *operations)


def _state(value: Any) -> dict[str, Any]:
    """The attributes of an instance, those in `__slots__` too."""
    slots = {}
    for owner in type(value).__mro__:
        own = vars(owner).get("__slots__", ())
        for name in (own,) if isinstance(own, str) else own:
            private = name.startswith("__") and not name.endswith("__")
            slots[name] = getattr(
                value, f"_{owner.__name__.lstrip('_')}{name}" if private else name, None
            )
    return {
        **getattr(value, "__dict__", {}),
        **{name: slots[name] for name in sorted(slots) if name not in IMPLICIT},
    }


def _tensor(value: Any) -> str:
    """Pickled, a tensor is another text in every process."""
    import torch

    content = value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return f"tensor {value.dtype} {tuple(value.shape)} {hashlib.sha256(content).hexdigest()}"


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
