"""Mathematical answers: extract the answer from the text, compare it with the reference.

Parts: `correct` 0 or 1; `partial` the share of a list's items that were found (weight 0 by default); `answered` whether
the text marks an answer (weight 0); `oversized` whether it is too long or nested too deep for computer algebra (weight
0). A reference that cannot be parsed is unscored, whatever the text says.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from typing import Any

from ascent.distribution import install_hint
from ascent.protocols import Score
from ascent.records import Rollout
from ascent.rewards.equality import BadGold, NeedsSymbolic, compare, no_symbolic, oversized
from ascent.rewards.extract import extract_answer
from ascent.rewards.outcome import Unscored
from ascent.rewards.registry import Batch
from ascent.sandbox.pool import Pool, WorkerDied, WorkerTimeout, module_command


class Mathematics(Batch):
    """`seconds` is the time limit of one symbolic comparison; after it the rollout is `timeout`."""

    weights = {"partial": 0.0, "answered": 0.0, "oversized": 0.0}  # noqa: RUF012

    def __init__(self, *, seconds: float = 10.0, workers: int = 0) -> None:
        if importlib.util.find_spec("math_verify") is None:
            raise ValueError(
                f"the reward mathematics needs math-verify; install it with: {install_hint('math')}"
            )
        if not seconds > 0:
            raise ValueError(f"mathematics: seconds={seconds}, but a comparison needs some time")
        self._seconds = seconds
        command = module_command("ascent.rewards.checker", "mathematics")
        self._pool = Pool(lambda slot: command, workers or os.cpu_count() or 1)
        self.batch_size, self.concurrency = 1, self._pool.size

    def score(self, rollouts: Sequence[Rollout]) -> list[Score | Unscored]:
        scores: list[Any] = [self._compare_locally(rollout) for rollout in rollouts]
        jobs = [
            index for index, score in enumerate(scores) if isinstance(score, dict) and "op" in score
        ]
        answers = self._pool.map([scores[index] for index in jobs], self._seconds)
        for index, answer in zip(jobs, answers, strict=True):
            scores[index] = _score(scores[index], answer)
        return scores

    def _compare_locally(self, rollout: Rollout) -> Any:
        """Compare numbers, words and lists of them here. Everything else becomes a job for the checker."""
        if rollout.prompt.answer is None or not rollout.prompt.answer.strip():
            return Unscored("no_gold", "the prompt has no answer")
        gold = extract_answer(rollout.prompt.answer) or rollout.prompt.answer
        answer = extract_answer(rollout.text)
        try:
            # The gold is parsed even if the text has no answer: a bad gold must not look like a wrong answer.
            right, partial = compare(gold, answer or "", no_symbolic)
        except BadGold as error:
            return Unscored("bad_gold", str(error))
        except NeedsSymbolic:
            return {"op": "compare", "gold": gold, "answer": answer}
        return _parts(gold, answer, right, partial)

    def close(self) -> None:
        self._pool.close()


def _score(job: Mapping[str, Any], answer: Any) -> Score | Unscored:
    if isinstance(answer, WorkerTimeout):
        return Unscored("timeout", f"comparing: {answer}")
    if isinstance(answer, WorkerDied):
        return Unscored("checker", str(answer))
    if "unscored" in answer:
        return Unscored(answer["unscored"], answer["detail"])
    return _parts(job["gold"], job["answer"], answer["right"], answer["share"])


def _parts(gold: str, answer: str | None, right: bool, partial: float) -> dict[str, float | None]:
    is_oversized = answer is not None and oversized(gold, answer)
    return {
        "correct": float(right),
        "partial": partial,
        "answered": float(answer is not None),
        "oversized": float(is_oversized),
    }
