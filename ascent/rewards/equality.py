"""Equality of answers: numbers exactly, or within a tolerance for a decimal against a fraction; lists by items; the
rest through `symbolic`, which calls a computer algebra system in another process.

Worked example: gold \\frac{1}{3} accepts 0.333333 (relative error 1e-6) and refuses 0.3333; gold 0.5 accepts 1/2 and
refuses 0.50001; gold 1,234 refuses 12,34.

Computer algebra takes time exponential in the nesting of brackets (20 braces take minutes), so it is not called for an
answer that is `oversized` relative to its gold: such expressions are equal only if their text is equal.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction

from ascent.rewards.answers import (
    MAX_CHARACTERS,
    SET_CLOSE,
    SET_OPEN,
    Answer,
    Assignment,
    Expression,
    ItemList,
    Matrix,
    Number,
    Text,
    Union,
    parse_answer,
)
from ascent.rewards.units import split_bare_unit

Symbolic = Callable[[str, str], bool]
MAX_SYMBOLIC_CHARACTERS, MAX_NESTING = 400, 8  # for computer algebra, unless the gold has more
TOLERANCE = Fraction(1, 1_000_000)
_UNORDERED = ("", SET_OPEN + SET_CLOSE)
# Numbers, fractions, powers and roots; two operands with a sign between them, or side by side.
_ARITHMETIC = re.compile(
    r"(?:[\d.+/^(){} -]|\\(?:frac|over)(?![a-zA-Z])|\\sqrt(?![a-zA-Z])(?:\[\d+\])?)+"
)
_OPERATION = re.compile(
    r"[\d.)}]\s*(?:[+(-]|\\(?:frac|sqrt))|[)}]\s*[\d.]|[\d.)]\s*\{|[\d.]\s+[\d.]"
)
APPROX = r"\approx"
_BRACKET = re.compile(r"[(\[{)\]}]")
# 121_3, also inside an expression: computer algebra would read the base as an index.
_WITH_BASE = re.compile(r"(?<![\w.}\\^])(?:\d[\d.]*_\d+|\d[\dA-F.]*_1\d|^[\dA-F]+_\d+$)")


class NeedsSymbolic(Exception):
    """The comparison needs computer algebra."""


class BadGold(Exception):
    """The reference answer cannot be read, so nothing can be compared with it."""


def no_symbolic(gold: str, answer: str) -> bool:
    """For callers without computer algebra."""
    raise NeedsSymbolic


def compare(gold: str, answer: str, symbolic: Symbolic) -> tuple[bool, float]:
    """(equal?, share of the gold's items that were found). BadGold if the gold cannot be parsed."""
    parsed_gold = parse_answer(gold)
    if parsed_gold is None:
        too_long = f": it has {len(gold)} characters, and at most {MAX_CHARACTERS} are read"
        raise BadGold(
            f"gold {gold[:80]!r} cannot be read{too_long if len(gold) > MAX_CHARACTERS else ''}"
        )
    if isinstance(parsed_gold, Expression):
        symbolic(parsed_gold.latex, parsed_gold.latex)  # raises BadGold for what cannot be parsed
    parsed = parse_answer(answer)
    if parsed is None:
        return False, 0.0
    symbolic = operator.eq if oversized(gold, answer) else symbolic
    right = equal(parsed_gold, parsed, symbolic)
    return right, 1.0 if right else partial_credit(parsed_gold, parsed, symbolic)


def oversized(gold: str, answer: str) -> bool:
    """Is the answer more than 400 characters and three times the gold's, or nested deeper than 8 and than the gold?"""
    max_length = min(MAX_CHARACTERS, max(MAX_SYMBOLIC_CHARACTERS, 3 * len(gold)))
    return len(answer) > max_length or nesting(answer) > max(MAX_NESTING, nesting(gold))


def nesting(text: str) -> int:
    """The largest number of brackets, of any kind, open at once."""
    deepest = depth = 0
    for bracket in _BRACKET.findall(text):
        depth = depth + 1 if bracket in "([{" else max(depth - 1, 0)
        deepest = max(deepest, depth)
    return deepest


def equal(gold: Answer, answer: Answer, symbolic: Symbolic) -> bool:
    if isinstance(gold, Assignment) and isinstance(answer, Assignment):
        return gold.name == answer.name and equal(gold.value, answer.value, symbolic)
    if isinstance(gold, Assignment) and isinstance(answer, Expression) and "=" in answer.latex:
        if not isinstance(gold.value, Expression | Number):
            return False
        return symbolic(f"{gold.name}={_latex(gold.value)}", answer.latex)
    if isinstance(gold, Assignment):
        return equal(gold.value, answer, symbolic)
    if isinstance(answer, Assignment):
        return equal(gold, answer.value, symbolic)
    if isinstance(gold, Number) and isinstance(answer, Number):
        return equal_numbers(gold, answer)
    if isinstance(gold, Text) or isinstance(answer, Text):
        return (
            isinstance(gold, Text)
            and isinstance(answer, Text)
            and gold.text.casefold() == answer.text.casefold()
        )
    if isinstance(gold, ItemList) and isinstance(answer, ItemList):
        return _equal_lists(gold, answer, symbolic)
    if isinstance(gold, Union) and isinstance(answer, Union):
        return _equal_unordered(gold.pieces, answer.pieces, symbolic)
    if isinstance(gold, Matrix) and isinstance(answer, Matrix):
        return [len(row) for row in gold.rows] == [len(row) for row in answer.rows] and all(
            equal(a, b, symbolic)
            for rows in zip(gold.rows, answer.rows, strict=True)
            for a, b in zip(*rows, strict=True)
        )
    return _equal_expressions(gold, answer, symbolic)


def _equal_expressions(gold: Answer, answer: Answer, symbolic: Symbolic) -> bool:
    if (
        isinstance(gold, Expression | Number)
        and gold.unit
        and isinstance(answer, Expression)
        and not answer.unit
    ):
        answer = Expression(split_bare_unit(answer.latex, gold.unit))
    if (
        isinstance(gold, Number)
        and isinstance(answer, Expression)
        and not is_evaluated(answer.latex.partition(APPROX)[0])
    ):
        return False
    if (
        isinstance(answer, Expression)
        and "=" in answer.latex
        and not (isinstance(gold, Expression) and "=" in gold.latex)
    ):
        return False  # 3 = 3 is true, but no answer
    if isinstance(gold, Expression | Number) and isinstance(answer, Expression | Number):
        if gold.unit and answer.unit and gold.unit != answer.unit:
            return False
        first, second = (
            re.sub(r"_\{(\d+)\}", r"_\1", _remove_spaces(_latex(each))) for each in (gold, answer)
        )
        if sorted(_WITH_BASE.findall(first)) != sorted(_WITH_BASE.findall(second)):
            return False
        return first == second or symbolic(_latex(gold), _latex(answer))
    return False


def is_evaluated(latex: str) -> bool:
    """One fraction, power or root of numbers, or a power of a fraction: 2^{10}, but not 40+2, (6)(7), 5! or \\log_2 8.

    Where the gold is a number, any other arithmetic may be the question itself."""
    if not _ARITHMETIC.fullmatch(latex) or _OPERATION.search(latex):
        return False
    fractions = len(re.findall(r"\\frac|\\over|/", latex))
    powers = len(re.findall(r"\\sqrt|\^", latex))
    return (
        fractions <= 1
        and powers <= 1
        and len(re.findall(r"\}\s*\{", latex)) <= latex.count(r"\frac")
    )


def _remove_spaces(latex: str) -> str:
    """Remove spaces that separate nothing: 1 2 is not 12."""
    return re.sub(r"\s+(?!\w)|(?<!\w)\s+", "", latex)


def _latex(answer: Expression | Number) -> str:
    if isinstance(answer, Expression):
        return answer.latex
    value = answer.value / 100 if answer.percent else answer.value
    if value.denominator == 1:
        return str(value)
    if not answer.terminating:
        return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"
    places = len(
        str(value.denominator)
    )  # enough for any denominator of twos and fives below 10 ** places
    shifted = value * 10 ** (4 * places)
    return (
        f"{Decimal(shifted.numerator).scaleb(-4 * places).normalize():f}"
        if shifted.denominator == 1
        else str(value)
    )


def equal_numbers(gold: Number, answer: Number) -> bool:
    """A unit or a percent sign may be left out, but not exchanged. A gold of 50% accepts 50 and 0.5; where the gold has
    no percent sign, 0.5% is not 0.5."""
    if gold.unit and answer.unit and gold.unit != answer.unit:
        return False
    # Only a decimal can be the rounded value of a fraction.
    exact = (
        gold.terminating == answer.terminating
        or (gold if gold.terminating else answer).value.denominator == 1
    )
    gold_values = (
        {gold.value, gold.value / 100} if gold.percent and not answer.percent else {gold.value}
    )
    answer_values = {answer.value}
    if answer.percent and not gold.percent:
        answer_values = {answer.value / 100, *([answer.value] if abs(answer.value) > 1 else [])}
    return any(
        a == b if exact else abs(a - b) <= TOLERANCE * abs(a)
        for a in gold_values
        for b in answer_values
    )


def _equal_lists(gold: ItemList, answer: ItemList, symbolic: Symbolic) -> bool:
    if gold.brackets in _UNORDERED and answer.brackets in _UNORDERED:
        if SET_OPEN in gold.brackets or SET_OPEN in answer.brackets:  # sets ignore repeats
            return _covers(gold.items, answer.items, symbolic) and _covers(
                answer.items, gold.items, symbolic
            )
        return _equal_unordered(gold.items, answer.items, symbolic)
    return (
        gold.brackets == answer.brackets
        and len(gold.items) == len(answer.items)
        and all(equal(a, b, symbolic) for a, b in zip(gold.items, answer.items, strict=True))
    )


def _covers(gold: tuple[Answer, ...], answer: tuple[Answer, ...], symbolic: Symbolic) -> bool:
    return all(any(equal(a, b, symbolic) for b in answer) for a in gold)


def _equal_unordered(
    gold: tuple[Answer, ...], answer: tuple[Answer, ...], symbolic: Symbolic
) -> bool:
    return len(gold) == len(answer) and _count_matches(gold, answer, symbolic) == len(gold)


def _count_matches(gold: tuple[Answer, ...], answer: tuple[Answer, ...], symbolic: Symbolic) -> int:
    rest = list(answer)
    count = 0
    for item in gold:
        index = next((n for n, other in enumerate(rest) if equal(item, other, symbolic)), None)
        if index is not None:
            del rest[index]
            count += 1
    return count


def partial_credit(gold: Answer, answer: Answer, symbolic: Symbolic) -> float:
    """For a list or a matrix, the share of items found, relative to the longer one; else 0."""
    if isinstance(gold, ItemList) and isinstance(answer, ItemList):
        return _count_matches(gold.items, answer.items, symbolic) / max(
            len(gold.items), len(answer.items), 1
        )
    if isinstance(gold, Matrix) and isinstance(answer, Matrix):
        cells = [tuple(cell for row in matrix.rows for cell in row) for matrix in (gold, answer)]
        hits = sum(equal(a, b, symbolic) for a, b in zip(*cells, strict=False))
        return hits / max(len(cells[0]), len(cells[1]), 1)
    return 0.0
