"""Arithmetic as text: + - * / // % ** and parentheses over whole and decimal numbers, exactly, and nothing else."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from fractions import Fraction

MOST_CHARACTERS = 200
MOST_DIGITS = 1000  # of a power: anything larger is a way to hang
DECIMALS = 10
_SIGNS = re.compile(r"[0-9.+\-*/%()\s]*")
SIGNS: dict[type, Callable[[Fraction, Fraction], Fraction | int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def calculate(text: str) -> str:
    """The value: a whole number, or a decimal of at most ten places. ValueError or ZeroDivisionError where none is."""
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"{len(text)} characters, but at most {MOST_CHARACTERS} are read")
    try:
        # Only signs of arithmetic reach the parser: it warns aloud about others, such as 12x.
        tree = ast.parse(text.strip() if _SIGNS.fullmatch(text) else "", mode="eval")
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError(f"{text.strip()!r} is not arithmetic") from None
    return _written(_value(tree.body, text.strip()))


def _value(node: ast.expr, text: str) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return Fraction(ast.get_source_segment(text, node) or "")
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        inner = _value(node.operand, text)
        return -inner if isinstance(node.op, ast.USub) else inner
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left, text), _value(node.right, text)
        if isinstance(node.op, ast.Pow):
            return _power(left, right)
        if type(node.op) in SIGNS:
            return Fraction(SIGNS[type(node.op)](left, right))
    raise ValueError(f"{ast.get_source_segment(text, node) or text!r} is not arithmetic")


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        raise ValueError(f"the exponent {_written(exponent)} is no whole number")
    digits = max(len(str(abs(base.numerator))), len(str(base.denominator)))
    if digits * abs(exponent) > MOST_DIGITS:
        raise ValueError(f"a power of more than {MOST_DIGITS} digits")
    return Fraction(base ** int(exponent))


def _written(value: Fraction) -> str:
    if value.denominator == 1:
        return str(value.numerator)
    scaled = round(value * 10**DECIMALS)
    whole, part = divmod(abs(scaled), 10**DECIMALS)
    return f"{'-' if scaled < 0 else ''}{whole}.{part:0{DECIMALS}d}".rstrip("0").rstrip(".")
