"""Countdown: "make 24 from 3 8 2 4 =" is answered by "8 * (4 + 2 - 3)", or any other way that uses each number once.

The target is the value of an expression that was drawn first, so every problem can be solved. The reference answer
says all there is to know: its numbers are those given, its value is the target. Values are exact fractions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from ascent.tasks.noise import Noise
from ascent.tasks.task import Problem, Task, overlap

FEWEST, MOST = 3, 4
LARGEST_NUMBER, LARGEST_TARGET = 12, 100
# No sensible answer is longer; what is longer need not be parsed (nor nested deeply).
LONGEST_TEXT = 100
ALLOWED, PIECE = re.compile(r"[0-9\s+*/()-]+"), re.compile(r"[0-9]+|[-+*/()]")
RANK = {"+": 1, "-": 1, "*": 2, "/": 2}


@dataclass(frozen=True)
class Sum:
    """An expression as it is built: text, exact value, and the rank of its outermost sign (3 for a lone number)."""

    text: str
    value: Fraction
    rank: int


def joined(first: Sum, sign: str, second: Sum) -> Sum | None:
    """Both in one, with parentheses where they are needed; None for a division by zero."""
    if sign == "/" and second.value == 0:
        return None
    rank = RANK[sign]
    left = first.text if first.rank >= rank else f"({first.text})"
    right = second.text if second.rank > rank else f"({second.text})"
    return Sum(f"{left} {sign} {right}", applied(first.value, sign, second.value), rank)


def applied(first: Fraction, sign: str, second: Fraction) -> Fraction:
    if sign == "+":
        return first + second
    if sign == "-":
        return first - second
    return first * second if sign == "*" else first / second


def draw(noise: Noise) -> Problem:
    while True:
        numbers = [noise.whole(1, LARGEST_NUMBER) for _ in range(noise.whole(FEWEST, MOST))]
        built = _built([Sum(str(number), Fraction(number), 3) for number in numbers], noise)
        if built is not None and built.value.denominator == 1 and 1 <= built.value <= LARGEST_TARGET:
            break
    shown = " ".join(map(str, numbers))
    key = f"{built.value} from {' '.join(map(str, sorted(numbers)))}"
    return Problem(f"make {built.value} from {shown} =", built.text, key)


def _built(rest: list[Sum], noise: Noise) -> Sum | None:
    """Join two of them until one is left; None when a step is no whole number, which would be hard to guess."""
    while len(rest) > 1:
        first = rest.pop(noise.whole(0, len(rest) - 1))
        second = rest.pop(noise.whole(0, len(rest) - 1))
        made = joined(first, noise.choice("+-*/"), second)
        if made is None or made.value.denominator != 1:
            return None
        rest.append(made)
    return rest[0]


@dataclass(frozen=True)
class Read:
    """What a text computes; `value` is None where it divides by zero."""

    value: Fraction | None
    numbers: tuple[str, ...]


def read(text: str) -> Read | None:
    """None for what is no expression of whole numbers, the four signs and parentheses."""
    text = text.strip()
    if len(text) > LONGEST_TEXT or ALLOWED.fullmatch(text) is None:
        return None
    pieces = PIECE.findall(text)
    numbers = tuple(piece for piece in pieces if piece[0].isdigit())
    try:
        value, rest = _sum(pieces, 0)
    except ZeroDivisionError:
        return Read(None, numbers) if _shaped(pieces) else None
    except _NoExpression:
        return None
    return Read(value, numbers) if rest == len(pieces) else None


class _NoExpression(Exception):
    pass


def _sum(pieces: list[str], at: int, rank: int = 1) -> tuple[Fraction, int]:
    """Terms of at least this rank from `at` on, from left to right; the value and where it ends."""
    value, at = _sum(pieces, at, rank + 1) if rank < 3 else _single(pieces, at)
    while at < len(pieces) and RANK.get(pieces[at]) == rank:
        sign = pieces[at]
        other, at = _sum(pieces, at + 1, rank + 1)
        value = applied(value, sign, other)
    return value, at


def _single(pieces: list[str], at: int) -> tuple[Fraction, int]:
    if at < len(pieces) and pieces[at][0].isdigit():
        return Fraction(int(pieces[at])), at + 1
    if at < len(pieces) and pieces[at] == "(":
        value, at = _sum(pieces, at + 1)
        if at < len(pieces) and pieces[at] == ")":
            return value, at + 1
    raise _NoExpression


def _shaped(pieces: list[str]) -> bool:
    """Is it an expression, if no division were by zero? With only sums and products in it, none is."""
    try:
        return _sum(["*" if piece == "/" else piece for piece in pieces], 0)[1] == len(pieces)
    except _NoExpression:
        return False


def parts(answer: str, text: str) -> dict[str, float]:
    """correct; format: an expression; numbers: share of the right ones; near: 1 at the target, 1/2 when off by 1.

    Only what uses the given numbers can be near: whoever may add a number of choice is at any target, or repeats it.
    """
    want, got = read(answer), read(text)
    assert want is not None and want.value is not None
    if got is None:
        return {"correct": 0.0, "format": 0.0, "numbers": 0.0, "near": 0.0}
    numbers = overlap(want.numbers, got.numbers)
    near = float(1 / (1 + abs(got.value - want.value))) if numbers == 1 and got.value is not None else 0.0
    return {"correct": float(near == 1), "format": 1.0, "numbers": numbers, "near": near}


def attempt(problem: Problem, noise: Noise) -> str:
    """The reference after none to two changes of a sign or a number; parentheses stay as they are."""
    pieces = problem.answer.replace("(", "( ").replace(")", " )").split(" ")
    for _ in range(noise.whole(0, 2)):
        place = noise.choice([place for place, piece in enumerate(pieces) if piece not in "()"])
        pieces[place] = noise.choice("+-*/") if pieces[place] in RANK else str(noise.whole(1, LARGEST_NUMBER))
    return " ".join(pieces).replace("( ", "(").replace(" )", ")")


def demonstrate(problem: Problem, noise: Noise) -> str:
    return problem.answer


COUNTDOWN = Task(
    name="countdown",
    summary=f"reach a target with {FEWEST} or {MOST} numbers, each used once, and + - * /",
    draw=draw,
    parts=parts,
    attempt=attempt,
    demonstrate=demonstrate,
    utility={"correct": 1.0, "numbers": 0.5, "near": 0.5},
)
