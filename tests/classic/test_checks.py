from dataclasses import dataclass

import pytest

from ascent.classic import checks


@dataclass(frozen=True)
class Numbers:
    count: object = 1
    spare: object = 0
    size: object = 0.5
    share: object = 1.0
    word: str = "a"
    hidden: tuple = (4,)


def check(numbers):
    checks.check(
        numbers, counts=["count"], wholes=["spare"], positive=["size"], fractions=["share"]
    )
    checks.choose(numbers, "word", ["a", "b"])
    checks.widths(numbers)


def test_good_numbers_pass():
    check(Numbers())
    check(Numbers(count=7, size=3, share=0, word="b", hidden=()))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"count": 0}, "test_checks: count=0, but it must be a whole number, at least 1"),
        ({"count": 1.0}, "count=1.0"),
        ({"count": True}, "count=True"),
        ({"spare": -1}, "spare=-1, but it must be a whole number, at least 0"),
        ({"spare": 0.0}, "spare=0.0"),
        ({"size": 0.0}, "size=0.0, but it must be a finite number above 0"),
        ({"size": float("inf")}, "size=inf"),
        ({"size": "big"}, "size='big'"),
        ({"share": 1.1}, "share=1.1, but it must be between 0 and 1"),
        ({"share": float("nan")}, "share=nan"),
        ({"word": "c"}, "word='c'; choose one of a, b"),
        ({"hidden": (4, 0)}, "hidden="),
    ],
)
def test_a_wrong_number_is_named_with_its_rule(wrong, words):
    with pytest.raises(ValueError, match=words):
        check(Numbers(**wrong))
