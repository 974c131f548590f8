"""Mathematical answers: find the answer in the text, compare it with the reference.

Parts: `correct` 0 or 1; `partial` the share of a list's items that were found (weight 0 unless asked for); `answered`
whether the text marks an answer at all (weight 0); `oversized` whether it is longer or nested deeper than what
computer algebra is given (weight 0). A reference that cannot be read is unscored, whatever the text says.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from typing import Any

from ascent.protocols import Score
from ascent.records import Rollout
from ascent.rewards.equality import BadGold, NeedsSymbolic, compare, oversized, unavailable
from ascent.rewards.extract import answer_in
from ascent.rewards.outcome import Unscored
from ascent.rewards.registry import Batch
from ascent.sandbox.pool import Died, Late, Pool, module_command


class Mathematics(Batch):
    """`seconds` bounds one symbolic comparison; past it the checker is killed and the rollout is `timeout`."""

    weights = {"partial": 0.0, "answered": 0.0, "oversized": 0.0}  # noqa: RUF012

    def __init__(self, *, seconds: float = 10.0, workers: int = 0) -> None:
        if importlib.util.find_spec("math_verify") is None:
            raise ValueError("the reward mathematics needs math-verify; install it with: pip install 'ascent[math]'")
        if not seconds > 0:
            raise ValueError(f"mathematics: seconds={seconds}, but a comparison needs some time")
        self._seconds = seconds
        command = module_command("ascent.rewards.checker", "mathematics")
        self._pool = Pool(lambda slot: command, workers or os.cpu_count() or 1)
        self.together, self.at_once = 1, self._pool.size

    def score(self, rollouts: Sequence[Rollout]) -> list[Score | Unscored]:
        scores: list[Any] = [self._quick(rollout) for rollout in rollouts]
        waiting = [place for place, score in enumerate(scores) if isinstance(score, dict) and "op" in score]
        answers = self._pool.map([scores[place] for place in waiting], self._seconds)
        for place, answer in zip(waiting, answers, strict=True):
            scores[place] = _score(scores[place], answer)
        return scores

    def _quick(self, rollout: Rollout) -> Any:
        """What can be settled here: numbers, words, lists of them. Everything else becomes a job for a checker."""
        if rollout.prompt.answer is None or not rollout.prompt.answer.strip():
            return Unscored("no_gold", "the prompt has no answer")
        gold = answer_in(rollout.prompt.answer) or rollout.prompt.answer
        answer = answer_in(rollout.text)
        try:
            # The gold is looked at even where the text gives no answer: a bad one must not look like a wrong answer.
            right, found = compare(gold, answer or "", unavailable)
        except BadGold as error:
            return Unscored("bad_gold", str(error))
        except NeedsSymbolic:
            return {"op": "compare", "gold": gold, "answer": answer}
        return _parts(gold, answer, right, found)

    def close(self) -> None:
        self._pool.close()


def _score(job: Mapping[str, Any], answer: Any) -> Score | Unscored:
    if isinstance(answer, Late):
        return Unscored("timeout", f"comparing: {answer}")
    if isinstance(answer, Died):
        return Unscored("checker", str(answer))
    if "unscored" in answer:
        return Unscored(answer["unscored"], answer["detail"])
    return _parts(job["gold"], job["answer"], answer["right"], answer["share"])


def _parts(gold: str, answer: str | None, right: bool, found: float) -> dict[str, float | None]:
    large = answer is not None and oversized(gold, answer)
    return {"correct": float(right), "partial": found, "answered": float(answer is not None), "oversized": float(large)}
