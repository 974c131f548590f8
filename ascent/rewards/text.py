"""Rewards of the text alone: format, exact answers, length, repetition.

Lengths count sampled tokens, not characters. Worked example for `overlong` with max_length 100 and cache 20: 80 tokens
cost 0, 90 cost .5, 100 and more cost 1.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

# The standard library's pattern parser; its old public name, sre_parse, warns.
from re import _constants, _parser  # type: ignore[attr-defined]
from typing import Any

from ascent.protocols import Score
from ascent.records import Prompt, Rollout
from ascent.rewards.outcome import Unscored
from ascent.rewards.registry import Batch, find
from ascent.sandbox.pool import Pool, WorkerDied, WorkerTimeout, module_command


def require_answer(rollout: Rollout) -> str:
    """The reference answer; Unscored without one."""
    if rollout.prompt.answer is None or not rollout.prompt.answer.strip():
        raise Unscored("no_gold", "the prompt has no answer")
    return rollout.prompt.answer


def exact(rollout: Rollout) -> float:
    """1 if the text equals the answer, ignoring space around it."""
    return float(rollout.text.strip() == require_answer(rollout).strip())


def length(rollout: Rollout, *, target: int) -> float:
    """0 at `target` tokens, falling linearly on both sides to -1 at none and at twice as many."""
    _check_positive("length", "target", target)
    return -min(1.0, abs(rollout.length - target) / target)


def overlong(rollout: Rollout, *, max_length: int, cache: int) -> float:
    """DAPO's soft punishment: 0 up to max_length - cache tokens, then down to -1 at max_length and beyond."""
    _check_positive("overlong", "cache", cache)
    if cache > max_length:
        raise ValueError(
            f"overlong: cache={cache} above max_length={max_length}; the slope lies inside the limit"
        )
    return -min(1.0, max(0.0, (rollout.length - (max_length - cache)) / cache))


def repetition(rollout: Rollout, *, size: int = 3) -> float:
    """-(1 - distinct / all) over n-grams of `size` words: 0 without repetition, towards -1 with much of it."""
    _check_positive("repetition", "size", size)
    words = rollout.text.split()
    runs = [tuple(words[start : start + size]) for start in range(len(words) - size + 1)]
    return len(set(runs)) / len(runs) - 1 if runs else 0.0


class CosineLength(Batch):
    """Scales another reward by length: right answers go from `right[0]` at 0 tokens to `right[1]` at `max_length` along
    half a cosine, wrong ones from `wrong[0]` to `wrong[1]`."""

    weights = {"correct": 0.0}  # noqa: RUF012 - already in the shaped part; reported, and for filters

    def __init__(
        self,
        *,
        max_length: int,
        of: str = "mathematics",
        right: Sequence[float] = (1.0, 0.5),
        wrong: Sequence[float] = (-1.0, -0.5),
        options: Mapping[str, Any] | None = None,
    ) -> None:
        _check_positive("cosine_length", "max_length", max_length)
        verifier = find(of, **(options or {}))
        self._verifier = verifier
        if isinstance(verifier, Batch):
            self.batch_size, self.concurrency = verifier.batch_size, verifier.concurrency
            self.max_seconds = verifier.max_seconds
        self._max_length, self._right, self._wrong = max_length, right, wrong

    def check(self, prompt: Prompt) -> None:
        if isinstance(self._verifier, Batch):
            self._verifier.check(prompt)

    def score(self, rollouts: Sequence[Rollout]) -> list[Score | Unscored]:
        if isinstance(self._verifier, Batch):
            verdicts = list(self._verifier.score(rollouts))
        else:
            verdicts = [_score_or_unscored(self._verifier, rollout) for rollout in rollouts]
        return [
            self._shape_reward(rollout, verdict)
            for rollout, verdict in zip(rollouts, verdicts, strict=True)
        ]

    def _shape_reward(self, rollout: Rollout, verdict: Any) -> Score | Unscored:
        correct = verdict.get("correct") if isinstance(verdict, dict) else verdict
        if not isinstance(correct, int | float):
            return correct if isinstance(correct, Unscored) else None
        start, end = self._right if correct >= 1 else self._wrong
        share = min(rollout.length / self._max_length, 1.0)
        return {
            "correct": float(correct),
            "shaped": end + (start - end) * (1 + math.cos(math.pi * share)) / 2,
        }

    def close(self) -> None:
        if isinstance(self._verifier, Batch):
            self._verifier.close()


def _score_or_unscored(reward: Any, rollout: Rollout) -> Any:
    try:
        return reward(rollout)
    except Unscored as error:
        return error


class Format(Batch):
    """1 if the whole text has the format, else 0. Give `tags`, or a `pattern`.

    Tags: each opens and closes exactly once, in that order, with nothing but space between and around the blocks.
    A pattern must match the whole text (DOTALL). It runs in its own process, which is killed after `seconds`; the
    rollout is then `timeout`, not 0. Patterns with a repetition inside a repetition, which can take exponential time,
    are refused.
    """

    def __init__(
        self, *, pattern: str | None = None, tags: Sequence[str] = (), seconds: float = 1.0
    ) -> None:
        if (pattern is None) == (not tags):
            raise ValueError(
                "format takes either a pattern or tags; for example tags: [think, answer]"
            )
        self._pool = None
        if pattern is not None:
            check_pattern(pattern)
            self._pool = Pool(lambda slot: module_command("ascent.rewards.checker"), 1)
        self._pattern, self._tags, self._seconds = pattern, tuple(tags), seconds
        self.batch_size = 0 if pattern is None else 1

    def score(self, rollouts: Sequence[Rollout]) -> list[Score | Unscored]:
        if self._pool is None:
            return [float(has_tag_blocks(rollout.text, self._tags)) for rollout in rollouts]
        jobs = [
            {"op": "match", "pattern": self._pattern, "text": rollout.text} for rollout in rollouts
        ]
        return [_match_score(answer) for answer in self._pool.map(jobs, self._seconds)]

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()


def _match_score(answer: Any) -> Score | Unscored:
    if isinstance(answer, WorkerTimeout):
        return Unscored("timeout", f"the pattern: {answer}")
    if isinstance(answer, WorkerDied):
        return Unscored("checker", str(answer))
    return float(answer["match"])


def has_tag_blocks(text: str, tags: Sequence[str]) -> bool:
    """<a>...</a> <b>...</b> and nothing else; no tag twice, none inside another. Time linear in the text."""
    rest = text.strip()
    for tag in tags:
        opening, closing = f"<{tag}>", f"</{tag}>"
        if rest.count(opening) != 1 or rest.count(closing) != 1 or not rest.startswith(opening):
            return False
        content, _, after = rest.removeprefix(opening).partition(closing)
        if any(f"<{other}>" in content or f"</{other}>" in content for other in tags):
            return False
        rest = after.lstrip()
    return not rest


def check_pattern(pattern: str) -> None:
    """ValueError for an invalid pattern, and for an unbounded repetition inside another."""
    try:
        tree = _parser.parse(pattern, re.DOTALL)
    except re.error as error:
        raise ValueError(f"pattern {pattern!r} is no regular expression: {error}") from error
    if _has_nested_repeat(tree, in_repeat=False):
        raise ValueError(
            f"pattern {pattern!r} repeats a repetition, as in (a+)+, which can take time exponential in the text; "
            "write it without, or use tags"
        )


_REPEATS = (_constants.MAX_REPEAT, _constants.MIN_REPEAT)


def _has_nested_repeat(tree: Any, *, in_repeat: bool) -> bool:
    """Is there an unbounded repeat inside an unbounded repeat?"""
    for code, argument in tree:
        if code in _REPEATS:
            _, max_count, body = argument
            endless = max_count is _constants.MAXREPEAT or max_count > 1000
            if (endless and in_repeat) or _has_nested_repeat(body, in_repeat=in_repeat or endless):
                return True
        elif code is _constants.SUBPATTERN:
            if _has_nested_repeat(argument[-1], in_repeat=in_repeat):
                return True
        elif code is _constants.BRANCH:
            if any(_has_nested_repeat(branch, in_repeat=in_repeat) for branch in argument[1]):
                return True
        elif code in (_constants.ASSERT, _constants.ASSERT_NOT) and _has_nested_repeat(
            argument[1], in_repeat=in_repeat
        ):
            return True
    return False


def _check_positive(reward: str, name: str, value: float) -> None:
    if not value > 0:
        raise ValueError(f"{reward}: {name}={value}, but it must be above 0")
