"""Parse mathematical answers: numbers exactly, lists and matrices by their items.

Nothing is evaluated; what is neither a number nor text stays an `Expression`, for the symbolic checker. A text of more
than MAX_CHARACTERS is no answer, which bounds the parsing time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from ascent.rewards.units import UNIT_CLOSE, UNIT_OPEN, split_expression_unit, split_unit

MAX_CHARACTERS = 2000  # also below the 4,300 digits at which int() refuses
MAX_PLUS_MINUS = 4  # \\pm signs in one answer, each of which doubles the readings
SET_OPEN, SET_CLOSE = "⦃", "⦄"  # \{ and \}, distinct from grouping braces
MONEY = "＄"  # \\$, distinct from the dollar signs around mathematics


@dataclass(frozen=True)
class Number:
    """`terminating`: written as an integer or a decimal, so its value is exact."""

    value: Fraction
    terminating: bool
    percent: bool = False
    unit: str = ""


@dataclass(frozen=True)
class Text:
    text: str


@dataclass(frozen=True)
class Expression:
    latex: str
    unit: str = ""


@dataclass(frozen=True)
class ItemList:
    """Items between brackets. `brackets` is "" for a plain list and "⦃⦄" for a set: both are unordered."""

    brackets: str
    items: tuple[Answer, ...]


@dataclass(frozen=True)
class Union:
    pieces: tuple[Answer, ...]


@dataclass(frozen=True)
class Matrix:
    rows: tuple[tuple[Answer, ...], ...]


@dataclass(frozen=True)
class Assignment:
    """x = ...: the name may be left out, but not exchanged."""

    name: str
    value: Answer


Answer = Number | Text | Expression | ItemList | Union | Matrix | Assignment

_SPELLINGS = {
    **{
        "−": "-",
        "–": "-",
        "×": r"\times ",
        "·": r"\cdot ",
        "÷": r"\div ",
        "π": r"\pi ",
        "∞": r"\infty ",
        "≤": r"\le ",
    },
    **{
        "≥": r"\ge ",
        "≠": r"\ne ",
        "≈": r"\approx ",
        "∪": r"\cup ",
        "°": r"^\circ ",
        "½": r"\frac{1}{2}",
        "¼": r"\frac{1}{4}",
    },
    **{
        "¾": r"\frac{3}{4}",
        "²": "^{2}",
        "³": "^{3}",
        "\u00a0": " ",
        "\u202f": " ",
        "\u2009": " ",
        "…": r"\ldots ",
    },
}
_SPACES = re.compile(r"(?<!\\)\\[,;:! ]|~|\\quad|\\qquad|\\displaystyle|\\textstyle|\\limits")
_OPENING, _CLOSING = "([{" + SET_OPEN, ")]}" + SET_CLOSE
_BRACKET_OR_COMMA = re.compile(f"[{re.escape(_OPENING + _CLOSING)},]")
_TEXT_COMMAND = re.compile(
    r"\\(?:text|textnormal|textrm|mathrm|textbf|textit|mbox|operatorname)\s*\{((?:[^{}]|\^\{\d\})*)\}"
)
_IN_TEXT = re.compile(f"{UNIT_OPEN}([^{UNIT_OPEN}{UNIT_CLOSE}]*){UNIT_CLOSE}")
_DEGREES = re.compile(r"(?<=[\d})])\s*\^\s*\{?\s*\\circ\s*\}?$")
# The letters e and i are constants, which have a value before they are rounded.
_ROUNDED = re.compile(r"^([A-Za-df-hj-z])\s*\\approx(?![a-zA-Z])")
_MATRIX = re.compile(r"\\begin\{([pbvB]?matrix|array)\}(?:\{[^}]*\})?(.*)\\end\{\1\}", re.DOTALL)


def normalize(text: str) -> str:
    """Replace equivalent notations by one spelling."""
    for old, new in _SPELLINGS.items():
        text = text.replace(old, new)
    text = text.replace(r"\{", SET_OPEN).replace(r"\}", SET_CLOSE)
    text = re.sub(r"\\lbrace\b", SET_OPEN, re.sub(r"\\rbrace\b", SET_CLOSE, text))
    text = re.sub(r"\\(?:left|right|[bB]igg?[lr]?)(?![a-zA-Z])\.?", "", text)
    text = re.sub(r"\\(?:emptyset|varnothing)\b", SET_OPEN + SET_CLOSE, text)
    if re.match(r"\s*[+-]?\$[\d.]", text) and text.count("$") == 1:
        text = text.replace("$", r"\$")  # money; two would be mathematics
    text = text.replace(r"\$", MONEY).replace(r"\%", "%").replace("{,}", ",").replace(r"\!", "")
    text = re.sub(r"(?<![\\A-Za-z])pi(?![A-Za-z])", r"\\pi ", text)
    text = re.sub(r"\\lt\b", "<", re.sub(r"\\gt\b", ">", text))
    text = _brace_arguments(re.sub(r"\\[dtc]frac", r"\\frac", text))
    text = re.sub(r"\^\s*(\\frac\s*\{[^{}]*\}\s*\{[^{}]*\})", r"^{\1}", text)
    text = re.sub(r"\\(?:leq|leqslant)\b", r"\\le", re.sub(r"\\(?:geq|geqslant)\b", r"\\ge", text))
    text = re.sub(r"\\math(?:bf|it|bb|cal|sf)\s*\{([^{}]*)\}", r"\1", text)
    text = _TEXT_COMMAND.sub(_text_command, text)
    text = re.sub(r"\\[()\[\]]", " ", text)
    text = re.sub(
        r"\s+", " ", _SPACES.sub(" ", text)
    )  # before patterns that match spaces in several places
    text = re.sub(
        r"(\d)\s*\^\s*\{?\s*\\circ\s*\}?\s*(?=$|,)", rf"\1 {UNIT_OPEN}degrees{UNIT_CLOSE}", text
    )
    text = re.sub(r"(\d) i\b(?! ?\\)", r"\1i", text).replace("$", " ")
    text = re.sub(r"\s+", " ", text).strip().removeprefix(r"\approx ")
    return text.rstrip(".,;\\ ").strip()


_COMMAND = re.compile(r"\\(frac|sqrt)(?![a-zA-Z])(?:\s*\[[^\[\]]*\])?")
# One letter, digit or command without arguments of its own.
_UNBRACED = re.compile(r"\\(?!frac|sqrt|binom|overline|bar|hat|vec)[a-zA-Z]+|[a-zA-Z\d]")


def _brace_arguments(text: str) -> str:
    """Add the braces of \\frac\\pi2, as TeX reads it: \\frac{\\pi}{2}."""
    closing = _brackets(text)[0]
    pieces: list[tuple[int, str]] = []  # where each brace belongs
    for command in _COMMAND.finditer(text):
        position = command.end()
        for _ in range(2 if command[1] == "frac" else 1):
            while text[position : position + 1].isspace():
                position += 1
            if position in closing and text[position] == "{":
                position = closing[position] + 1
            elif argument := _UNBRACED.match(text, position):
                position = argument.end()
                pieces += [(argument.start(), "{"), (position, "}")]
            else:
                break
    start, out = 0, ""
    for position, brace in sorted(pieces, key=lambda piece: piece[0]):
        out += text[start:position] + brace
        start = position
    return out + text[start:]


def _text_command(match: re.Match[str]) -> str:
    inner = match[1].strip()
    if inner.lower() in ("or", "and"):
        return f" {inner.lower()} "
    if re.fullmatch(r"(?:e|i|\\pi)(?:\^.*)?", inner):  # constants in roman type
        return f" {inner} "
    return f" {UNIT_OPEN}{inner}{UNIT_CLOSE} " if inner else " "


def balanced(text: str) -> bool:
    """Do the grouping braces match? Brackets need not: half-open intervals."""
    depth = 0
    for character in text:
        depth += (character == "{") - (character == "}")
        if depth < 0:
            return False
    return depth == 0


def parse_answer(text: str) -> Answer | None:
    """The parsed answer; None if there is none."""
    text = normalize(text) if len(text) <= MAX_CHARACTERS else ""
    if (
        not text
        or len(text) > MAX_CHARACTERS
        or not balanced(text)
        or not re.search(rf"[\w\\{SET_OPEN}]", text)
    ):
        return None
    return _parse(text, depth=0)


def _parse(text: str, depth: int) -> Answer | None:
    text = _strip_brackets(text.strip())
    if whole := _IN_TEXT.fullmatch(text):  # \text{36 apples}
        text = whole[1].strip()
    if not text or depth > 8:
        return None
    text = _ROUNDED.sub(r"\1=", text, count=1)
    interval = _interval(text, depth)
    if interval is not None:
        return interval
    assignment = re.fullmatch(
        r"([A-Za-z](?:_\{?\w+\}?)?(?:\([a-z]\))?|\([a-z](?:, ?[a-z])+\))\s*(?:=|\\in\b)\s*([^=]+)",
        text,
    )
    if assignment:
        value = _parse(assignment[2], depth + 1)
        return None if value is None else Assignment(assignment[1], value)
    matrix = _MATRIX.fullmatch(text)
    if matrix:
        return _matrix(matrix[2], depth)
    pieces = _split(text, r"\cup")
    if len(pieces) > 1:
        return _item_list(pieces, depth, None)
    if (
        text[0] in "([" + SET_OPEN
        and text[-1] in ")]" + SET_CLOSE
        and _brackets(text)[0].get(0) == len(text) - 1
    ):
        items = _split(text[1:-1], ",")
        if len(items) > 1 or text[0] == SET_OPEN:
            return _item_list(items, depth, text[0] + text[-1])
    number = parse_number(text)
    if number is not None:
        return number
    return _parse_list(text, depth)


_OPENING_BRACKET = {"<": "(", r"\le": "["}
_MIRRORED = {">": "<", r"\ge": r"\le"}
_SIGN = r"\s*(<|>|\\le(?![a-z])|\\ge(?![a-z]))\s*"


def _interval(text: str, depth: int) -> Answer | None:
    """x < 3, 3 > x and 0 <= x < 3 as intervals."""
    both = re.fullmatch(rf"([^<>=]+?){_SIGN}([A-Za-z]){_SIGN}([^<>=]+)", text)
    if both and (both[2] in _OPENING_BRACKET) == (both[4] in _OPENING_BRACKET):
        low, first, name, second, high = both.groups()
        if first in _MIRRORED:
            low, first, second, high = high, _MIRRORED[second], _MIRRORED[first], low
        return _interval_answer(
            name, _OPENING_BRACKET[first], low, high, _OPENING_BRACKET[second], depth
        )
    if match := re.fullmatch(rf"([A-Za-z]){_SIGN}([^<>=]+)", text):
        name, sign, bound = match.groups()
    elif match := re.fullmatch(rf"([^<>=]+?){_SIGN}([A-Za-z])", text):
        reversed_signs = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le"}
        name, sign, bound = match[3], reversed_signs[match[2]], match[1]
    else:
        return None
    if re.search(
        r"(?<![\\A-Za-z])[A-Za-z](?![A-Za-z])|\\le|\\ge", bound
    ):  # x < y is not an interval
        return None
    if sign in _OPENING_BRACKET:
        return _interval_answer(name, "(", r"-\infty", bound, _OPENING_BRACKET[sign], depth)
    return _interval_answer(name, _OPENING_BRACKET[_MIRRORED[sign]], bound, r"\infty", "(", depth)


def _interval_answer(
    name: str, opening: str, low: str, high: str, closing: str, depth: int
) -> Answer | None:
    interval = _item_list([low, high], depth, opening + {"(": ")", "[": "]"}[closing])
    return None if interval is None else Assignment(name, interval)


def _parse_list(text: str, depth: int) -> Answer | None:
    items = [
        item
        for part in re.split(r"\s(?:or|and)\s|;", text)
        for item in _split(part, ",")
        if item.strip()
    ]
    if len(items) > 1:
        return _item_list(items, depth, "")
    ratio = text.split(":")
    if len(ratio) > 1 and all(part.strip() for part in ratio):
        return _item_list(ratio, depth, ":")
    signs = re.fullmatch(r"(.*?)\\pm\s*(.+)", text)
    if signs and text.count(r"\pm") <= MAX_PLUS_MINUS:
        head = signs[1].strip()
        return _item_list(
            [f"{head}{'+' if head else ''}{signs[2]}", f"{head}-{signs[2]}"], depth, ""
        )
    words = re.sub(f"[{UNIT_OPEN}{UNIT_CLOSE}]", " ", text).strip()
    if re.fullmatch(r"[A-Za-z][A-Za-z' -]+", words):
        return Text(" ".join(words.split()))
    if re.fullmatch(r"\(?\s*[A-Z]\s*\)?", words):  # a choice
        return Text(words.strip("() "))
    latex, unit = split_expression_unit(text)
    return Expression(re.sub(f"[{UNIT_OPEN}{UNIT_CLOSE}{MONEY}€£¥]", " ", latex).strip(), unit)


def _item_list(items: list[str], depth: int, brackets: str | None) -> Answer | None:
    parsed = tuple(item for item in (_parse(text, depth + 1) for text in items) if item is not None)
    if len(parsed) < len(items):
        return (
            ItemList(brackets, ()) if brackets == SET_OPEN + SET_CLOSE and items == [""] else None
        )
    return Union(parsed) if brackets is None else ItemList(brackets, parsed)


def _matrix(body: str, depth: int) -> Answer | None:
    rows = [
        [_parse(cell, depth + 1) for cell in row.split("&")]
        for row in re.split(r"\\\\", body)
        if row.strip()
    ]
    if not rows or any(cell is None for row in rows for cell in row):
        return None
    return Matrix(tuple(tuple(cell for cell in row if cell is not None) for row in rows))


def _strip_brackets(text: str) -> str:
    """Remove braces or parentheses around the whole text, unless they hold a list."""
    closing, with_commas = _brackets(text)
    first, last = 0, len(text) - 1
    while first < last and text[first] + text[last] in ("{}", "()") and closing.get(first) == last:
        if text[first] == "(" and first in with_commas:
            break
        inner = text[first + 1 : last]
        first, last = last - len(inner.lstrip()), first + len(inner.rstrip())
    return text[first : last + 1]


def _brackets(text: str) -> tuple[dict[int, int], set[int]]:
    """Where each bracket is closed, and which brackets directly hold commas."""
    closing: dict[int, int] = {}
    with_commas: set[int] = set()
    open_brackets: list[int] = []
    for match in _BRACKET_OR_COMMA.finditer(text):
        if match[0] in _OPENING:
            open_brackets.append(match.start())
        elif open_brackets and match[0] == ",":
            with_commas.add(open_brackets[-1])
        elif open_brackets:
            closing[open_brackets.pop()] = match.start()
    return closing, with_commas


def _split(text: str, mark: str) -> list[str]:
    """Split at every `mark` outside of brackets."""
    parts, depth, start, index = [], 0, 0, 0
    while index < len(text):
        depth += (text[index] in _OPENING) - (text[index] in _CLOSING)
        if depth == 0 and text.startswith(mark, index):
            parts.append(text[start:index])
            start = index = index + len(mark)
        else:
            index += 1
    return [part.strip() for part in [*parts, text[start:]]]


_DIGITS = r"(?:\d{1,3}(?:,\d{3})+|\d{1,3}(?: \d{3})+|\d+)"
_DECIMAL = rf"(?:{_DIGITS}(?:\.\d*)?|\.\d+)"
_FRACTION = re.compile(
    r"\\frac\s*(?:\{\s*(-?[\d., ]+)\s*\}|(\d))\s*(?:\{\s*(-?[\d., ]+)\s*\}|(\d))"
)
_SLASHED = re.compile(rf"({_DECIMAL}) ?/ ?({_DECIMAL})")
_POWER = re.compile(
    rf"({_DECIMAL})\s*(?:(?:\\times|\\cdot|\*)\s*(?:10|\{{10\}})\s*\^\s*(?:\{{\s*([+-]?\d+)\s*\}}|(\d))|[eE]([+-]?\d+))"
)
_MAX_EXPONENT = 400


def parse_number(text: str) -> Number | None:
    """A number with its sign, currency, thousands separators, percent sign and unit."""
    if len(text) > MAX_CHARACTERS:
        return None
    degrees = _DEGREES.search(text.rstrip())
    body, unit = (
        split_unit(text.strip())
        if degrees is None
        else (text[: degrees.start()].strip(), "degrees")
    )
    currency = re.match(rf"^([+-]?)\s*(?:US)?[{MONEY}€£¥]\s*", body)
    if currency and currency.end() > len(currency[1]):
        body, unit = currency[1] + body[currency.end() :], unit or "dollars"
    percent = body.endswith("%") or unit == "%"
    body, unit = body.rstrip("% "), "" if unit == "%" else unit
    sign = -1 if body.startswith("-") else 1
    body = body[1:].strip() if body[:1] in ("-", "+") else body
    parsed = _parse_unsigned(_strip_brackets(body))
    return None if parsed is None else Number(sign * parsed[0], parsed[1], percent, unit)


def _parse_unsigned(text: str) -> tuple[Fraction, bool] | None:
    if re.fullmatch(_DECIMAL, text):
        return _parse_decimal(text), True
    power = _POWER.fullmatch(text)
    if power:
        exponent = int(power[2] or power[3] or power[4])
        return (
            (_parse_decimal(power[1]) * Fraction(10) ** exponent, True)
            if abs(exponent) <= _MAX_EXPONENT
            else None
        )
    whole = Fraction(0)
    mixed = re.match(r"(\d+)(?: |(?=\\frac))\s*(.+)", text)
    if mixed and (_FRACTION.fullmatch(mixed[2]) or _SLASHED.fullmatch(mixed[2])):
        whole, text = Fraction(mixed[1]), mixed[2]
    match = _FRACTION.fullmatch(text) or _SLASHED.fullmatch(text)
    if match is None:
        return None
    top, bottom = [part for part in match.groups() if part is not None]
    try:
        value = _parse_signed(top) / _parse_signed(bottom)
    except (ValueError, ZeroDivisionError):
        return None
    return whole + value, False


def _parse_signed(text: str) -> Fraction:
    text = text.strip()
    return -_parse_decimal(text[1:]) if text.startswith("-") else _parse_decimal(text)


def _parse_decimal(text: str) -> Fraction:
    return Fraction(text.replace(",", "").replace(" ", "").rstrip(".") or "0")
