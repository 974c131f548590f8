"""Countdown: "make 24 from 3 8 2 4 =" is answered by "8 * (4 + 2 - 3)", or any other way that uses each number once.

The target is the value of an expression that is drawn first, so every problem has a solution. The verifier takes the
given numbers and the target from the reference answer. Values are exact fractions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from ascent.tasks.keyed_random import KeyedRandom
from ascent.tasks.task import Problem, Task, overlap

FEWEST, MOST = 3, 4
LARGEST_NUMBER, LARGEST_TARGET = 12, 100
MAX_TEXT = 100  # characters; a longer text is not parsed
ALLOWED, PIECE = re.compile(r"[0-9\s+*/()-]+"), re.compile(r"[0-9]+|[-+*/()]")
RANK = {"+": 1, "-": 1, "*": 2, "/": 2}


@dataclass(frozen=True)
class Expression:
    """Text, exact value, and the precedence of the outermost operator (3 for a single number)."""

    text: str
    value: Fraction
    rank: int


def combine(first: Expression, sign: str, second: Expression) -> Expression | None:
    """One expression of both, with the needed parentheses; None for a division by zero."""
    if sign == "/" and second.value == 0:
        return None
    rank = RANK[sign]
    left = first.text if first.rank >= rank else f"({first.text})"
    right = second.text if second.rank > rank else f"({second.text})"
    return Expression(f"{left} {sign} {right}", apply(first.value, sign, second.value), rank)


def apply(first: Fraction, sign: str, second: Fraction) -> Fraction:
    if sign == "+":
        return first + second
    if sign == "-":
        return first - second
    return first * second if sign == "*" else first / second


def draw(rng: KeyedRandom) -> Problem:
    while True:
        numbers = [rng.integer(1, LARGEST_NUMBER) for _ in range(rng.integer(FEWEST, MOST))]
        built = _combine_all(
            [Expression(str(number), Fraction(number), 3) for number in numbers], rng
        )
        if (
            built is not None
            and built.value.denominator == 1
            and 1 <= built.value <= LARGEST_TARGET
        ):
            break
    shown = " ".join(map(str, numbers))
    key = f"{built.value} from {' '.join(map(str, sorted(numbers)))}"
    return Problem(f"make {built.value} from {shown} =", built.text, key)


def _combine_all(rest: list[Expression], rng: KeyedRandom) -> Expression | None:
    """Combine random pairs until one is left; None where an intermediate value is not an integer."""
    while len(rest) > 1:
        first = rest.pop(rng.integer(0, len(rest) - 1))
        second = rest.pop(rng.integer(0, len(rest) - 1))
        made = combine(first, rng.choice("+-*/"), second)
        if made is None or made.value.denominator != 1:
            return None
        rest.append(made)
    return rest[0]


@dataclass(frozen=True)
class Parsed:
    """`value` is None for a division by zero."""

    value: Fraction | None
    numbers: tuple[str, ...]


def parse(text: str) -> Parsed | None:
    """None unless the text is an expression of integers, + - * / and parentheses."""
    text = text.strip()
    if len(text) > MAX_TEXT or ALLOWED.fullmatch(text) is None:
        return None
    pieces = PIECE.findall(text)
    numbers = tuple(piece for piece in pieces if piece[0].isdigit())
    try:
        value, rest = _parse_terms(pieces, 0)
    except ZeroDivisionError:
        return Parsed(None, numbers) if _is_expression(pieces) else None
    except _ParseError:
        return None
    return Parsed(value, numbers) if rest == len(pieces) else None


class _ParseError(Exception):
    pass


def _parse_terms(pieces: list[str], at: int, rank: int = 1) -> tuple[Fraction, int]:
    """Value and end of the terms of at least this precedence, from `at` on."""
    value, at = _parse_terms(pieces, at, rank + 1) if rank < 3 else _parse_factor(pieces, at)
    while at < len(pieces) and RANK.get(pieces[at]) == rank:
        sign = pieces[at]
        other, at = _parse_terms(pieces, at + 1, rank + 1)
        value = apply(value, sign, other)
    return value, at


def _parse_factor(pieces: list[str], at: int) -> tuple[Fraction, int]:
    if at < len(pieces) and pieces[at][0].isdigit():
        return Fraction(int(pieces[at])), at + 1
    if at < len(pieces) and pieces[at] == "(":
        value, at = _parse_terms(pieces, at + 1)
        if at < len(pieces) and pieces[at] == ")":
            return value, at + 1
    raise _ParseError


def _is_expression(pieces: list[str]) -> bool:
    """Whether it parses if every division is taken as a product."""
    try:
        return _parse_terms(["*" if piece == "/" else piece for piece in pieces], 0)[1] == len(
            pieces
        )
    except _ParseError:
        return False


def parts(answer: str, text: str) -> dict[str, float]:
    """correct; format: an expression; numbers: share of the right ones; near: 1 at the target, 1/2 when off by 1.

    `near` requires the given numbers; otherwise writing the target itself would score.
    """
    want, got = parse(answer), parse(text)
    assert want is not None and want.value is not None
    if got is None:
        return {"correct": 0.0, "format": 0.0, "numbers": 0.0, "near": 0.0}
    numbers = overlap(want.numbers, got.numbers)
    near = (
        float(1 / (1 + abs(got.value - want.value)))
        if numbers == 1 and got.value is not None
        else 0.0
    )
    return {"correct": float(near == 1), "format": 1.0, "numbers": numbers, "near": near}


def attempt(problem: Problem, rng: KeyedRandom) -> str:
    """The reference after zero to two random changes of an operator or a number."""
    pieces = problem.answer.replace("(", "( ").replace(")", " )").split(" ")
    for _ in range(rng.integer(0, 2)):
        place = rng.choice([place for place, piece in enumerate(pieces) if piece not in "()"])
        pieces[place] = (
            rng.choice("+-*/") if pieces[place] in RANK else str(rng.integer(1, LARGEST_NUMBER))
        )
    return " ".join(pieces).replace("( ", "(").replace(" )", ")")


COUNTDOWN = Task(
    name="countdown",
    summary=f"reach a target with {FEWEST} or {MOST} numbers, each used once, and + - * /",
    draw=draw,
    parts=parts,
    attempt=attempt,
    utility={"correct": 1.0, "numbers": 0.5, "near": 0.5},
)
