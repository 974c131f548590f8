"""Plain data survives the channel; anything else becomes something that equals nothing."""

import itertools
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascent.sandbox.values import NotPlain, decode, encode, same

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=12,
)


@given(PLAIN)
def test_round_trip(value):
    back = decode(json.loads(json.dumps(encode(value))))
    assert back == value and type(back) is type(value)


LACKING = [{1, 2}, frozenset({3}), 10**5000, -(10**5000), 1j, math.inf, -math.inf, {(1, 2): {3}}]


@pytest.mark.parametrize("value", LACKING, ids=lambda value: type(value).__name__)
def test_what_json_lacks(value):
    assert decode(json.loads(json.dumps(encode(value)))) == value


def test_nan_and_surrogates():
    assert math.isnan(decode(encode(math.nan)))
    assert decode(encode("a\udcffb")) == "a?b"


def test_iterators_are_drained_and_endless_ones_cut():
    assert decode(encode(map(abs, [-1, 2]))) == [1, 2]
    assert decode(encode(range(3))) == decode(encode({0: 1, 1: 1, 2: 1}.keys())) == [0, 1, 2]
    assert len(encode(itertools.count())) == 100_000


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
    "data", [{}, {"x": 1}, {"h": 0}, {"t": 1}, {"i": 3}, {"d": [1]}, {"t": [], "s": []}, {"c": [1]}, {"s": [[1]]}]
)
def test_what_nobody_encoded_is_refused(data):
    with pytest.raises(ValueError):
        decode(data)


@pytest.mark.parametrize(
    ("want", "got", "equal"),
    [
        *[(1, 1, True), (1, 2, False), (1, 1.0, True), (1, True, False), (True, True, True), (0, None, False)],
        *[([1, 2], (1, 2), True), ([1, 2], [2, 1], False), ([1], [1, 1], False), ("1", 1, False), ("a", "a", True)],
        *[(0.3, 0.1 + 0.2, True), (0.3, 0.3001, False), (1e300, math.inf, False), (math.inf, math.inf, True)],
        *[({"a": [1]}, {"a": (1,)}, True), ({"a": 1}, {"b": 1}, False), ({1, 2}, {2, 1}, True), ({1}, [1], False)],
        *[(10**400, 1.0, False), (10**20, 10**20 + 1, False), (None, None, True), (math.nan, math.nan, False)],
    ],
)
def test_the_same_answer(want, got, equal):
    assert same(want, got) is equal
