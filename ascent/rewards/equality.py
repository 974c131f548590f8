"""Are two answers the same? Numbers exactly, or within a tolerance where one is not a finite decimal; lists by items;
the rest through `symbolic`, which asks a computer algebra system elsewhere.

Worked example: gold \\frac{1}{3} accepts 0.333333 (relative error 1e-6) and refuses 0.3333; gold 0.5 accepts 1/2 and
refuses 0.50001; gold 1,234 refuses 12,34.

Computer algebra takes time exponential in how deep brackets are nested (20 braces take minutes), so an answer that is
`oversized` beside its gold is not given to it: its expressions are equal only where they are equal letter by letter.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction

from ascent.rewards.answers import (
    LONGEST,
    SET_CLOSE,
    SET_OPEN,
    Answer,
    Expression,
    Matrix,
    Named,
    Number,
    Several,
    Union,
    Words,
    read,
)

Symbolic = Callable[[str, str], bool]
MOST_CHARACTERS, MOST_NESTED = 400, 8  # for computer algebra, where the gold itself has no more
TOLERANCE = Fraction(1, 1_000_000)
_NO_ORDER = ("", SET_OPEN + SET_CLOSE)
# Arithmetic left undone between two numbers: where the answer is a number, the question itself would pass for it.
_UNDONE = re.compile(r"\d\s*(?:[+*/-]|\\times|\\cdot|\\div)\s*[(\d\\]")
_BRACKET = re.compile(r"[(\[{)\]}]")
_BASED = re.compile(r"[\dA-F]+_\{?\d+\}?")


class NeedsSymbolic(Exception):
    """The comparison cannot be settled without computer algebra."""


class BadGold(Exception):
    """The reference answer cannot be read, so nothing can be compared with it."""


def unavailable(gold: str, answer: str) -> bool:
    """For callers without computer algebra at hand."""
    raise NeedsSymbolic


def compare(gold: str, answer: str, symbolic: Symbolic) -> tuple[bool, float]:
    """(the same?, share of the gold's items that were found). BadGold when the gold is no answer."""
    want = read(gold)
    if want is None:
        long = f": it has {len(gold)} characters, and at most {LONGEST} are read" if len(gold) > LONGEST else ""
        raise BadGold(f"gold {gold[:80]!r} cannot be read{long}")
    if isinstance(want, Expression):
        symbolic(want.latex, want.latex)  # raises BadGold for what no reader understands
    got = read(answer)
    if got is None:
        return False, 0.0
    symbolic = operator.eq if oversized(gold, answer) else symbolic
    right = same(want, got, symbolic)
    return right, 1.0 if right else share(want, got, symbolic)


def oversized(gold: str, answer: str) -> bool:
    """Is the answer more than 400 characters and three times the gold's, or nested deeper than 8 and than the gold?"""
    most = min(LONGEST, max(MOST_CHARACTERS, 3 * len(gold)))
    return len(answer) > most or nesting(answer) > max(MOST_NESTED, nesting(gold))


def nesting(text: str) -> int:
    """How many brackets of any kind are open at once, at most."""
    deepest = depth = 0
    for bracket in _BRACKET.findall(text):
        depth = depth + 1 if bracket in "([{" else max(depth - 1, 0)
        deepest = max(deepest, depth)
    return deepest


def same(want: Answer, got: Answer, symbolic: Symbolic) -> bool:
    if isinstance(want, Named) and isinstance(got, Named):
        return want.name == got.name and same(want.value, got.value, symbolic)
    if isinstance(want, Named) and isinstance(got, Expression) and "=" in got.latex:
        if not isinstance(want.value, Expression | Number):
            return False
        return symbolic(f"{want.name}={_latex(want.value)}", got.latex)
    if isinstance(want, Named):
        return same(want.value, got, symbolic)
    if isinstance(got, Named):
        return same(want, got.value, symbolic)
    if isinstance(want, Number) and isinstance(got, Number):
        return same_number(want, got)
    if isinstance(want, Words) or isinstance(got, Words):
        return isinstance(want, Words) and isinstance(got, Words) and want.text.casefold() == got.text.casefold()
    if isinstance(want, Several) and isinstance(got, Several):
        return _same_several(want, got, symbolic)
    if isinstance(want, Union) and isinstance(got, Union):
        return _same_bag(want.pieces, got.pieces, symbolic)
    if isinstance(want, Matrix) and isinstance(got, Matrix):
        return [len(row) for row in want.rows] == [len(row) for row in got.rows] and all(
            same(a, b, symbolic) for rows in zip(want.rows, got.rows, strict=True) for a, b in zip(*rows, strict=True)
        )
    return _same_expressions(want, got, symbolic)


def _same_expressions(want: Answer, got: Answer, symbolic: Symbolic) -> bool:
    if isinstance(want, Number) and isinstance(got, Expression) and _UNDONE.search(got.latex):
        return False
    if isinstance(got, Expression) and "=" in got.latex and not (isinstance(want, Expression) and "=" in want.latex):
        return False  # 3 = 3 is true, which is not what was asked
    if isinstance(want, Expression | Number) and isinstance(got, Expression | Number):
        first, second = _packed(_latex(want)), _packed(_latex(got))
        if _BASED.fullmatch(first) or _BASED.fullmatch(second):  # 25_8: algebra would take the base for an index
            return re.sub("[{}]", "", first) == re.sub("[{}]", "", second)
        return first == second or symbolic(_latex(want), _latex(got))
    return False


def _packed(latex: str) -> str:
    """Without space that separates nothing: 1 2 is not 12."""
    return re.sub(r"\s+(?!\w)|(?<!\w)\s+", "", latex)


def _latex(answer: Expression | Number) -> str:
    if isinstance(answer, Expression):
        return answer.latex
    value = answer.value / 100 if answer.percent else answer.value
    if value.denominator == 1:
        return str(value)
    if not answer.terminating:
        return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"
    places = len(str(value.denominator))  # enough for any denominator of twos and fives below 10 ** places
    shifted = value * 10 ** (4 * places)
    return f"{Decimal(shifted.numerator).scaleb(-4 * places).normalize():f}" if shifted.denominator == 1 else str(value)


def same_number(want: Number, got: Number) -> bool:
    """A unit or a percent sign may be left out, but not exchanged. 50% is 50 to whoever asks for a percentage, and
    0.5; where the gold has no percent sign, 0.5% is not 0.5."""
    if want.unit and got.unit and want.unit != got.unit:
        return False
    exact = want.terminating and got.terminating
    wants = {want.value, want.value / 100} if want.percent and not got.percent else {want.value}
    gots = {got.value}
    if got.percent and not want.percent:
        gots = {got.value / 100, *([got.value] if abs(got.value) > 1 else [])}
    return any(a == b if exact else abs(a - b) <= TOLERANCE * abs(a) for a in wants for b in gots)


def _same_several(want: Several, got: Several, symbolic: Symbolic) -> bool:
    if want.brackets in _NO_ORDER and got.brackets in _NO_ORDER:
        if SET_OPEN in want.brackets or SET_OPEN in got.brackets:  # in a set nothing counts twice
            return _covers(want.items, got.items, symbolic) and _covers(got.items, want.items, symbolic)
        return _same_bag(want.items, got.items, symbolic)
    return (
        want.brackets == got.brackets
        and len(want.items) == len(got.items)
        and all(same(a, b, symbolic) for a, b in zip(want.items, got.items, strict=True))
    )


def _covers(want: tuple[Answer, ...], got: tuple[Answer, ...], symbolic: Symbolic) -> bool:
    return all(any(same(a, b, symbolic) for b in got) for a in want)


def _same_bag(want: tuple[Answer, ...], got: tuple[Answer, ...], symbolic: Symbolic) -> bool:
    return len(want) == len(got) and _found(want, got, symbolic) == len(want)


def _found(want: tuple[Answer, ...], got: tuple[Answer, ...], symbolic: Symbolic) -> int:
    rest = list(got)
    count = 0
    for item in want:
        place = next((n for n, other in enumerate(rest) if same(item, other, symbolic)), None)
        if place is not None:
            del rest[place]
            count += 1
    return count


def share(want: Answer, got: Answer, symbolic: Symbolic) -> float:
    """Partial credit: of a list or a matrix, the share of items found, of the longer one; of all else nothing."""
    if isinstance(want, Several) and isinstance(got, Several):
        return _found(want.items, got.items, symbolic) / max(len(want.items), len(got.items), 1)
    if isinstance(want, Matrix) and isinstance(got, Matrix):
        cells = [tuple(cell for row in matrix.rows for cell in row) for matrix in (want, got)]
        hits = sum(same(a, b, symbolic) for a, b in zip(*cells, strict=False))
        return hits / max(len(cells[0]), len(cells[1]), 1)
    return 0.0
