"""Read a mathematical answer into something comparable: numbers exactly, lists and matrices by their items.

Nothing here evaluates anything; what is neither a number nor words stays an `Expression`, for the symbolic checker.
A text of more than LONGEST characters is no answer, so the time of reading one is bounded whatever a policy writes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

LONGEST = 2000  # below the 4,300 digits at which int() refuses, too
MOST_SIGNS = 4  # of plus or minus in one answer, which is read both ways at each of them
SET_OPEN, SET_CLOSE = "⦃", "⦄"  # \{ and \}, kept apart from grouping braces
MONEY = "＄"  # \\$, kept apart from the dollar signs around mathematics
UNIT_OPEN, UNIT_CLOSE = "⟨", "⟩"  # \text{...}, kept apart from variables


@dataclass(frozen=True)
class Number:
    """`terminating`: written as an integer or a decimal, so its value is exactly what was meant."""

    value: Fraction
    terminating: bool
    percent: bool = False
    unit: str = ""


@dataclass(frozen=True)
class Words:
    text: str


@dataclass(frozen=True)
class Expression:
    latex: str


@dataclass(frozen=True)
class Several:
    """Items between brackets. `brackets` is "" for a bare list and "⦃⦄" for a set: both without order."""

    brackets: str
    items: tuple[Answer, ...]


@dataclass(frozen=True)
class Union:
    pieces: tuple[Answer, ...]


@dataclass(frozen=True)
class Matrix:
    rows: tuple[tuple[Answer, ...], ...]


@dataclass(frozen=True)
class Named:
    """x = ...: the name may be left out, but not exchanged."""

    name: str
    value: Answer


Answer = Number | Words | Expression | Several | Union | Matrix | Named

_SAME = {
    **{"−": "-", "–": "-", "×": r"\times ", "·": r"\cdot ", "÷": "/", "π": r"\pi ", "∞": r"\infty ", "≤": r"\le "},
    **{"≥": r"\ge ", "≠": r"\ne ", "∪": r"\cup ", "°": r"^\circ ", "½": r"\frac{1}{2}", "¼": r"\frac{1}{4}"},
    **{"¾": r"\frac{3}{4}", "²": "^{2}", "³": "^{3}", "\u00a0": " ", "\u202f": " ", "\u2009": " ", "…": r"\ldots "},
}
_SPACES = re.compile(r"(?<!\\)\\[,;:! ]|~|\\quad|\\qquad|\\displaystyle|\\textstyle|\\limits")
_OPENING, _CLOSING = "([{" + SET_OPEN, ")]}" + SET_CLOSE
_BRACKET_OR_COMMA = re.compile(f"[{re.escape(_OPENING + _CLOSING)},]")
_MATRIX = re.compile(r"\\begin\{([pbvB]?matrix|array)\}(?:\{[^}]*\})?(.*)\\end\{\1\}", re.DOTALL)


def normalized(text: str) -> str:
    """One spelling for what is typeset differently and means the same."""
    for old, new in _SAME.items():
        text = text.replace(old, new)
    text = text.replace(r"\{", SET_OPEN).replace(r"\}", SET_CLOSE)
    text = re.sub(r"\\lbrace\b", SET_OPEN, re.sub(r"\\rbrace\b", SET_CLOSE, text))
    text = re.sub(r"\\(?:left|right|[bB]igg?[lr]?)(?![a-zA-Z])\.?", "", text)
    text = re.sub(r"\\(?:emptyset|varnothing)\b", SET_OPEN + SET_CLOSE, text)
    if re.match(r"\s*[+-]?\$[\d.]", text) and text.count("$") == 1:
        text = text.replace("$", r"\$")  # money; two would be mathematics
    text = text.replace(r"\$", MONEY).replace(r"\%", "%").replace("{,}", ",").replace(r"\!", "")
    text = re.sub(r"(\d) i\b", r"\1i", text)
    text = re.sub(r"\\lt\b", "<", re.sub(r"\\gt\b", ">", text))
    text = re.sub(r"\\[dtc]frac", r"\\frac", text)
    text = re.sub(r"\\(?:leq|leqslant)\b", r"\\le", re.sub(r"\\(?:geq|geqslant)\b", r"\\ge", text))
    text = re.sub(r"\\math(?:bf|it|bb|cal|sf)\s*\{([^{}]*)\}", r"\1", text)
    text = re.sub(r"\\(?:text|mathrm|textbf|textit|mbox|operatorname)\s*\{([^{}]*)\}", _as_text, text)
    text = re.sub(r"\\[()\[\]]", " ", text)
    text = re.sub(r"\s+", " ", _SPACES.sub(" ", text))  # before patterns that meet space in several places
    text = re.sub(r"(\d)\s*\^\s*\{?\s*\\circ\s*\}?\s*(?=$|,)", rf"\1 {UNIT_OPEN}degrees{UNIT_CLOSE}", text)
    text = text.replace("$", " ")
    return re.sub(r"\s+", " ", text).strip().rstrip(".,;\\ ").strip()


def _as_text(match: re.Match[str]) -> str:
    inner = match[1].strip()
    if inner.lower() in ("or", "and"):
        return f" {inner.lower()} "
    return f" {UNIT_OPEN}{inner}{UNIT_CLOSE} " if inner else " "


def balanced(text: str) -> bool:
    """Do the grouping braces match? (Brackets may not: half-open intervals.)"""
    depth = 0
    for letter in text:
        depth += (letter == "{") - (letter == "}")
        if depth < 0:
            return False
    return depth == 0


def read(text: str) -> Answer | None:
    """The answer behind a text; None when there is none in it."""
    text = normalized(text) if len(text) <= LONGEST else ""
    if not text or len(text) > LONGEST or not balanced(text) or not re.search(rf"[\w\\{SET_OPEN}]", text):
        return None
    return _read(text, depth=0)


def _read(text: str, depth: int) -> Answer | None:
    text = _unwrapped(text.strip())
    if not text or depth > 8:
        return None
    between = _interval(text, depth)
    if between is not None:
        return between
    named = re.fullmatch(
        r"([A-Za-z](?:_\{?\w+\}?)?(?:\([a-z]\))?|\([a-z](?:, ?[a-z])+\))\s*(?:=|\\in\b)\s*([^=]+)", text
    )
    if named:
        value = _read(named[2], depth + 1)
        return None if value is None else Named(named[1], value)
    matrix = _MATRIX.fullmatch(text)
    if matrix:
        return _matrix(matrix[2], depth)
    pieces = _split(text, r"\cup")
    if len(pieces) > 1:
        return _several(pieces, depth, None)
    if text[0] in "([" + SET_OPEN and text[-1] in ")]" + SET_CLOSE and _brackets(text)[0].get(0) == len(text) - 1:
        items = _split(text[1:-1], ",")
        if len(items) > 1 or text[0] == SET_OPEN:
            return _several(items, depth, text[0] + text[-1])
    number = read_number(text)
    if number is not None:
        return number
    return _listed(text, depth)


_BELOW = {"<": "(", r"\le": "["}
_FLIPPED = {">": "<", r"\ge": r"\le"}
_SIGN = r"\s*(<|>|\\le(?![a-z])|\\ge(?![a-z]))\s*"


def _interval(text: str, depth: int) -> Answer | None:
    """x < 3, 3 > x and 0 <= x < 3 as the intervals they are."""
    both = re.fullmatch(rf"([^<>=]+?){_SIGN}([A-Za-z]){_SIGN}([^<>=]+)", text)
    if both and (both[2] in _BELOW) == (both[4] in _BELOW):
        low, first, name, second, high = both.groups()
        if first in _FLIPPED:
            low, first, second, high = high, _FLIPPED[second], _FLIPPED[first], low
        return _ranging(name, _BELOW[first], low, high, _BELOW[second], depth)
    one = re.fullmatch(rf"([A-Za-z]){_SIGN}([^<>=]+)", text)
    if one is None:
        other = re.fullmatch(rf"([^<>=]+?){_SIGN}([A-Za-z])", text)
        if other is None:
            return None
        sides = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le"}
        name, sign, bound = other[3], sides[other[2]], other[1]
    else:
        name, sign, bound = one.groups()
    if re.search(r"(?<![\\A-Za-z])[A-Za-z](?![A-Za-z])|\\le|\\ge", bound):  # x < y is no interval
        return None
    if sign in _BELOW:
        return _ranging(name, "(", r"-\infty", bound, _BELOW[sign], depth)
    return _ranging(name, _BELOW[_FLIPPED[sign]], bound, r"\infty", "(", depth)


def _ranging(name: str, opening: str, low: str, high: str, closing: str, depth: int) -> Answer | None:
    found = _several([low, high], depth, opening + {"(": ")", "[": "]"}[closing])
    return None if found is None else Named(name, found)


def _listed(text: str, depth: int) -> Answer | None:
    items = [item for part in re.split(r"\s(?:or|and)\s|;", text) for item in _split(part, ",") if item.strip()]
    if len(items) > 1:
        return _several(items, depth, "")
    ratio = text.split(":")
    if len(ratio) > 1 and all(part.strip() for part in ratio):
        return _several(ratio, depth, ":")
    signs = re.fullmatch(r"(.*?)\\pm\s*(.+)", text)
    if signs and text.count(r"\pm") <= MOST_SIGNS:
        head = signs[1].strip()
        return _several([f"{head}{'+' if head else ''}{signs[2]}", f"{head}-{signs[2]}"], depth, "")
    words = re.sub(f"[{UNIT_OPEN}{UNIT_CLOSE}]", " ", text)
    if re.fullmatch(r"[A-Za-z][A-Za-z' -]*", words.strip()) and (len(words.split()) > 1 or len(words.strip()) > 1):
        return Words(" ".join(words.split()))
    if re.fullmatch(r"\(?\s*[A-Z]\s*\)?", words.strip()):  # a choice
        return Words(words.strip("() "))
    return Expression(re.sub(f"[{UNIT_OPEN}{UNIT_CLOSE}]", " ", text).strip())


def _several(items: list[str], depth: int, brackets: str | None) -> Answer | None:
    read_items = [_read(item, depth + 1) for item in items]
    if any(item is None for item in read_items):
        return Several(brackets, ()) if brackets == SET_OPEN + SET_CLOSE and items == [""] else None
    found = tuple(item for item in read_items if item is not None)
    return Union(found) if brackets is None else Several(brackets, found)


def _matrix(body: str, depth: int) -> Answer | None:
    rows = [[_read(cell, depth + 1) for cell in row.split("&")] for row in re.split(r"\\\\", body) if row.strip()]
    if not rows or any(cell is None for row in rows for cell in row):
        return None
    return Matrix(tuple(tuple(cell for cell in row if cell is not None) for row in rows))


def _unwrapped(text: str) -> str:
    """Without braces or parentheses around all of one thing."""
    closing, several = _brackets(text)
    first, last = 0, len(text) - 1
    while first < last and text[first] + text[last] in ("{}", "()") and closing.get(first) == last:
        if text[first] == "(" and first in several:
            break
        inner = text[first + 1 : last]
        first, last = last - len(inner.lstrip()), first + len(inner.rstrip())
    return text[first : last + 1]


def _brackets(text: str) -> tuple[dict[int, int], set[int]]:
    """Where each bracket is closed, and which ones hold commas that stand in no other."""
    closing: dict[int, int] = {}
    several: set[int] = set()
    waiting: list[int] = []
    for match in _BRACKET_OR_COMMA.finditer(text):
        if match[0] in _OPENING:
            waiting.append(match.start())
        elif waiting and match[0] == ",":
            several.add(waiting[-1])
        elif waiting:
            closing[waiting.pop()] = match.start()
    return closing, several


def _split(text: str, mark: str) -> list[str]:
    """At every `mark` outside of brackets."""
    parts, depth, start, place = [], 0, 0, 0
    while place < len(text):
        letter = text[place]
        depth += (letter in _OPENING) - (letter in _CLOSING)
        if depth == 0 and text.startswith(mark, place):
            parts.append(text[start:place])
            place += len(mark)
            start = place
            continue
        place += 1
    return [part.strip() for part in [*parts, text[start:]]]


_DIGITS = r"(?:\d{1,3}(?:,\d{3})+|\d{1,3}(?: \d{3})+|\d+)"
_DECIMAL = rf"(?:{_DIGITS}(?:\.\d*)?|\.\d+)"
_FRACTION = re.compile(r"\\frac\s*(?:\{\s*(-?[\d., ]+)\s*\}|(\d))\s*(?:\{\s*(-?[\d., ]+)\s*\}|(\d))")
_SLASHED = re.compile(rf"({_DECIMAL}) ?/ ?({_DECIMAL})")
_POWER = re.compile(
    rf"({_DECIMAL})\s*(?:(?:\\times|\\cdot|\*)\s*10\s*\^\s*(?:\{{\s*([+-]?\d+)\s*\}}|(\d))|[eE]([+-]?\d+))"
)
_LARGEST_POWER = 400
_UNITS = {
    **{"dollar": "dollars", "usd": "dollars", "bucks": "dollars", "cent": "cents", "euro": "euros"},
    **{"cm": "centimeters", "mm": "millimeters", "km": "kilometers", "metre": "meters", "metres": "meters"},
    **{"kg": "kilograms", "kgs": "kilograms", "gram": "grams", "lb": "pounds", "lbs": "pounds", "oz": "ounces"},
    **{"ft": "feet", "foot": "feet", "in": "inches", "inch": "inches", "yd": "yards", "mi": "miles"},
    **{"hr": "hours", "hrs": "hours", "h": "hours", "min": "minutes", "mins": "minutes", "sec": "seconds"},
    **{"degree": "degrees", "deg": "degrees", "ml": "milliliters", "m": "meters", "g": "grams", "s": "seconds"},
    **{"mph": "miles per hours", "percent": "%"},
}  # fmt: skip


def read_number(text: str) -> Number | None:
    """A number with what may stand around it: a sign, a currency, thousands, a percent sign, a unit."""
    if len(text) > LONGEST:
        return None
    body, unit = _without_unit(text.strip())
    currency = re.match(rf"^([+-]?)\s*(?:US)?[{MONEY}€£¥]\s*", body)
    if currency and currency.end() > len(currency[1]):
        body, unit = currency[1] + body[currency.end() :], unit or "dollars"
    percent = body.endswith("%") or unit == "%"
    body, unit = body.rstrip("% "), "" if unit == "%" else unit
    sign = -1 if body.startswith("-") else 1
    body = body[1:].strip() if body[:1] in ("-", "+") else body
    found = _unsigned(_unwrapped(body))
    return None if found is None else Number(sign * found[0], found[1], percent, unit)


def _without_unit(text: str) -> tuple[str, str]:
    """ "5 \\text{ cm}^2" -> ("5", "centimeters^2"): a known unit, or any words, right after a number."""
    match = re.fullmatch(
        rf"(.*[\d.}}])\s*(?:{UNIT_OPEN}([^{UNIT_CLOSE}]*){UNIT_CLOSE}|\s((?:[A-Za-z]{{2,}}|m|g|s|h)(?: [A-Za-z]+)*))"
        r"\s*(?:\^\s*\{?\s*([23])\s*\}?)?",
        text,
    )
    if match is None:
        return text, ""
    words = (match[2] if match[2] is not None else match[3]).lower().strip(". ").split()
    if any(word in ("or", "and", "to", "mod", "choose") for word in words):
        return text, ""
    square = {"square": "2", "sq": "2", "cubic": "3"}.get(words[0]) if len(words) > 1 else None
    power = square or match[4]
    named = " ".join(_singular(word) for word in (words[1:] if square else words))
    return match[1], f"{named}^{power}" if power else named


def _singular(word: str) -> str:
    """The plural, in fact, which most units are written in."""
    known = _UNITS.get(word, word)
    return known if known.endswith("s") or known in ("feet", "%", "per") else _UNITS.get(f"{known}s", f"{known}s")


def _unsigned(text: str) -> tuple[Fraction, bool] | None:
    if re.fullmatch(_DECIMAL, text):
        return _decimal(text), True
    power = _POWER.fullmatch(text)
    if power:
        exponent = int(power[2] or power[3] or power[4])
        return (_decimal(power[1]) * Fraction(10) ** exponent, True) if abs(exponent) <= _LARGEST_POWER else None
    whole = Fraction(0)
    mixed = re.match(r"(\d+)(?: |(?=\\frac))\s*(.+)", text)
    if mixed and (_FRACTION.fullmatch(mixed[2]) or _SLASHED.fullmatch(mixed[2])):
        whole, text = Fraction(mixed[1]), mixed[2]
    match = _FRACTION.fullmatch(text) or _SLASHED.fullmatch(text)
    if match is None:
        return None
    top, bottom = [part for part in match.groups() if part is not None]
    try:
        value = _signed(top) / _signed(bottom)
    except (ValueError, ZeroDivisionError):
        return None
    return whole + value, False


def _signed(text: str) -> Fraction:
    text = text.strip()
    return -_decimal(text[1:]) if text.startswith("-") else _decimal(text)


def _decimal(text: str) -> Fraction:
    return Fraction(text.replace(",", "").replace(" ", "").rstrip(".") or "0")
