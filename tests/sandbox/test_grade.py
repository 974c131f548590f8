"""What test code expects of a program, and how output is compared."""

import pytest

from ascent.sandbox.grade import BadTests, free_names, lines


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
        ("assert print and set and AssertionError", []),
    ],
)
def test_names_that_the_program_must_supply(source, names):
    assert free_names(source) == names


def test_tests_that_do_not_parse():
    with pytest.raises(BadTests, match="do not parse"):
        free_names("assert (")


def test_space_at_line_ends_does_not_count():
    assert lines("1 2 \n3\n\n") == lines("1 2\n3") == ["1 2", "3"]
    assert lines("1\n\n2") != lines("1\n2")
    assert lines(" 1") != lines("1")
