"""Places of mutations are found by name and syntax; every mutation's place and test exist today; how random mutants
are chosen and tried."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from tests.regression import mutants
from tests.regression.anchors import AnchorError, change_function, find_definitions
from tests.regression.broken_copies import TIMEOUT, ForkingPytest
from tests.regression.mutants import (
    Mutant,
    Stage,
    Trial,
    find_sites,
    list_files,
    list_stages,
    make_mutants,
)
from tests.test_mutations import MUTATIONS, caught_by, changed_file

GROUPS = """
class Groups:
    def mean(self, x_B):
        total_G = (
            self.sum(x_B)  # of every group
            / self.sizes_G
        )
        return total_G

    def largest(self, x_B):
        return self.sum(x_B) / self.sizes_G


def mean(x_B):
    def text():
        return "a" 'b'

    return x_B.sum() - 1
"""
KERNEL = """
/* int half(int x) { is no function, and neither is the call below */
int twice(int x) {
    if (x > limit) { return -1; } // }
    return half(
        x) * 4 + x   *  4;
}

static int half(int x) { return x * 4; }
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    for folder in ("maths", "losses"):
        (tmp_path / folder).mkdir()
    (tmp_path / "maths/groups.py").write_text(GROUPS)
    (tmp_path / "kernel.c").write_text(KERNEL)
    return tmp_path


def test_an_expression_is_found_however_it_is_formatted(package):
    path, text = change_function(
        package, "maths/groups.py::Groups.mean", "self.sum( x_B )/self.sizes_G", "self.sum(x_B)"
    )
    assert path == package / "maths/groups.py"
    assert "total_G = self.sum(x_B)\n" in text
    assert text.count("self.sum(x_B) / self.sizes_G") == 1  # the other function's stays
    assert "'c'" in change_function(package, "maths/groups.py::mean.text", '"ab"', "'c'")[1]


def test_statements_are_replaced_by_statements(package):
    _, text = change_function(
        package,
        "maths/groups.py::Groups.mean",
        "total_G = self.sum(x_B) / self.sizes_G\nreturn total_G",
        "count_G = self.sizes_G - 1\nreturn self.sum(x_B) / count_G",
    )
    body = ast.parse(text).body[0].body[0].body
    assert [ast.unparse(statement) for statement in body] == [
        "count_G = self.sizes_G - 1",
        "return self.sum(x_B) / count_G",
    ]


def test_an_expression_keeps_its_parentheses(package):
    _, text = change_function(package, "maths/groups.py::mean", "x_B.sum()", "x_B if x_B else 2")
    assert "return (x_B if x_B else 2) - 1" in text


def test_a_function_that_has_moved_is_found_by_its_name(package):
    (package / "maths/groups.py").rename(package / "losses/moved.py")
    path, text = change_function(package, "maths/groups.py::mean", "x_B.sum() - 1", "0")
    assert path == package / "losses/moved.py"
    assert "return 0" in text


def test_of_two_functions_of_one_name_that_with_the_text_is_meant(package):
    (package / "maths/groups.py").rename(package / "losses/moved.py")
    (package / "losses/other.py").write_text("def mean(x_B):\n    return 0\n")
    path, _ = change_function(package, "maths/groups.py::mean", "x_B.sum() - 1", "0")
    assert path == package / "losses/moved.py"
    (package / "losses/other.py").write_text("def mean(y_B):\n    return x_B.sum() - 1\n")
    with pytest.raises(AnchorError, match=r"losses/moved.py, losses/other.py\) holds 2 times"):
        change_function(package, "maths/groups.py::mean", "x_B.sum() - 1", "0")


@pytest.mark.parametrize(
    ("place", "was", "message"),
    [
        ("maths/groups.py::Groups.median", "x_B", "defines Groups.median"),
        ("maths/groups.py::mean", "x_B.sum() - 2", "holds 0 times instead of once: x_B.sum"),
        ("maths/groups.py::Groups.mean", "self", "holds 2 times"),
        ("maths/groups.py::Groups.largest", "return self.sum(x_B)", "holds 0 times"),
        ("maths/groups.py::Groups", "self.sum(x_B) / self.sizes_G", "holds 2 times"),
        ("kernel.c::third", "x * 4", "defines third"),
        ("kernel.c::half", "x * 5", "holds 0 times"),
        ("kernel.c::twice", "* 4", "holds 2 times"),
    ],
)
def test_what_is_gone_or_occurs_twice_is_named(package, place, was, message):
    with pytest.raises(AnchorError, match=message) as error:
        change_function(package, place, was, "0")
    assert place in str(error.value)


def test_in_c_white_space_is_ignored_inside_of_the_named_function(package):
    path, text = change_function(package, "old.c::twice", "half(x) * 4", "half(x)")
    assert path == package / "kernel.c"
    assert "return half(x) + x   *  4;" in text
    _, text = change_function(package, "kernel.c::half", "x * 4", "x / 2")
    assert "half(int x) { return x / 2; }" in text
    assert "x   *  4" in text
    with pytest.raises(AnchorError, match="holds 0 times"):  # `x` is not the end of `max`
        change_function(package, "kernel.c::half", "t * 4", "0")


def test_the_own_file_comes_before_others_of_the_same_function(package):
    (package / "losses/other.py").write_text("def mean(x_B):\n    return 0\n")
    assert find_definitions(package, "maths/groups.py::mean") == [package / "maths/groups.py"]
    assert len(find_definitions(package, "gone.py::mean")) == 2


def test_every_mutation_finds_its_place_and_its_test():
    lost = []
    for mutation in MUTATIONS:
        for find in (changed_file, caught_by):
            try:
                find(mutation)
            except AnchorError as error:
                lost.append(str(error))
    assert lost == []


NOT_MUTATED = """
import functools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    LIMIT = 3

Number = int | float


@functools.lru_cache(maxsize=4)
def scale(x: Annotated[float, 5], y: int | None = None) -> Literal[6]:
    "A text of 7 words."
    limit: Annotated[int, 8] = y
    assert x, "x is " + f"{x + 1}"
    for _ in zip(x, y, strict=True):
        raise ValueError("one" if limit == 1 else "many")
    return "a" + x


if __name__ == "__main__":
    scale(9)
"""


def test_types_messages_and_decorators_are_not_mutated():
    assert list(find_sites(Path("a.py"), ast.parse(NOT_MUTATED))) == []


@pytest.mark.parametrize(
    ("line", "becomes"),
    [
        ("return x + y", {"return x - y"}),
        ("return x & y", {"return x | y"}),
        ("x *= y", {"x /= y"}),
        ("return x < y", {"return x <= y", "return x >= y"}),
        ("return x and y", {"return x or y"}),
        ("return not x", {"return x"}),
        ("return -x", {"return x"}),
        ("return x[3]", {"return x[4]", "return x[2]"}),
        ("return x.sum(0)", {"return x.sum(1)"}),
        ("return True", {"return False"}),
        ("return 1e300", set()),  # and 1 more is the same number
        ("return x if y in x else z", {"return x if y not in x else z"}),
    ],
)
def test_what_a_line_may_become(line, becomes):
    tree = ast.parse(f"def f(x, y):\n    {line}")
    found = set()
    for site in find_sites(Path("a.py"), tree):
        assert (site.function, site.line) == ("f", 2)
        for replacement in site.replacements:
            site.slot.put(replacement)
            found.add(ast.unparse(tree).splitlines()[1].strip())
        site.slot.put(site.node)
    assert found == becomes


def test_a_seed_gives_the_same_mutants_each_of_one_changed_line():
    files = list_files("losses/kl.py")
    chosen = make_mutants(files, 10, seed=0)
    assert chosen == make_mutants(files, 10, seed=0) != make_mutants(files, 10, seed=1)
    unbroken = ast.unparse(ast.parse((mutants.PACKAGE / "losses/kl.py").read_text())).splitlines()
    for mutant in chosen:
        pairs = zip(unbroken, mutant.text.splitlines(), strict=True)
        assert sum(old != new for old, new in pairs) == 1
        assert mutant.before != mutant.after
    assert len(make_mutants(files, 10**6, seed=0)) < 200


def test_a_file_is_tried_on_its_own_tests_and_then_on_those_of_its_folder():
    own, folder = list_stages(Path("losses/kl.py"))
    assert own == Stage(("losses/test_kl.py",), ())
    assert folder.tests == ("losses",)
    assert folder.options[0].endswith("tests/losses/test_kl.py")
    assert list_stages(Path("losses/loss.py")) == [Stage(("losses",), ())]
    beside = list_stages(Path("loop.py"))[-1].tests
    assert "test_architecture.py" in beside and "losses" not in beside


def test_a_folder_that_is_not_there_is_named():
    with pytest.raises(SystemExit, match="there is no ascent/loses"):
        list_files("loses")


def test_mutants_are_caught_or_time_out_or_survive(tmp_path, monkeypatch):
    monkeypatch.setattr(mutants, "STARTUP", 2)
    monkeypatch.setattr(mutants, "list_stages", lambda _: [Stage(("maths/test_splitmix.py",), ())])
    file = Path("maths/splitmix.py")
    text = (mutants.PACKAGE / file).read_text()
    mutant = Mutant(file, "shift_right", 18, "", "", text)
    loop = "def shift_right(*_):\n    while True: pass\n"
    with ForkingPytest() as runner:
        trial = Trial(tmp_path, runner)
        survivor = trial.run(mutant)
        caught = trial.run(replace(mutant, text=text.replace(">>", "<<")))
        endless = trial.run(replace(mutant, text=f"{text}\n\n{loop}"))
        broken = trial.run(replace(mutant, text="1 / 0"))
    assert (survivor.status, survivor.failed) == (0, "")
    assert caught.status == 1
    assert caught.failed.startswith("tests/maths/test_splitmix.py::test_")
    assert endless.status == TIMEOUT
    assert broken.status not in (0, 1)
