"""The start of a command. Most of it is `import torch` and `import transformers`; here they skip what no command uses.

Only the `ascent` command does this, because it owns its process: `import ascent` changes nothing. What is left out is
loaded on first use or stays unused; a version of torch or transformers that needs more of it starts more slowly.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

COMPILER, TRACER = "torch._dynamo", "torch._dynamo._trace_wrapped_higher_order_op"


def shorten_imports() -> None:
    """Has an effect before torch is imported, and once. A rank of several uses what is left out."""
    if (
        os.environ.get("WORLD_SIZE", "1") == "1"
        and "torch" not in sys.modules
        and not any(isinstance(each, _Finder) for each in sys.meta_path)
    ):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    """Runs the import of some modules inside a context."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        context = _part_of_transformers if name == "transformers" else _no_collection
        if name not in ("torch", "transformers") and not name.startswith("ascent.api."):
            return None
        spec = PathFinder.find_spec(name, path)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = _Loader(spec.loader, context)
        return spec


class _Loader(SourceFileLoader):
    def __init__(
        self, found: SourceFileLoader, context: Callable[[], AbstractContextManager[None]]
    ) -> None:
        super().__init__(found.name, found.path)
        self._context = context

    def exec_module(self, module: ModuleType) -> None:
        with self._context():
            super().exec_module(module)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Imports make many objects and no garbage: searching these again and again is a fifth of the time."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@contextmanager
def _part_of_transformers() -> Iterator[None]:
    """Without distributed tensors (a command is one process), the compiler, and the names of all installed packages."""
    import importlib.metadata  # slow, so not for `ascent --help`

    import torch

    if COMPILER not in sys.modules:
        sys.modules |= {COMPILER: _Compiler(COMPILER), TRACER: _Tracer(TRACER)}
    available, packages = torch.distributed.is_available, importlib.metadata.packages_distributions
    torch.distributed.is_available, importlib.metadata.packages_distributions = lambda: False, dict
    try:
        yield
        utils = importlib.import_module("transformers.utils")
        utils.is_torch_distributed_available()  # the first answer is cached
        if "TRANSFORMERS_VERBOSITY" not in os.environ:
            utils.logging.set_verbosity_error()  # warnings about settings that only transformers' own code has
    finally:
        torch.distributed.is_available, importlib.metadata.packages_distributions = (
            available,
            packages,
        )
    _read_once(utils)


def _read_once(utils: Any) -> None:
    """transformers reads the sources of all its models for their names: here once instead of three times."""
    structure = utils.import_utils.define_import_structure

    def define_import_structure(path: Any, prefix: str | None = None) -> Any:
        path = Path(path)
        return structure(path.parent if path.is_file() else path, prefix)

    utils.import_utils.define_import_structure = define_import_structure
    utils.direct_transformers_import = lambda *_: sys.modules["transformers"]


class _OnFirstUse(ModuleType):
    """Stands in for a module; any name that it does not have itself loads the real one."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and (
            name != "__path__" or self.__name__ != COMPILER
        ):  # a look at the module, not a use
            raise AttributeError(name)
        for each in (COMPILER, TRACER):
            if isinstance(sys.modules.get(each), _OnFirstUse):
                del sys.modules[each]
        return getattr(importlib.import_module(self.__name__), name)


class _Compiler(_OnFirstUse):
    """Marks that a function gets for the compiler; without the compiler they mean nothing."""

    class eval_frame:
        """`save_pretrained` asks of every module whether it is an OptimizedModule: none is."""

        class OptimizedModule: ...

    def graph_break(self, *_: Any) -> None:
        """torch's optimizers call it at every step."""

    def assume_constant_result(self, function: Any) -> Any:
        return function

    def allow_in_graph(self, function: Any) -> Any:
        return function

    def disable(self, function: Any = None, *_: Any, **__: Any) -> Any:
        return function if function is not None else lambda function: function


class _Tracer(_OnFirstUse):
    def TransformGetItemToIndex(self) -> Any:
        return self.__getattr__("TransformGetItemToIndex")()
