"""The checked result of a reward on one rollout: named parts, steps, or a failure with a name. Never a silent 0.

Failures, each with its own counter:

    raised       the reward raised an exception
    timeout      it did not return in time
    nan          it returned NaN, or a part that is NaN
    infinite     it returned an infinite number
    wrong_type   it returned a string, a list of numbers, or anything else that is no score
    wrong_count  a batched reward returned more or fewer scores than rollouts, or a step lies outside the rollout
    none         it returned None: it could not score, without a reason

A reward that knows why it cannot score raises `Unscored("bad_gold", ...)`, or returns it in its list of scores; its
kind is then counted like the names above.
"""

from __future__ import annotations

import inspect
import math
import re
import traceback
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ascent.records import Rollout, StepReward

# Bugs of the reward's code: by default these stop a run.
BUGS = frozenset({"infinite", "wrong_type", "wrong_count"})
# Where code comes from that is not the user's: this package, the standard library.
NOT_OWN = (str(Path(__file__).parents[1]), str(Path(traceback.__file__).parent), "<frozen")
OnError = Literal["bugs", "failures", "never"]


class Unscored(Exception):
    """Raised, or returned in a batch, by a reward that cannot score a rollout. `kind` names its counter."""

    def __init__(self, kind: str, detail: str = "") -> None:
        super().__init__(f"{kind}: {detail}" if detail else kind)
        if not re.fullmatch(r"[a-z][a-z_]*", kind):
            raise ValueError(
                f"Unscored({kind!r}), but the kind is a word of a-z and _, as it names a counter"
            )
        self.kind, self.detail = kind, detail


class RewardFailed(ValueError):
    """A failure that `on_error` does not accept."""


@dataclass(frozen=True)
class Failure:
    kind: str
    detail: str


@dataclass(frozen=True)
class Outcome:
    """One reward's result on one rollout. `parts` has the key "" for a reward that returned one number."""

    parts: Mapping[str, float | None] = field(default_factory=dict)
    steps: tuple[StepReward, ...] = ()
    failure: Failure | None = None


def failed_outcome(kind: str, detail: str) -> Outcome:
    return Outcome(failure=Failure(kind, detail))


def check_score(score: Any, rollout: Rollout) -> Outcome:
    """Check a reward's return value. An unscored part is None; the others stay usable."""
    if score is None:
        return failed_outcome("none", "returned None")
    if isinstance(score, Unscored):
        return failed_outcome(score.kind, score.detail)
    if inspect.iscoroutine(score):
        score.close()  # or Python warns about it at some later time
        return failed_outcome(
            "wrong_type", "returned a coroutine that was never awaited; await it in an `async def`"
        )
    score = plain_number(score)
    if isinstance(score, bool | int | float):
        problem = _problem(score)
        return failed_outcome(*problem) if problem else Outcome({"": float(score)})
    if isinstance(score, Mapping):
        return _of_parts(score)
    if isinstance(score, Sequence) and not isinstance(score, str | bytes):
        return _of_steps(score, rollout)
    return failed_outcome(
        "wrong_type",
        f"returned {_shown(score)}; a score is a number, named parts, StepRewards or None",
    )


def plain_number(value: Any) -> Any:
    """A number of numpy or torch as Python's."""
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", None) == 0 else value


def with_expectation(result: Outcome, returns: str) -> Outcome:
    """An outcome that says what was expected, where the return value is at fault."""
    if result.failure is None or result.failure.kind not in ("none", "wrong_type", "wrong_count"):
        return result
    return failed_outcome(result.failure.kind, f"{result.failure.detail}; {returns}")


def place_of(error: BaseException) -> str:
    """` at FILE:LINE, in NAME`: the innermost line of the user's own code, or of any."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        frame
        for frame in frames
        if not frame.filename.startswith(NOT_OWN) and "site-packages" not in frame.filename
    ]
    frame = next(reversed(own or frames), None)
    return "" if frame is None else f" at {frame.filename}:{frame.lineno}, in {frame.name}"


def shorten(value: Any, most: int = 60) -> str:
    shown = repr(value)
    return shown if len(shown) <= most else f"{shown[:most]}..."


def _problem(value: float) -> tuple[str, str] | None:
    if math.isnan(value):
        return "nan", "returned NaN"
    if math.isinf(value):
        return (
            "infinite",
            f"returned {value}; a reward is finite: return None for what cannot be scored",
        )
    return None


def _of_parts(score: Mapping[Any, Any]) -> Outcome:
    if not score:
        return failed_outcome("wrong_type", "returned no part at all")
    parts: dict[str, float | None] = {}
    for name, value in score.items():
        if not isinstance(name, str) or not name:
            return failed_outcome("wrong_type", f"returned a part named {name!r}; names are text")
        if value is None:
            parts[name] = None
            continue
        value = plain_number(value)
        if not isinstance(value, bool | int | float):
            return failed_outcome("wrong_type", f"returned {_shown(value)} as its part {name!r}")
        problem = _problem(value)
        if problem and problem[0] == "infinite":
            return failed_outcome(problem[0], f"part {name!r}: {problem[1]}")
        parts[name] = None if problem else float(value)
    return Outcome(parts)


def _of_steps(score: Sequence[Any], rollout: Rollout) -> Outcome:
    strange = next((item for item in score if not isinstance(item, StepReward)), None)
    if strange is not None:
        return failed_outcome(
            "wrong_type",
            f"returned a sequence with {_shown(strange)}; step rewards are StepReward records",
        )
    if any(math.isnan(step.value) for step in score):
        return failed_outcome("nan", "a step reward is NaN")
    late = next((step.token for step in score if step.token >= rollout.length), None)
    if late is not None:
        return failed_outcome(
            "wrong_count", f"a step at token {late}, but only {rollout.length} tokens were sampled"
        )
    return Outcome({"": math.fsum(step.value for step in score)}, steps=tuple(score))


def _shown(value: Any) -> str:
    return f"{repr(value)[:60]} ({type(value).__name__})"


@dataclass
class Tally:
    """Counts of scored and unscored rollouts per reward, by reason, over all batches."""

    scored: Counter[str] = field(default_factory=Counter)
    unscored: Counter[tuple[str, str]] = field(default_factory=Counter)
    examples: dict[tuple[str, str], str] = field(default_factory=dict)

    def add(self, name: str, rollout: Rollout, result: Outcome, on_error: OnError) -> None:
        """Count an outcome; raise RewardFailed if `on_error` does not accept it."""
        if result.failure is None:
            self.scored[name] += 1
            for part, value in result.parts.items():
                if value is None:
                    self._count(
                        name, "none", f"{rollout.prompt.id!r}/{rollout.sample}: part {part!r}"
                    )
            return
        kind, detail = result.failure.kind, result.failure.detail
        place = f"prompt {rollout.prompt.id!r}, sample {rollout.sample}"
        if on_error == "failures" or (on_error == "bugs" and kind in BUGS):
            raise RewardFailed(f"reward {name} on {place}: {kind}: {detail}")
        self._count(name, kind, f"{place}: {detail}")

    def _count(self, name: str, kind: str, example: str) -> None:
        self.unscored[name, kind] += 1
        self.examples.setdefault((name, kind), example)

    def merge(self, examples: Iterable[Mapping[tuple[str, str], str]]) -> None:
        """The first case of every reason, from those of all ranks in order."""
        found: dict[tuple[str, str], str] = {}
        for own in examples:
            found = {**own, **found}
        self.examples = found

    def lines(self) -> list[str]:
        """One line per reason, with the first case."""
        return [
            f"reward {name}: {count} unscored ({kind}), first: {self.examples[name, kind]}"
            for (name, kind), count in sorted(self.unscored.items())
        ]
