"""Static analysis of test code: which items are tests, and which names the program must define."""

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
_CONTROL_FLOW = (
    ast.For,
    ast.While,
    ast.If,
    ast.With,
    ast.Try,
    ast.Match,
    ast.AsyncFor,
    ast.AsyncWith,
)
_parse_lock = threading.Lock()  # warnings filters are global to all threads


class ParsedTests(NamedTuple):
    """`cases` include the set-up lines before them. `names` are the program's. A `standalone` case depends only on the
    program: if it fails without calling it, it fails for every program."""

    cases: tuple[str, ...]
    names: tuple[str, ...]
    standalone: tuple[bool, ...]


@dataclass(frozen=True)
class _Code:
    """A piece of test code with the global names it reads and binds."""

    text: str
    tree: ast.Module
    read: frozenset[str]
    bound: frozenset[str]

    @property
    def imported(self) -> frozenset[str]:
        imports = [node for node in self.tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        return frozenset(
            (each.asname or each.name).partition(".")[0] for node in imports for each in node.names
        )

    @property
    def defined(self) -> frozenset[str]:
        """Names of its own values, functions and classes."""
        return self.bound - self.imported


def parse(items: Sequence[str], setup: str = "", function: str = "") -> ParsedTests:
    """`function` is always one of the program's names. ValueError for tests that test no program."""
    setup_code = _parse_code(setup, "the set-up")
    codes = [_parse_code(item, f"test {index}") for index, item in enumerate(items)]
    all_code = [setup_code, *codes]
    cases = _cases(
        codes, _union(each.defined for each in all_code), _union(each.imported for each in all_code)
    )
    names = (
        _union(each.read for each in all_code) - _union(each.bound for each in all_code) - BUILTINS
    )
    names |= {function} if function else frozenset()
    if not names:
        names = _shadowed_builtin(cases)
    standalone, definers = (
        [],
        Counter(name for each in (setup_code, *cases) for name in each.defined),
    )
    for case in cases:
        shared = {
            name for name in case.read - names if definers[name] > (name in case.defined)
        }  # with other cases
        if not shared and not case.read & names:
            raise ValueError(
                f"{_describe(case.text)} calls nothing of the program, so it tests nothing"
            )
        standalone.append(not shared)
    return ParsedTests(tuple(case.text for case in cases), tuple(sorted(names)), tuple(standalone))


def _parse_code(text: str, what: str) -> _Code:
    try:
        with _parse_lock, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as invalid escapes
            tree = ast.parse(text)
            compile(text, "<tests>", "exec", dont_inherit=True)
            read, bound = _globals(symtable.symtable(text, "<tests>", "exec"))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"{what} is no Python: {error} in {_describe(text)}") from None
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert) and isinstance(node.test, ast.Tuple) and node.test.elts:
            raise ValueError(
                f"{what} asserts a tuple, which is always true: {_describe(text)}; remove the parentheses"
            )
    return _Code(text, tree, frozenset(read), frozenset(bound))


def _globals(top: symtable.SymbolTable) -> tuple[set[str], set[str]]:
    """Global names that code reads, in any scope, and those that it binds."""
    read, bound, pending_tables = set(), set(), [top]
    while pending_tables:
        table = pending_tables.pop()
        pending_tables += table.get_children()
        for symbol in table.get_symbols():
            if table is top or symbol.is_global():
                read |= {symbol.get_name()} if symbol.is_referenced() else set()
                bound |= (
                    {symbol.get_name()} if symbol.is_assigned() or symbol.is_imported() else set()
                )
    return read, bound


def _cases(
    codes: Sequence[_Code], defined: frozenset[str], imported: frozenset[str]
) -> list[_Code]:
    """A line such as `result = f(10)` is not a test: it belongs to the next one."""
    cases: list[_Code] = []
    pending: list[_Code] = []
    for code in codes:
        pending.append(code)
        if any(_is_test(node, defined, imported) for node in code.tree.body):
            cases.append(_join(pending))
            pending = []
    if not cases:
        raise ValueError(
            "nothing is asserted: no item is an assert, a loop or a call of a function of the tests"
        )
    return [*cases[:-1], _join([cases[-1], *pending])]


def _is_test(node: ast.stmt, defined: frozenset[str], imported: frozenset[str]) -> bool:
    """An assertion, control flow, or a call of the tests' own function, but not `xs.append(f(1))` or `seed(0)`."""
    if isinstance(node, (ast.Assert, ast.Raise, *_CONTROL_FLOW)):
        return True
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Call):
        return False
    names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    called = node.value.func
    if isinstance(called, ast.Name):
        return called.id in defined or (called.id in imported and bool(names - imported - BUILTINS))
    on_instance = False  # as in Cases().check(f)
    while isinstance(called, ast.Attribute | ast.Call):
        on_instance |= isinstance(called, ast.Call)
        called = called.value if isinstance(called, ast.Attribute) else called.func
    if not isinstance(called, ast.Name):
        return False
    return (on_instance and called.id in defined) or (
        called.id in imported and bool(names - imported - BUILTINS)
    )


def _join(codes: Sequence[_Code]) -> _Code:
    tree = ast.Module([node for code in codes for node in code.tree.body], [])
    read, bound = _union(code.read for code in codes), _union(code.bound for code in codes)
    return _Code("\n".join(code.text for code in codes), tree, read, bound)


def _union(sets: Iterable[frozenset[str]]) -> frozenset[str]:
    return frozenset().union(*sets)


def _shadowed_builtin(cases: Iterable[_Code]) -> frozenset[str]:
    """The built-in that every case calls, if they need no other name: the task is to write a `sum`."""
    called = [
        {
            node.func.id
            for node in ast.walk(case.tree)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        for case in cases
    ]
    common = set.intersection(*called) & BUILTINS
    return frozenset(common) if len(common) == 1 else frozenset()


def _describe(text: str) -> str:
    line = " ".join(text.split())
    return repr(line if len(line) <= 80 else line[:77] + "...")
