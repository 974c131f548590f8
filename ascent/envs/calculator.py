"""Exact arithmetic on text: + - * / // % ** and parentheses over integers and decimals."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from fractions import Fraction

MAX_CHARACTERS = 200
MAX_DIGITS = 1000  # of a power; larger ones take too long
DECIMALS = 10
_ALLOWED = re.compile(r"[0-9.+\-*/%()\s]*")
OPERATORS: dict[type, Callable[[Fraction, Fraction], Fraction | int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def calculate(text: str) -> str:
    """The value as text: an integer, or a decimal of at most ten places. ValueError or ZeroDivisionError otherwise."""
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"{len(text)} characters, but at most {MAX_CHARACTERS} are read")
    try:
        # Other characters do not reach the parser, which would print warnings, for example about 12x.
        tree = ast.parse(text.strip() if _ALLOWED.fullmatch(text) else "", mode="eval")
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError(f"{text.strip()!r} is not arithmetic") from None
    return _format(_evaluate(tree.body, text.strip()))


def _evaluate(node: ast.expr, text: str) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return Fraction(ast.get_source_segment(text, node) or "")
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        inner = _evaluate(node.operand, text)
        return -inner if isinstance(node.op, ast.USub) else inner
    if isinstance(node, ast.BinOp):
        left, right = _evaluate(node.left, text), _evaluate(node.right, text)
        if isinstance(node.op, ast.Pow):
            return _power(left, right)
        if type(node.op) in OPERATORS:
            return Fraction(OPERATORS[type(node.op)](left, right))
    raise ValueError(f"{ast.get_source_segment(text, node) or text!r} is not arithmetic")


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        raise ValueError(f"the exponent {_format(exponent)} is not an integer")
    digits = max(len(str(abs(base.numerator))), len(str(base.denominator)))
    if digits * abs(exponent) > MAX_DIGITS:
        raise ValueError(f"a power of more than {MAX_DIGITS} digits")
    return Fraction(base ** int(exponent))


def _format(value: Fraction) -> str:
    if value.denominator == 1:
        return str(value.numerator)
    scaled = round(value * 10**DECIMALS)
    whole, part = divmod(abs(scaled), 10**DECIMALS)
    return f"{'-' if scaled < 0 else ''}{whole}.{part:0{DECIMALS}d}".rstrip("0").rstrip(".")
