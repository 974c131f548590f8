"""Plain data survives the channel; anything else becomes something that equals nothing."""

import itertools
import json
import math
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascent.sandbox.values import NotPlain, decode, encode, equal_values

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers(), inner)
    ),
    max_leaves=12,
)


@given(PLAIN)
def test_round_trip(value):
    back = decode(json.loads(json.dumps(encode(value))))
    assert back == value and type(back) is type(value)


LACKING = [
    *[
        {1, 2},
        frozenset({3}),
        10**5000,
        -(10**5000),
        1j,
        math.inf,
        -math.inf,
        {(1, 2): {3}},
        {frozenset({1}): 2},
    ],
    *[{frozenset({1})}, range(0, 10**6, 7), deque([1]), int, "a\udcffb", "\ud83d\ude00"],
]


@pytest.mark.parametrize("value", LACKING, ids=lambda value: type(value).__name__)
def test_what_json_lacks(value):
    assert decode(json.loads(json.dumps(encode(value)))) == value


def test_nan():
    assert math.isnan(decode(encode(math.nan)))


def test_iterators_are_drained_and_endless_ones_cut():
    """As in Python they equal no list, but give the same items."""
    for value in (
        map(abs, [0, -1, 2]),
        range(3),
        {0: 1, 1: 1, 2: 1}.keys(),
        {"a": 0, "b": 1, "c": 2}.values(),
    ):
        back = decode(json.loads(json.dumps(encode(value))))
        assert back != [0, 1, 2] and list(back) == [0, 1, 2]
    assert list(decode(encode({"a": 1}.items()))) == [("a", 1)]
    assert len(list(decode(encode(itertools.count())))) == 100_000


def test_subclasses_arrive_as_what_they_are_made_of():
    class Yes(int):
        def __eq__(self, other):
            return True

        __hash__ = int.__hash__

    back = decode(encode(Yes(3)))
    assert type(back) is int and back != 4


def test_objects_are_refused_or_handed_over():
    with pytest.raises(NotPlain, match="object is no plain data"):
        encode([object()])
    assert encode([object()], lambda value: {"h": 7}) == [{"h": 7}]


@pytest.mark.parametrize(
    "data",
    [
        *[
            {},
            {"x": 1},
            {"h": 0},
            {"t": 1},
            {"i": 3},
            {"d": [1]},
            {"t": [], "s": []},
            {"c": [1]},
            {"s": [[1]]},
        ],
        *[
            {"c": [10**400, 0]},
            {"f": 10**400},
            {"y": "open"},
            {"y": []},
            {"u": "ff"},
            {"r": [0, 1, 0]},
            {"r": [1.5]},
        ],
    ],
    ids=str,
)
def test_what_nobody_encoded_is_refused(data):
    with pytest.raises(ValueError):
        decode(data)


FIB_90 = 2880067194370816120


@pytest.mark.parametrize(
    ("expected", "value", "equal"),
    [
        *[
            (1, 1, True),
            (1, 2, False),
            (1, 1.0, True),
            (1, True, False),
            (True, True, True),
            (0, None, False),
        ],
        *[
            ([1, 2], (1, 2), True),
            ([1, 2], [2, 1], False),
            ([1], [1, 1], False),
            ("1", 1, False),
            ("a", "a", True),
        ],
        *[
            (0.3, 0.1 + 0.2, True),
            (0.3, 0.3001, False),
            (1e300, math.inf, False),
            (math.inf, math.inf, True),
        ],
        *[
            ({"a": [1]}, {"a": (1,)}, True),
            ({"a": 1}, {"b": 1}, False),
            ({1, 2}, {2, 1}, True),
            ({1}, [1], False),
        ],
        *[
            (10**400, 1.0, False),
            (10**20, 10**20 + 1, False),
            (None, None, True),
            (math.nan, math.nan, False),
        ],
        *[
            (FIB_90, float(FIB_90), False),
            (2**60, 2.0**60, True),
            (float(FIB_90), FIB_90, True),
            (10**400, 1e400, False),
        ],
        *[
            (1e400, 10**400, False),
            ([FIB_90], [float(FIB_90)], False),
            ({FIB_90: FIB_90}, {FIB_90: 2.88e18}, False),
        ],
        *[
            ({1}, {True}, False),
            ({True}, {True}, True),
            ({1: 2}, {True: 2}, False),
            ({(1, 0)}, {(True, 0)}, False),
        ],
        *[
            ([0], iter([0]), False),
            ([0], range(1), False),
            ([0], deque([0]), False),
            ({1}, frozenset({1}), True),
        ],
        *[
            (0.0, -0.0, True),
            (0, -0.0, True),
            (1, 1 + 0j, False),
            ("1", b"1", False),
            (3, 2.9999999999, False),
        ],
    ],
)
def test_the_same_answer(expected, value, equal):
    assert equal_values(expected, value) is equal
