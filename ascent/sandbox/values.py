"""Plain data as JSON and back, keeping apart what JSON mixes up: tuples, sets, bytes, big integers, infinities.

Only exact built-in types come out of `decode`, whatever went in: an object whose `==` always says yes arrives as
something else. An iterator arrives as an iterator and a range as a range, which equal no list, as in Python; views of
a dict arrive as a deque. This file runs inside the sandbox too, so it imports nothing of the package.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, ItemsView, Iterator, KeysView, ValuesView

TYPE_CHECKING = False  # typing's own would cost every program 5 ms at its start
if TYPE_CHECKING:
    from typing import Any

    _Other = Callable[[Any], Any] | None

# Iterators are drained when they are returned; an endless one must not be.
LONGEST = 100_000
# int() refuses longer decimal strings, and JSON writes decimal ones.
BIG = 1 << 256
# Types that travel by their names.
TYPES = {each.__name__: each for each in (bool, int, float, complex, str, bytes, list, tuple, set, frozenset, dict)}


class NotPlain(TypeError):
    """A value that is no plain data."""


def encode(value: Any, other: Callable[[Any], Any] | None = None) -> Any:
    """JSON for a value; what is no plain data goes through `other`, or raises NotPlain."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        value = int(value)
        return value if -BIG < value < BIG else {"i": hex(value)}
    if isinstance(value, float):
        value = float(value)
        return value if math.isfinite(value) else {"f": str(value)}
    if isinstance(value, str):
        return _text(str(value))
    if isinstance(value, complex):
        return {"c": [encode(value.real), encode(value.imag)]}
    if isinstance(value, bytes | bytearray):
        return {"b": bytes(value).hex()}
    return _encode_many(value, other)


def _text(value: str) -> Any:
    """JSON joins two lone surrogates to one character, so text that has any goes as bytes."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return {"u": value.encode("utf-8", "surrogatepass").hex()}
    return value


def _encode_many(value: Any, other: Callable[[Any], Any] | None) -> Any:
    if isinstance(value, list):
        return [encode(item, other) for item in value]
    if isinstance(value, tuple):
        return {"t": [encode(item, other) for item in value]}
    if isinstance(value, frozenset | set):
        return {"s": [encode(item, other) for item in value]}
    if isinstance(value, dict):
        return {"d": [[encode(key, other), encode(item, other)] for key, item in value.items()]}
    if isinstance(value, range):
        return {"r": [encode(bound) for bound in (value.start, value.stop, value.step)]}
    if isinstance(value, deque | KeysView | ValuesView | ItemsView):
        return {"q": [encode(item, other) for item in value]}
    if any(value is each for each in TYPES.values()):
        return {"y": value.__name__}
    if isinstance(value, Iterator):
        return {"g": [encode(item, other) for _, item in zip(range(LONGEST), value, strict=False)]}
    if other is None:
        raise NotPlain(f"{type(value).__name__} is no plain data")
    return other(value)


def decode(data: Any, other: Callable[[Any], Any] | None = None) -> Any:
    """The value behind `encode`'s JSON; ValueError for anything else."""
    if data is None or isinstance(data, bool | int | float | str):
        return data
    if isinstance(data, list):
        return [decode(item, other) for item in data]
    if not isinstance(data, dict) or len(data) != 1:
        raise ValueError(f"{str(data)[:80]!r} is no encoded value")
    ((kind, inner),) = data.items()
    if kind == "h" and other is not None:
        return other(inner)
    try:
        return _DECODERS[kind](inner, other)
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"{str(data)[:80]!r} is no encoded value") from error


def _complex(inner: Any, other: _Other) -> complex:
    real, imaginary = inner
    return complex(decode(real), decode(imaginary))


def _key(value: Any) -> Any:
    """Inside a set, and as a key, a set is a frozen one."""
    return frozenset(value) if isinstance(value, set) else value


_DECODERS: dict[str, Callable[[Any, _Other], Any]] = {
    "i": lambda inner, other: int(inner, 16),
    "f": lambda inner, other: float(inner),
    "c": _complex,
    "b": lambda inner, other: bytes.fromhex(inner),
    "u": lambda inner, other: bytes.fromhex(inner).decode("utf-8", "surrogatepass"),
    "t": lambda inner, other: tuple(decode(item, other) for item in inner),
    "s": lambda inner, other: {_key(decode(item, other)) for item in inner},
    "d": lambda inner, other: {_key(decode(key, other)): decode(item, other) for key, item in inner},
    "r": lambda inner, other: range(*[decode(bound) for bound in inner]),
    "q": lambda inner, other: deque(decode(item, other) for item in inner),
    "y": lambda inner, other: TYPES[inner],
    "g": lambda inner, other: iter([decode(item, other) for item in inner]),
}


def same(want: Any, got: Any, *, tolerance: float = 1e-9) -> bool:
    """Equal as answers: a list equals a tuple (JSON has no tuples), True is not 1. Where an integer is wanted the
    answer is exact, an integer or not; where a float is wanted it is within a tolerance."""
    if isinstance(want, bool) or isinstance(got, bool) or want is None or got is None:
        return type(want) is type(got) and bool(want == got)
    if isinstance(want, int | float) and isinstance(got, int | float):
        return want == got or (isinstance(want, float) and _close(want, got, tolerance))
    if isinstance(want, list | tuple) and isinstance(got, list | tuple):
        return len(want) == len(got) and all(same(a, b, tolerance=tolerance) for a, b in zip(want, got, strict=True))
    if isinstance(want, dict) and isinstance(got, dict):
        alike = _told_apart(want) == _told_apart(got)
        return alike and all(same(want[key], got[key], tolerance=tolerance) for key in want)
    if isinstance(want, set | frozenset) and isinstance(got, set | frozenset):
        return _told_apart(want) == _told_apart(got)
    return type(want) is type(got) and bool(want == got)


def _told_apart(keys: Any) -> set[Any]:
    """Keys and members with True and 1 told apart, which are one to a dict."""
    return {_with_type(key) for key in keys}


def _with_type(key: Any) -> Any:
    if isinstance(key, tuple):
        return tuple(_with_type(item) for item in key)
    return (bool, key) if isinstance(key, bool) else key


def _close(want: float, got: float, tolerance: float) -> bool:
    try:
        return math.isclose(want, got, rel_tol=tolerance, abs_tol=tolerance * 1e-3)
    except OverflowError:  # an integer beyond float's range against a float
        return False
