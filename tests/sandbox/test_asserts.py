"""Test code before it runs: which names are the program's, what is a test, and what can test no program."""

import pytest

from ascent.sandbox.asserts import parse


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("assert f(1) == 2", ["f"]),
        ("import math\nassert close(f(1), math.pi)", ["close", "f"]),
        ("def check(c):\n    assert c(1) == sorted([1])\ncheck(solve)", ["solve"]),
        ("assert [g(x) for x in range(3)] == [0, 1, 2]", ["g"]),
        ("from os import path as p\nassert p and len(set(h()))", ["h"]),
        ("s = Solution()\nassert s.run() == 1", ["Solution"]),
        ("try:\n    f()\nexcept ValueError as error:\n    assert str(error)", ["f"]),
        ("def check():\n    solve = 3\n    return solve\nassert solve(7) == check()", ["solve"]),
        ("def check():\n    global f\n    f = 3\ncheck()\nassert f == g()", ["g"]),
        ("assert sum(10, 15) == 6", ["sum"]),
        (r"assert f('\d') == 1", ["f"]),
    ],
)
def test_names_that_the_program_must_supply(source, names):
    assert list(parse([source]).names) == names


@pytest.mark.parametrize(
    ("items", "cases"),
    [
        (["result = f(10)", "assert result == 55"], ["result = f(10)\nassert result == 55"]),
        (
            ["import math", "assert f(1) == 1", "assert f(2) == math.pi"],
            ["import math\nassert f(1) == 1", None],
        ),
        (
            ["def check(n):\n    assert f(n)", "check(1)", "check(2)"],
            ["def check(n):\n    assert f(n)\ncheck(1)", None],
        ),
        (
            ["xs = []", "xs.append(f(1))", "assert xs == [1]"],
            ["xs = []\nxs.append(f(1))\nassert xs == [1]"],
        ),
        (["assert f(1)", "y = 3"], ["assert f(1)\ny = 3"]),
        (["import random\nrandom.seed(0)", "for n in (1, 2):\n    check = f(n)"], [None]),
        (["from numpy import testing", "testing.assert_equal(f(1), 2)"], [None]),
        (["class Cases:\n    def all(self, g):\n        assert g(1)", "Cases().all(f)"], [None]),
    ],
)
def test_lines_that_test_nothing_belong_to_the_next_case(items, cases):
    found = parse(items).cases
    assert len(found) == len(cases)
    assert all(want is None or have == want for have, want in zip(found, cases, strict=True))


def test_a_case_is_alone_where_only_the_program_can_change_it():
    items = [
        "import math\nassert f(1) == math.pi",
        "y = f(2)",
        "assert y == 3",
        "assert f(y) == 2",
        "check(f)",
    ]
    assert parse(items, "def check(g):\n    assert g(0) == 0").standalone == (
        True,
        True,
        False,
        False,
    )
    assert parse(["assert f(k) == 1"], "k = 3").standalone == (False,)


@pytest.mark.parametrize(
    ("items", "words"),
    [
        (["assert ("], "test 0 is no Python"),
        (["return f(1)"], "test 0 is no Python: 'return' outside function"),
        (["assert f(1)\0"], "no Python"),
        (["assert 1 == 2"], "calls nothing of the program"),
        (["assert f(1) == 1", "import math\nassert math.pi > 3"], "calls nothing of the program"),
        (["def test_f():\n    assert f(1) == 2"], "nothing is asserted"),
        (["f(1)"], "nothing is asserted"),
        (["assert (f(1) == 2, 'wrong')"], "asserts a tuple, which is always true"),
        (["def check(g):\n    assert (g(1) == 2, 'wrong')\ncheck(f)"], "asserts a tuple"),
    ],
)
def test_what_can_test_no_program_is_refused(items, words):
    with pytest.raises(ValueError, match=words):
        parse(items)


def test_a_setup_that_is_no_python():
    with pytest.raises(ValueError, match="the set-up is no Python"):
        parse(["assert f(1)"], "def (")


def test_a_named_function_is_the_programs_whatever_its_name():
    found = parse(
        ["def check(g):\n    assert g([3, 1]) == [1, 3]\ncheck(sorted)"], function="sorted"
    )
    assert found.names == ("sorted",)
