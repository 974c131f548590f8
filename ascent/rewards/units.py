"""Units behind numbers and expressions: split off and named in one way.

Worked example: `5 \\text{ cm}^2` and `5 square centimeters` are both 5 with the unit centimeters^2.
"""

from __future__ import annotations

import re

UNIT_OPEN, UNIT_CLOSE = "⟨", "⟩"  # \text{...}, distinct from variables
_UNITS = {
    **{"dollar": "dollars", "usd": "dollars", "bucks": "dollars", "cent": "cents", "euro": "euros"},
    **{
        "cm": "centimeters",
        "mm": "millimeters",
        "km": "kilometers",
        "metre": "meters",
        "metres": "meters",
    },
    **{
        "kg": "kilograms",
        "kgs": "kilograms",
        "gram": "grams",
        "lb": "pounds",
        "lbs": "pounds",
        "oz": "ounces",
    },
    **{
        "ft": "feet",
        "foot": "feet",
        "in": "inches",
        "inch": "inches",
        "yd": "yards",
        "mi": "miles",
    },
    **{
        "hr": "hours",
        "hrs": "hours",
        "h": "hours",
        "min": "minutes",
        "mins": "minutes",
        "sec": "seconds",
    },
    **{
        "degree": "degrees",
        "deg": "degrees",
        "ml": "milliliters",
        "m": "meters",
        "g": "grams",
        "s": "seconds",
    },
    **{
        "liter": "liters",
        "litre": "liters",
        "litres": "liters",
        "year": "years",
        "yr": "years",
        "yrs": "years",
    },
    **{"centimetre": "centimeters", "centimetres": "centimeters"},
    **{"mph": "miles per hours", "percent": "%"},
}
# Words that make another number of it, wherever they stand.
_NO_UNITS = {
    *(
        "or",
        "and",
        "to",
        "mod",
        "modulo",
        "choose",
        "hundred",
        "thousand",
        "million",
        "billion",
        "trillion",
    )
}
# These only right behind the number: 18 dollars over budget are 18. Not times, dozen, seconds and quarters: these are
# also counted.
_NO_FIRST_WORDS = {
    *("base", "plus", "minus", "over", "divided", "squared", "cubed", "factorial", r"\pi"),
    *("sin", "cos", "tan", "cot", "csc", "log", "ln", "exp", "sqrt", "infinity"),
    *(
        "half",
        "halves",
        "thirds",
        "fourths",
        "fifths",
        "sixths",
        "sevenths",
        "eighths",
        "ninths",
        "tenths",
    ),
    *("hundredths", "thousandths"),
}
# Behind an expression only these are units without \text: other letters are variables.
_BARE = sorted(
    {
        word
        for word in (*_UNITS, *_UNITS.values(), "unit", "units", "radians")
        if len(word) > 1 and word != "%"
    }
)
_POWER = r"\s*(?:\^\s*\{?\s*([23])\s*\}?)?"
_POWER_BEHIND = re.compile(r"(.*[^\s^])\s*\^\s*\{?([23])\}?")
_MAX_UNIT = 100  # characters
_TEXT = rf"{UNIT_OPEN}([^{UNIT_OPEN}{UNIT_CLOSE}]*){UNIT_CLOSE}"
_AFTER_NUMBER = re.compile(
    rf"(.*[\d.}}])\s*(?:{_TEXT}|\s((?:[A-Za-z]{{2,}}|m|g|s|h)(?: [A-Za-z]+)*)){_POWER}"
)
_AFTER_EXPRESSION = re.compile(
    rf"(.*?[^\s=+*/^_-])\s*(?:{_TEXT}|(?<=[\s\d}}])((?:(?:square|sq|cubic) )?(?:{'|'.join(_BARE)}))){_POWER}"
)


def split_unit(text: str) -> tuple[str, str]:
    """ "5 \\text{ cm}^2" -> ("5", "centimeters^2"): a known unit, or any words, right after a number."""
    return _split(_AFTER_NUMBER.fullmatch(text), text)


def split_expression_unit(text: str) -> tuple[str, str]:
    """ "2\\pi \\text{ cm}^2" -> ("2\\pi", "centimeters^2"): words in \\text, or a known unit, at the end."""
    return _split(_AFTER_EXPRESSION.fullmatch(text), text)


def split_bare_unit(text: str, unit: str) -> str:
    """ "9\\pi apples" -> "9\\pi" if the unit is apples: words without \\text that are the other answer's unit."""
    for start in re.finditer(r"(?<=[\s\d}])[A-Za-z]", text[-_MAX_UNIT:]):
        position = max(len(text) - _MAX_UNIT, 0) + start.start()
        body = text[:position].rstrip()
        if body and body[-1] not in "=+*/^_-" and _unit_name(text[position:]) == unit:
            return body
    return text


def _split(match: re.Match[str] | None, text: str) -> tuple[str, str]:
    if match is None:
        return text, ""
    unit = _unit_name(match[2] if match[2] is not None else match[3], match[4])
    return (match[1], unit) if unit else (text, "")


def _unit_name(text: str, power: str | None = None) -> str:
    """The unit that these words are; "" for words that make another number of it."""
    if inside := _POWER_BEHIND.fullmatch(text.strip()):
        text, power = inside[1], inside[2]
    words = text.lower().strip(". ").split()
    squared = {"squared": "2", "cubed": "3"}.get(words[-1]) if len(words) > 1 else None
    words = words[:-1] if squared else words
    if (
        not words
        or words[0] in _NO_FIRST_WORDS
        or words[:2] == ["in", "base"]
        or not _NO_UNITS.isdisjoint(words)
    ):
        return ""
    square = (
        {"square": "2", "sq": "2", "sq.": "2", "cubic": "3"}.get(words[0])
        if len(words) > 1
        else None
    )
    power = square or squared or power
    unit = " ".join(_plural_unit(word) for word in (words[1:] if square else words))
    return f"{unit}^{power}" if power else unit


def _plural_unit(word: str) -> str:
    """The unit's full name in the plural."""
    known = _UNITS.get(word, word)
    return (
        known
        if known.endswith("s") or known in ("feet", "%", "per")
        else _UNITS.get(f"{known}s", f"{known}s")
    )
