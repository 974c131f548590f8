"""The modules of one's own that a Python file imports: from its own folder, or from wherever else packages that are
not installed are found. Read from the text, so nothing runs; imports by a computed name are not seen."""

from __future__ import annotations

import ast
import site
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path


def local_files(path: Path) -> list[Path]:
    """The file itself and every local module that importing it runs, directly or by way of another."""
    first = path.expanduser().resolve()
    roots = [first.parent, *_roots()]
    found: dict[Path, None] = {}
    waiting = [first]
    while waiting:
        file = waiting.pop()
        if file in found:
            continue
        found[file] = None
        try:
            tree = ast.parse(file.read_bytes())
        except (SyntaxError, ValueError):  # whoever runs it says so
            continue
        waiting += [each.resolve() for each in _imported(tree, file, roots)]
    return [first, *sorted(each for each in found if each != first)]


def files_of_import(module: str, importer: str) -> list[Path]:
    """The local files that an import by this name runs, in a function of the file `importer`."""
    files = _files(module.split("."), [Path(importer).resolve().parent, *_roots()])
    return list(dict.fromkeys(each for file in files for each in local_files(file)))


def is_local(module: str | None) -> bool:
    """Whether a module is the user's: a script, a notebook, or a file that is not installed; executed text has none."""
    if module is None or module == "__main__":
        return True
    if module.partition(".")[0] in (*sys.stdlib_module_names, "ascent"):
        return False
    file = getattr(sys.modules.get(module), "__file__", None)
    installed = (
        sysconfig.get_path("purelib"),
        sysconfig.get_path("platlib"),
        *site.getsitepackages(),
    )
    return file is None or not any(
        Path(file).resolve().is_relative_to(Path(each).resolve()) for each in installed
    )


def _roots() -> list[Path]:
    """Where imports are looked for, without what is installed."""
    installed = [
        Path(each).resolve() for each in (sys.prefix, sys.base_prefix, *site.getsitepackages())
    ]
    places = [Path(each).resolve() for each in sys.path]
    return [
        each
        for each in places
        if each.is_dir() and not any(each.is_relative_to(other) for other in installed)
    ]


def _imported(tree: ast.Module, file: Path, roots: Sequence[Path]) -> Iterator[Path]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _files(alias.name.split("."), roots)
        elif isinstance(node, ast.ImportFrom):
            parts = node.module.split(".") if node.module else []
            places = [file.parents[node.level - 1]] if node.level else roots
            for alias in node.names:  # a name of the module, or a module itself
                yield from _files([*parts, alias.name], places)


def _files(parts: Sequence[str], places: Sequence[Path]) -> list[Path]:
    """What importing a dotted name runs, from the first place that has it: `__init__.py` of packages, and modules."""
    if parts[0] in sys.stdlib_module_names or parts[0] == "ascent":
        return []
    for place in places:
        found = []
        for end in range(1, len(parts) + 1):
            at = place.joinpath(*parts[:end])
            found += [
                each
                for each in (at / "__init__.py", at.with_name(f"{at.name}.py"))
                if each.is_file()
            ][:1]
        if found:
            return found
    return []
