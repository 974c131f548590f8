"""A process that matches patterns and compares answers, one JSON line in, one out, so that it can be killed.

Both jobs can take for ever on a text chosen badly enough, and neither can be interrupted from another thread: a match
holds the interpreter's lock, and the alarm signals that math-verify relies on do nothing off the main thread.
"""

from __future__ import annotations

import json
import logging
import re
import resource
import sys
import warnings
from fractions import Fraction
from functools import lru_cache
from typing import Any

from ascent.rewards.equality import TOLERANCE, BadGold, compare
from ascent.sandbox.pool import ready

MEMORY = 4 << 30
_DECIMAL = re.compile(r"-?\d*\.\d+")
# Deeper towers and longer factorials than any answer needs are not even tried.
_HOPELESS = re.compile(r"\^\s*\{?\s*\d{5,}|\d{6,}\s*!|\^[^+]*\^[^+]*\^")


@lru_cache(maxsize=1024)  # a list may hold one item many times
def symbolic(gold: str, answer: str) -> bool:
    """Equal by computer algebra; an answer that cannot be read is not equal, a gold that cannot is BadGold.

    Its time grows exponentially with the depth of brackets: `compare` asks about no answer that is `oversized`.
    """
    # Here, not above: it costs a second that pattern matching need not pay.
    from math_verify import LatexExtractionConfig, parse, verify  # type: ignore[import-untyped]

    rules = [LatexExtractionConfig(boxed_match_priority=-1)]
    want = parse(f"${gold}$", rules, parsing_timeout=None, raise_on_error=False)
    want = [each for each in want if not isinstance(each, str)]
    if not want:
        raise BadGold(f"gold {gold[:80]!r} cannot be read")
    if gold == answer:
        return True
    if _HOPELESS.search(answer):
        return False
    for decimal, other in ((answer, want), (gold, None)):
        if _DECIMAL.fullmatch(decimal):
            exprs = other or parse(f"${answer}$", rules, parsing_timeout=None, raise_on_error=False)
            near = _close(Fraction(decimal), exprs)
            if near is not None:
                return near
    got = parse(f"${answer}$", rules, parsing_timeout=None, raise_on_error=False)
    got = [each for each in got if not isinstance(each, str)]
    return bool(got) and bool(verify(want, got, float_rounding=6, strict=True, timeout_seconds=None))


def _close(number: Fraction, expressions: list[Any]) -> bool | None:
    """A decimal against a closed form, to a RELATIVE tolerance: rounding both to six places would make 1e-8 zero."""
    for each in expressions:
        if not isinstance(each, str) and getattr(each, "is_real", False) and not each.free_symbols:
            try:
                value = Fraction(str(each.evalf(30)))
            except ValueError:  # no number comes out of it
                return None
            return abs(value - number) <= TOLERANCE * abs(value)
    return None


def answer_to(job: dict[str, Any]) -> dict[str, Any]:
    if job["op"] == "match":
        return {"match": re.fullmatch(job["pattern"], job["text"], re.DOTALL) is not None}
    try:
        right, found = compare(job["gold"], job["answer"] or "", symbolic)
    except BadGold as error:
        return {"unscored": "bad_gold", "detail": str(error)}
    except MemoryError:
        return {"unscored": "memory", "detail": "the comparison took too much memory"}
    return {"right": right, "share": found}


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    logging.disable(logging.CRITICAL)  # math-verify logs every text it cannot read
    warnings.simplefilter("ignore")
    if sys.argv[1:] == ["mathematics"]:
        symbolic("x", "1+x")  # what the first comparison would pay, before its clock runs
    ready()
    for line in sys.stdin:
        print(json.dumps(answer_to(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
