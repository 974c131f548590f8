"""A worker process that matches patterns and compares answers, one JSON line in, one out, so that it can be killed.

Both can take forever on adversarial text, and neither can be interrupted from another thread: a match holds the GIL,
and the alarm signals of math-verify do nothing outside the main thread.
"""

from __future__ import annotations

import json
import logging
import re
import resource
import sys
import warnings
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

from ascent.rewards.answers import parse_number
from ascent.rewards.equality import APPROX, TOLERANCE, BadGold, compare
from ascent.sandbox.pool import signal_ready

MEMORY_BYTES = 4 << 30
_DECIMAL = re.compile(r"-?\d*\.\d+")
# Power towers and factorials beyond any answer are not tried.
_TOO_LARGE = re.compile(r"\^\s*\{?\s*\d{5,}|\d{6,}\s*!|\^[^+]*\^[^+]*\^")


@lru_cache(maxsize=1024)  # a list may repeat an item
def symbolic(gold: str, answer: str) -> bool:
    """Equality by computer algebra; False if the answer cannot be parsed, BadGold if the gold cannot.

    Its time is exponential in the nesting of brackets: `compare` does not call it for `oversized` answers.
    """
    # Imported here: it takes a second, which pattern matching does not need.
    from math_verify import LatexExtractionConfig, parse, verify  # type: ignore[import-untyped]

    plain = LatexExtractionConfig(boxed_match_priority=-1)
    # units=True would delete variables: r^2 h would be r^2. Units were split off before.
    rules = [replace(plain, normalization_config=replace(plain.normalization_config, units=False))]
    gold_expressions = parse(f"${gold}$", rules, parsing_timeout=None, raise_on_error=False)
    gold_expressions = [each for each in gold_expressions if not isinstance(each, str)]
    if not gold_expressions:
        raise BadGold(f"gold {gold[:80]!r} cannot be read")
    if gold == answer:
        return True
    if _TOO_LARGE.search(answer):
        return False
    if APPROX in answer and APPROX not in gold:
        exact, _, rounded = answer.partition(APPROX)
        return symbolic(gold, exact.strip()) and _is_rounding(
            rounded, _constant(gold_expressions[0])
        )
    for decimal, other in ((answer, gold_expressions), (gold, None)):
        if _DECIMAL.fullmatch(decimal):
            exprs = other or parse(f"${answer}$", rules, parsing_timeout=None, raise_on_error=False)
            close = _is_close(Fraction(decimal), exprs)
            if close is not None:
                return close
    expressions = parse(f"${answer}$", rules, parsing_timeout=None, raise_on_error=False)
    expressions = [each for each in expressions if not isinstance(each, str)]
    if not expressions or not verify(
        gold_expressions, expressions, float_rounding=6, strict=True, timeout_seconds=None
    ):
        return False
    return not _differ_in_size(gold_expressions, expressions)


def _is_close(number: Fraction, expressions: list[Any]) -> bool | None:
    """A decimal against a closed form, with a relative tolerance: rounded to six places, 1e-8 would be 0."""
    value = next((value for each in expressions if (value := _constant(each)) is not None), None)
    return None if value is None else abs(value - number) <= TOLERANCE * abs(value)


def _differ_in_size(gold: list[Any], answer: list[Any]) -> bool:
    """Are these real constants of which none are close? math-verify takes any difference below 1e-15 for 0."""
    values, others = ([_constant(each) for each in expressions] for expressions in (gold, answer))
    return None not in values + others and not any(
        abs(a - b) <= TOLERANCE * abs(a)
        for a in values
        if a is not None
        for b in others
        if b is not None
    )


def _is_rounding(text: str, value: Fraction | None) -> bool:
    """Is this number within 1%, or less than one in its last place away?"""
    number = parse_number(text)
    if number is None or value is None:
        return False
    last_place = Fraction(1, 10 ** len(text.strip().partition(".")[2])) if number.terminating else 0
    return abs(number.value - value) < max(abs(value) / 100, last_place)


def _constant(expression: Any) -> Fraction | None:
    """The value of a real constant to 30 digits; None for anything else."""
    if (
        isinstance(expression, str)
        or not getattr(expression, "is_real", False)
        or expression.free_symbols
    ):
        return None
    try:
        return Fraction(str(expression.evalf(30)))
    except ValueError:  # not a number
        return None


def handle_job(job: dict[str, Any]) -> dict[str, Any]:
    if job["op"] == "match":
        return {"match": re.fullmatch(job["pattern"], job["text"], re.DOTALL) is not None}
    try:
        right, partial = compare(job["gold"], job["answer"] or "", symbolic)
    except BadGold as error:
        return {"unscored": "bad_gold", "detail": str(error)}
    except MemoryError:
        return {"unscored": "memory", "detail": "the comparison took too much memory"}
    return {"right": right, "share": partial}


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    logging.disable(logging.CRITICAL)  # math-verify logs every text it cannot read
    warnings.simplefilter("ignore")
    if sys.argv[1:] == ["mathematics"]:
        symbolic("x", "1+x")  # imports now, not within the first time limit
    signal_ready()
    for line in sys.stdin:
        print(json.dumps(handle_job(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
