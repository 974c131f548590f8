"""Change one place of one function, found by the function's name and by syntax instead of by text.

A place is `losses/kl.py::k3` or `maths/groups.py::Groups.std`. Where the file no longer defines the function, the file
that does is used, so a move or a new layout of the code loses nothing. In C, where there is no parser, white space is
ignored instead.
"""

from __future__ import annotations

import ast
import functools
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class AnchorError(Exception):
    """The place is gone, or what it holds does not occur exactly once."""


@dataclass(frozen=True)
class Slot:
    """Where a node of a syntax tree hangs: another node can be put there."""

    owner: ast.AST
    field: str
    index: int | None

    def put(self, node: ast.AST) -> None:
        if self.index is None:
            setattr(self.owner, self.field, node)
        else:
            getattr(self.owner, self.field)[self.index] = node


def child_slots(owner: ast.AST) -> Iterator[tuple[Slot, ast.AST]]:
    for field, value in ast.iter_fields(owner):
        for index, node in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(node, ast.AST):
                yield Slot(owner, field, index), node


def definitions(tree: ast.AST, outer: str = "") -> Iterator[tuple[str, Definition]]:
    """Every function and class with its qualified name; that of a nested function is `outer.inner`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Definition):
            yield outer + node.name, node
            yield from definitions(node, f"{outer}{node.name}.")
        elif not isinstance(node, ast.expr):
            yield from definitions(node, outer)


def change_function(root: Path, place: str, was: str, becomes: str) -> tuple[Path, str]:
    """The file below `root` that defines the function, and its text with `was` replaced there."""
    file, _, name = place.partition("::")
    change = _change_c if file.endswith(".c") else _change_python
    paths = find_definitions(root, place)
    if not paths:
        raise AnchorError(f"{place}: no file in {root.name} defines {name}")
    changes = [(path, *change(path.read_text(), name, was, becomes)) for path in paths]
    count = sum(count for _, count, _ in changes)
    if count != 1:
        found = ", ".join(str(path.relative_to(root)) for path in paths)
        raise AnchorError(f"{place} ({found}) holds {count} times instead of once: {was}")
    return next((path, text) for path, count, text in changes if count == 1)


def find_definitions(root: Path, place: str) -> list[Path]:
    """The place's own file if it still defines the function, else every file that does."""
    file, _, name = place.partition("::")
    path = root / file
    if path.is_file() and _defines(path, name):
        return [path]
    return [path for path in sorted(root.rglob(f"*{path.suffix}")) if _defines(path, name)]


def _defines(path: Path, name: str) -> bool:
    text = path.read_text()
    if path.suffix == ".c":
        return bool(_c_bodies(text, name))
    # Most files do not hold the word, and are not parsed.
    return bool(re.search(rf"\b(def|class) {name.rpartition('.')[2]}\b", text)) and (
        name in _defined_names(text)
    )


@functools.cache
def _defined_names(text: str) -> frozenset[str]:
    return frozenset(name for name, _ in definitions(ast.parse(text)))


def _change_python(text: str, name: str, was: str, becomes: str) -> tuple[int, str]:
    tree = ast.parse(text)
    old, new = _parse(was), _parse(becomes)
    nodes = [node for qualified, node in definitions(tree) if qualified == name]
    if isinstance(old, ast.expr):
        assert isinstance(new, ast.expr), f"an expression becomes statements: {becomes}"
        slots = [slot for node in nodes for slot in _equal_slots(node, old)]
        for slot in slots:
            slot.put(new)
    else:
        new = [ast.Expr(new)] if isinstance(new, ast.expr) else new
        slots = [slot for node in nodes for slot in _equal_runs(node, old)]
        for slot in slots:
            assert slot.index is not None
            getattr(slot.owner, slot.field)[slot.index : slot.index + len(old)] = new
    return len(slots), ast.unparse(tree)


def _parse(text: str) -> ast.expr | list[ast.stmt]:
    try:
        return ast.parse(f"({text})", mode="eval").body
    except SyntaxError:
        return ast.parse(textwrap.dedent(text)).body


def _equal_slots(node: ast.AST, wanted: ast.expr) -> Iterator[Slot]:
    dump = ast.dump(wanted)
    for owner in ast.walk(node):
        for slot, child in child_slots(owner):
            if type(child) is type(wanted) and ast.dump(child) == dump:
                yield slot


def _equal_runs(node: ast.AST, wanted: list[ast.stmt]) -> Iterator[Slot]:
    """The first statement's slot, wherever the statements stand one after the other."""
    dumps = [ast.dump(statement) for statement in wanted]
    for owner in ast.walk(node):
        for slot, child in child_slots(owner):
            if type(child) is type(wanted[0]) and slot.index is not None:
                run = getattr(owner, slot.field)[slot.index : slot.index + len(wanted)]
                if [ast.dump(statement) for statement in run] == dumps:
                    yield slot


def _change_c(text: str, name: str, was: str, becomes: str) -> tuple[int, str]:
    tokens = r"\s*".join(re.escape(token) for token in re.findall(r"\w+|[^\w\s]", was))
    pattern = re.compile(rf"(?<!\w){tokens}(?!\w)")
    hits = [
        hit for begin, end in _c_bodies(text, name) for hit in pattern.finditer(text, begin, end)
    ]
    for hit in reversed(hits):
        text = text[: hit.start()] + becomes + text[hit.end() :]
    return len(hits), text


def _c_bodies(text: str, name: str) -> list[tuple[int, int]]:
    """From the brace that opens a function's body to the one that closes it."""
    plain = re.sub(
        r'/\*.*?\*/|//[^\n]*|"(\\.|[^"\\\n])*"', lambda hit: " " * len(hit[0]), text, flags=re.S
    )
    bodies = []
    for head in re.finditer(rf"\b{name}\s*\([^;{{}}]*\)\s*(?={{)", plain):
        depth = 0
        for brace in re.finditer(r"[{}]", plain[head.end() :]):
            depth += 1 if brace[0] == "{" else -1
            if depth == 0:
                bodies.append((head.end(), head.end() + brace.end()))
                break
    return bodies
