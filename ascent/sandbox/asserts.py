"""Test code, read before it runs: which of its items are tests, and which names it expects of the program."""

from __future__ import annotations

import ast
import builtins
import symtable
import threading
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

BUILTINS = frozenset(dir(builtins))
_CONTROL = (ast.For, ast.While, ast.If, ast.With, ast.Try, ast.Match, ast.AsyncFor, ast.AsyncWith)
_parsing = threading.Lock()  # what silences the compiler's warnings silences them for every thread


class Parsed(NamedTuple):
    """`cases` begin with the set-up lines before them. `names` are the program's. A case that is `alone` depends on
    nothing but the program: where it fails without having asked, it fails for every program."""

    cases: tuple[str, ...]
    names: tuple[str, ...]
    alone: tuple[bool, ...]


@dataclass(frozen=True)
class _Code:
    """A piece of test code with the names it reads and binds in the tests' own module."""

    text: str
    tree: ast.Module
    read: frozenset[str]
    bound: frozenset[str]

    @property
    def imported(self) -> frozenset[str]:
        found = [node for node in self.tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        return frozenset((each.asname or each.name).partition(".")[0] for node in found for each in node.names)

    @property
    def made(self) -> frozenset[str]:
        """What it binds itself: values, functions, classes."""
        return self.bound - self.imported


def parse(items: Sequence[str], setup: str = "", function: str = "") -> Parsed:
    """`function` is a name that is the program's whatever else it may be. ValueError for what can test no program."""
    before = _read(setup, "the set-up")
    codes = [_read(item, f"test {place}") for place, item in enumerate(items)]
    whole = [before, *codes]
    cases = _cases(codes, _all(each.made for each in whole), _all(each.imported for each in whole))
    names = _all(each.read for each in whole) - _all(each.bound for each in whole) - BUILTINS
    names |= {function} if function else frozenset()
    if not names:
        names = _shadowed(cases)
    alone, makers = [], Counter(name for each in (before, *cases) for name in each.made)
    for case in cases:
        shared = {name for name in case.read - names if makers[name] > (name in case.made)}  # with other cases
        if not shared and not case.read & names:
            raise ValueError(f"{_shown(case.text)} asks nothing of the program, so it says nothing about it")
        alone.append(not shared)
    return Parsed(tuple(case.text for case in cases), tuple(sorted(names)), tuple(alone))


def _read(text: str, what: str) -> _Code:
    try:
        with _parsing, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of strange escapes and the like: they run as they are
            tree = ast.parse(text)
            compile(text, "<tests>", "exec", dont_inherit=True)
            read, bound = _globals(symtable.symtable(text, "<tests>", "exec"))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"{what} is no Python: {error} in {_shown(text)}") from None
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert) and isinstance(node.test, ast.Tuple) and node.test.elts:
            raise ValueError(f"{what} asserts a tuple, which is always true: {_shown(text)}; remove the parentheses")
    return _Code(text, tree, frozenset(read), frozenset(bound))


def _globals(top: symtable.SymbolTable) -> tuple[set[str], set[str]]:
    """Names of the module that code reads, in whatever scope, and those that it binds."""
    read, bound, waiting = set(), set(), [top]
    while waiting:
        table = waiting.pop()
        waiting += table.get_children()
        for symbol in table.get_symbols():
            if table is top or symbol.is_global():
                read |= {symbol.get_name()} if symbol.is_referenced() else set()
                bound |= {symbol.get_name()} if symbol.is_assigned() or symbol.is_imported() else set()
    return read, bound


def _cases(codes: Sequence[_Code], made: frozenset[str], imported: frozenset[str]) -> list[_Code]:
    """A line such as `result = f(10)` is no test: it belongs to the next one."""
    found: list[_Code] = []
    pending: list[_Code] = []
    for code in codes:
        pending.append(code)
        if any(_tests(node, made, imported) for node in code.tree.body):
            found.append(_joined(pending))
            pending = []
    if not found:
        raise ValueError("nothing is asserted: no item is an assert, a loop or a call of a function of the tests")
    return [*found[:-1], _joined([found[-1], *pending])]


def _tests(node: ast.stmt, made: frozenset[str], imported: frozenset[str]) -> bool:
    """An assertion, control flow, or a call of the tests' own function; `xs.append(f(1))` and `seed(0)` are none."""
    if isinstance(node, (ast.Assert, ast.Raise, *_CONTROL)):
        return True
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Call):
        return False
    names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    called = node.value.func
    if isinstance(called, ast.Name):
        return called.id in made or (called.id in imported and bool(names - imported - BUILTINS))
    built = False  # as in Cases().check(f)
    while isinstance(called, ast.Attribute | ast.Call):
        built |= isinstance(called, ast.Call)
        called = called.value if isinstance(called, ast.Attribute) else called.func
    if not isinstance(called, ast.Name):
        return False
    return (built and called.id in made) or (called.id in imported and bool(names - imported - BUILTINS))


def _joined(codes: Sequence[_Code]) -> _Code:
    tree = ast.Module([node for code in codes for node in code.tree.body], [])
    read, bound = _all(code.read for code in codes), _all(code.bound for code in codes)
    return _Code("\n".join(code.text for code in codes), tree, read, bound)


def _all(sets: Iterable[frozenset[str]]) -> frozenset[str]:
    return frozenset().union(*sets)


def _shadowed(cases: Iterable[_Code]) -> frozenset[str]:
    """The built-in that every case calls, where they expect nothing else: somebody was asked to write a `sum`."""
    called = [
        {node.func.id for node in ast.walk(case.tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
        for case in cases
    ]
    common = set.intersection(*called) & BUILTINS
    return frozenset(common) if len(common) == 1 else frozenset()


def _shown(text: str) -> str:
    line = " ".join(text.split())
    return repr(line if len(line) <= 80 else line[:77] + "...")
