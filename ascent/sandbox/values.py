"""Plain data as JSON and back, keeping apart what JSON mixes up: tuples, sets, bytes, big integers, infinities.

Only exact built-in types come out of `decode`, whatever went in: an object whose `==` always says yes arrives as
something else. This file runs inside the sandbox too, so it imports nothing of the package.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, KeysView, ValuesView

TYPE_CHECKING = False  # typing's own would cost every program 5 ms at its start
if TYPE_CHECKING:
    from typing import Any

    _Other = Callable[[Any], Any] | None

# Iterators are drained when they are returned; an endless one must not be.
LONGEST = 100_000
# int() refuses longer decimal strings, and JSON writes decimal ones.
BIG = 1 << 256


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
        # A lone surrogate is no UTF-8 and would break the channel.
        return str(value).encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, complex):
        return {"c": [encode(value.real), encode(value.imag)]}
    if isinstance(value, bytes | bytearray):
        return {"b": bytes(value).hex()}
    return _encode_many(value, other)


def _encode_many(value: Any, other: Callable[[Any], Any] | None) -> Any:
    if isinstance(value, list | deque | range | KeysView | ValuesView):
        return [encode(item, other) for item in value]
    if isinstance(value, tuple):
        return {"t": [encode(item, other) for item in value]}
    if isinstance(value, frozenset | set):
        return {"s": [encode(item, other) for item in value]}
    if isinstance(value, dict):
        return {"d": [[encode(key, other), encode(item, other)] for key, item in value.items()]}
    if isinstance(value, Iterator):
        return [encode(item, other) for _, item in zip(range(LONGEST), value, strict=False)]
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
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{str(data)[:80]!r} is no encoded value") from error


def _complex(inner: Any, other: _Other) -> complex:
    real, imaginary = inner
    return complex(decode(real), decode(imaginary))


_DECODERS: dict[str, Callable[[Any, _Other], Any]] = {
    "i": lambda inner, other: int(inner, 16),
    "f": lambda inner, other: float(inner),
    "c": _complex,
    "b": lambda inner, other: bytes.fromhex(inner),
    "t": lambda inner, other: tuple(decode(item, other) for item in inner),
    "s": lambda inner, other: {decode(item, other) for item in inner},
    "d": lambda inner, other: {decode(key, other): decode(item, other) for key, item in inner},
}


def same(want: Any, got: Any, *, tolerance: float = 1e-9) -> bool:
    """Equal as answers: a list equals a tuple (JSON has no tuples), floats within a tolerance, True is not 1."""
    if isinstance(want, bool) or isinstance(got, bool) or want is None or got is None:
        return type(want) is type(got) and bool(want == got)
    if isinstance(want, int | float) and isinstance(got, int | float):
        if isinstance(want, int) and isinstance(got, int):
            return want == got
        return _close(want, got, tolerance)
    if isinstance(want, list | tuple) and isinstance(got, list | tuple):
        return len(want) == len(got) and all(same(a, b, tolerance=tolerance) for a, b in zip(want, got, strict=True))
    if isinstance(want, dict) and isinstance(got, dict):
        return want.keys() == got.keys() and all(same(want[key], got[key], tolerance=tolerance) for key in want)
    return type(want) is type(got) and bool(want == got)


def _close(want: float, got: float, tolerance: float) -> bool:
    try:
        return math.isclose(want, got, rel_tol=tolerance, abs_tol=tolerance * 1e-3) or want == got
    except OverflowError:  # an integer beyond float's range against a float
        return False
