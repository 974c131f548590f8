"""Random mutants of a folder: what its own tests notice, and what survives.

    make mutants FOLDER=losses COUNT=20 SEED=0

A mutant is the package with one operator, comparison, `not` or number changed. It runs the tests of its folder, those
of its own file first, up to the first failure. A survivor is an equivalent program, a change of what no test looks at,
or a missing test. This is a report: its exit status is 0 however many survive.
"""

from __future__ import annotations

import argparse
import ast
import random
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tests.regression.anchors import Definition, Slot, child_slots
from tests.regression.broken_copies import (
    ROOT,
    TIMEOUT,
    ForkingPytest,
    Outcome,
    compiled_copy,
    copy_with,
)

PACKAGE, TESTS = ROOT / "ascent", ROOT / "tests"

# What each operator may become. A shape error is found by any test, so `@` is not mutated.
OPERATORS: dict[type[ast.AST], tuple[type[ast.AST], ...]] = {
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Div,),
    ast.Div: (ast.Mult,),
    ast.FloorDiv: (ast.Mult,),
    ast.Mod: (ast.FloorDiv,),
    ast.Pow: (ast.Mult,),
    ast.BitAnd: (ast.BitOr,),
    ast.BitOr: (ast.BitAnd,),
    ast.BitXor: (ast.BitAnd,),
    ast.LShift: (ast.RShift,),
    ast.RShift: (ast.LShift,),
    ast.And: (ast.Or,),
    ast.Or: (ast.And,),
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
# Fields that hold types or wrap functions, not values.
TYPES = {"annotation", "returns", "decorator_list", "type_params"}

# A mutant that takes this much longer than the unbroken package loops for ever.
SLOWER, STARTUP = 5, 30  # times, seconds
LONGEST = 1800  # seconds that the unbroken package may take


@dataclass(frozen=True)
class Mutant:
    file: Path  # relative to the package
    function: str
    line: int
    before: str
    after: str
    text: str

    def __str__(self) -> str:
        place = f"ascent/{self.file}:{self.line} in {self.function}"
        return f"{place}\n    - {self.before}\n    + {self.after}"


class Stage(NamedTuple):
    tests: tuple[str, ...]
    options: tuple[str, ...]


@dataclass(frozen=True)
class Site:
    file: Path
    function: str
    line: int
    slot: Slot
    node: ast.AST
    replacements: tuple[ast.AST, ...]


def find_sites(file: Path, tree: ast.Module) -> Iterator[Site]:
    yield from _sites(file, "the module", 1, tree)


def _sites(file: Path, function: str, line: int, owner: ast.AST) -> Iterator[Site]:
    for slot, node in child_slots(owner):
        if slot.field in TYPES or _is_text(owner, slot.field, node):
            continue
        below = getattr(node, "lineno", line)
        if replacements := tuple(_replacements(owner, node)):
            yield Site(file, function, below, slot, node, replacements)
        inner = function
        if isinstance(node, Definition):
            inner = node.name if function == "the module" else f"{function}.{node.name}"
        yield from _sites(file, inner, below, node)


def _is_text(owner: ast.AST, field: str, node: ast.AST) -> bool:
    """Messages, and code that never runs or runs for type checkers only."""
    if isinstance(owner, ast.If) and field in ("test", "body"):
        test = ast.unparse(owner.test)
        return "TYPE_CHECKING" in test or "__name__" in test
    if isinstance(owner, ast.Assert) and field == "msg":
        return True
    # zip(strict=...) is a check of the code's own.
    strict = isinstance(node, ast.keyword) and node.arg == "strict"
    return strict or isinstance(node, ast.JoinedStr | ast.Raise)


def _replacements(owner: ast.AST, node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub | ast.Invert):
        yield node.operand
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            yield ast.Constant(not node.value)
        elif isinstance(node.value, int | float) and node.value + 1 != node.value:
            yield ast.Constant(node.value + 1)
            # -1 for the axis 0 changes nothing where there is one axis.
            if not (node.value == 0 and isinstance(owner, ast.Call | ast.keyword)):
                yield ast.Constant(node.value - 1)
    elif not (isinstance(owner, ast.BinOp) and (_joins_text(owner) or _joins_types(owner))):
        yield from (new() for new in OPERATORS.get(type(node), ()))


def _joins_text(node: ast.BinOp) -> bool:
    return any(
        isinstance(side, ast.JoinedStr)
        or (isinstance(side, ast.Constant) and isinstance(side.value, str))
        for side in (node.left, node.right)
    )


def _joins_types(node: ast.BinOp) -> bool:
    """`int | None` outside of annotations."""
    builtin = {"int", "float", "str", "bool", "bytes", "dict", "list", "tuple", "set"}
    return isinstance(node.op, ast.BitOr) and any(
        (isinstance(side, ast.Constant) and side.value is None)
        or (isinstance(side, ast.Name) and (side.id in builtin or _is_class_name(side.id)))
        for side in (node.left, node.right)
    )


def _is_class_name(name: str) -> bool:
    return name[0].isupper() and not name.isupper()


def make_mutants(files: list[Path], count: int, seed: int) -> list[Mutant]:
    """`count` mutants of all those that the files allow, in the order of the files."""
    trees = {file: ast.parse((PACKAGE / file).read_text()) for file in files}
    sites = [site for file, tree in trees.items() for site in find_sites(file, tree)]
    chance = random.Random(seed)
    chosen = sorted(chance.sample(range(len(sites)), min(count, len(sites))))
    return [
        _mutant(trees[sites[index].file], sites[index], chance.choice(sites[index].replacements))
        for index in chosen
    ]


def _mutant(tree: ast.Module, site: Site, replacement: ast.AST) -> Mutant:
    before = ast.unparse(tree)
    site.slot.put(replacement)
    after = ast.unparse(tree)
    site.slot.put(site.node)
    lines = _first_difference(before, after)
    return Mutant(site.file, site.function, site.line, *lines, after)


def _first_difference(before: str, after: str, width: int = 90) -> tuple[str, str]:
    """The two lines that differ, a statement each, cut to the surroundings of the difference."""
    pairs = zip(before.splitlines(), after.splitlines(), strict=True)
    old, new = next((old.strip(), new.strip()) for old, new in pairs if old != new)
    letters = enumerate(zip(old, new, strict=False))
    differs = next((at for at, (one, other) in letters if one != other), len(old))
    start = max(0, min(differs - width // 2, len(old) - width))

    def cut(line: str) -> str:
        end = " ..." if len(line) > start + width else ""
        return ("... " if start else "") + line[start : start + width] + end

    return cut(old), cut(new)


def list_files(folder: str) -> list[Path]:
    """The Python files of a folder of the package, or one file; kernels for a GPU are left out."""
    path = PACKAGE / folder
    if not path.exists():
        path = path.with_suffix(".py")
    if not path.exists():
        raise SystemExit(f"there is no ascent/{folder}; name a folder or a file of ascent/")
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    return [file.relative_to(PACKAGE) for file in files if "import triton" not in file.read_text()]


def list_stages(file: Path) -> list[Stage]:
    """What pytest is given one after the other: the file's own tests, then those of its folder."""
    own = (file.parent / f"test_{file.stem}.py").as_posix()
    has_own = (TESTS / own).exists()
    folder = file.parent
    while not (TESTS / folder).is_dir():
        folder = folder.parent
    if folder != Path():
        ignored = (f"--ignore={TESTS / own}",) if has_own else ()
        rest = Stage((folder.as_posix(),), ignored)
    else:  # a file at the top of the package: the quick tests beside the folders
        beside = sorted(path.name for path in TESTS.glob("test_*.py") if path.name != own)
        rest = Stage(tuple(beside), ("--tier", "check"))
    return [Stage((own,), ()), rest] if has_own else [rest]


class Trial:
    """Runs the stages of a mutant, each with a time limit measured on the unbroken package."""

    def __init__(self, folder: Path, runner: ForkingPytest) -> None:
        self._folder, self._runner = folder, runner
        self._unbroken = compiled_copy(folder / "unbroken")
        self._limits: dict[tuple[str, ...], float] = {}

    def run(self, mutant: Mutant) -> Outcome:
        """The first stage that notices the mutant, or the last one."""
        stages = list_stages(mutant.file)
        for stage in stages:
            self._measure(stage)
        copy = copy_with(mutant.file, mutant.text, self._unbroken, self._folder / "mutant")
        seconds = 0.0
        for stage in stages:
            outcome = self._runner.run(copy, *stage, limit=self._limits[stage.tests])
            seconds += outcome.seconds
            if outcome.status != 0:
                break
        shutil.rmtree(copy)
        return outcome._replace(seconds=seconds)

    def _measure(self, stage: Stage) -> None:
        if stage.tests in self._limits:
            return
        outcome = self._runner.run(self._unbroken, *stage, limit=LONGEST)
        if outcome.status != 0:
            output = (self._unbroken / "output").read_text()[-3000:]
            raise SystemExit(f"{output}\nthe tests fail without a mutant: {outcome.failed}")
        print(f"unbroken: {' '.join(stage.tests)} passes in {outcome.seconds:.0f} s", flush=True)
        self._limits[stage.tests] = STARTUP + SLOWER * outcome.seconds


def describe(outcome: Outcome) -> str:
    if outcome.status == 0:
        return "SURVIVED"
    if outcome.status == TIMEOUT:
        return "caught: timeout"
    if outcome.status < 0:
        return f"caught: signal {-outcome.status}"
    return f"caught by {outcome.failed or f'exit status {outcome.status}'}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Random mutants and what notices them.")
    parser.add_argument("folder", help="a folder or file of ascent/, such as losses")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    mutants = make_mutants(list_files(options.folder), options.count, options.seed)
    survivors = []
    with tempfile.TemporaryDirectory() as folder, ForkingPytest() as runner:
        trial = Trial(Path(folder).resolve(), runner)
        for number, mutant in enumerate(mutants, 1):
            outcome = trial.run(mutant)
            if outcome.status == 0:
                survivors.append(mutant)
            print(f"{number}/{len(mutants)} {mutant}")
            print(f"    {describe(outcome)} ({outcome.seconds:.1f} s)", flush=True)
    print(f"\n{len(mutants) - len(survivors)} of {len(mutants)} mutants caught", end="")
    print(f", {len(survivors)} survived:" if survivors else ".")
    for mutant in survivors:
        print(mutant)


if __name__ == "__main__":
    main()
