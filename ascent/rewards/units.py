"""Units behind numbers and expressions: split off and named in one way.

Worked example: `5 \\text{ cm}^2` and `5 square centimeters` are both 5 with the unit centimeters^2.
"""

from __future__ import annotations

import re

UNIT_OPEN, UNIT_CLOSE = "⟨", "⟩"  # \text{...}, distinct from variables
_UNITS = {
    **{"dollar": "dollars", "usd": "dollars", "bucks": "dollars", "cent": "cents", "euro": "euros"},
    **{"cm": "centimeters", "mm": "millimeters", "km": "kilometers", "metre": "meters", "metres": "meters"},
    **{"kg": "kilograms", "kgs": "kilograms", "gram": "grams", "lb": "pounds", "lbs": "pounds", "oz": "ounces"},
    **{"ft": "feet", "foot": "feet", "in": "inches", "inch": "inches", "yd": "yards", "mi": "miles"},
    **{"hr": "hours", "hrs": "hours", "h": "hours", "min": "minutes", "mins": "minutes", "sec": "seconds"},
    **{"degree": "degrees", "deg": "degrees", "ml": "milliliters", "m": "meters", "g": "grams", "s": "seconds"},
    **{"mph": "miles per hours", "percent": "%"},
}  # fmt: skip
# Words that make another number of it. Not times, dozen, seconds and quarters: these are also counted.
_NO_UNITS = {
    *("or", "and", "to", "mod", "modulo", "base", "choose", "plus", "minus", "over", "divided"),
    *("squared", "cubed", "factorial", "hundred", "thousand", "million", "billion", "trillion"),
    *("sin", "cos", "tan", "cot", "csc", "log", "ln", "exp", "sqrt", "infinity"),
    *("half", "halves", "thirds", "fourths", "fifths", "sixths", "sevenths", "eighths", "ninths", "tenths"),
    *("hundredths", "thousandths"),
}
# Behind an expression only these are units without \text: other letters are variables.
_BARE = sorted(
    {word for word in (*_UNITS, *_UNITS.values(), "unit", "units", "radians") if len(word) > 1 and word != "%"}
)
_POWER = r"\s*(?:\^\s*\{?\s*([23])\s*\}?)?"
_TEXT = rf"{UNIT_OPEN}([^{UNIT_OPEN}{UNIT_CLOSE}]*){UNIT_CLOSE}"
_AFTER_NUMBER = re.compile(rf"(.*[\d.}}])\s*(?:{_TEXT}|\s((?:[A-Za-z]{{2,}}|m|g|s|h)(?: [A-Za-z]+)*)){_POWER}")
_AFTER_EXPRESSION = re.compile(
    rf"(.*?[^\s=+*/^_-])\s*(?:{_TEXT}|(?<=[\s\d}}])((?:(?:square|sq|cubic) )?(?:{'|'.join(_BARE)}))){_POWER}"
)


def split_unit(text: str) -> tuple[str, str]:
    """ "5 \\text{ cm}^2" -> ("5", "centimeters^2"): a known unit, or any words, right after a number."""
    return _split(_AFTER_NUMBER.fullmatch(text), text)


def split_expression_unit(text: str) -> tuple[str, str]:
    """ "2\\pi \\text{ cm}^2" -> ("2\\pi", "centimeters^2"): words in \\text, or a known unit, at the end."""
    return _split(_AFTER_EXPRESSION.fullmatch(text), text)


def _split(match: re.Match[str] | None, text: str) -> tuple[str, str]:
    if match is None:
        return text, ""
    words = (match[2] if match[2] is not None else match[3]).lower().strip(". ").split()
    if not words or not _NO_UNITS.isdisjoint(words):
        return text, ""
    square = {"square": "2", "sq": "2", "sq.": "2", "cubic": "3"}.get(words[0]) if len(words) > 1 else None
    power = square or match[4]
    unit = " ".join(_plural_unit(word) for word in (words[1:] if square else words))
    return match[1], f"{unit}^{power}" if power else unit


def _plural_unit(word: str) -> str:
    """The unit's full name in the plural."""
    known = _UNITS.get(word, word)
    return known if known.endswith("s") or known in ("feet", "%", "per") else _UNITS.get(f"{known}s", f"{known}s")
