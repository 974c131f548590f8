"""Model-written programs against hidden tests, in the sandbox. Parts: `correct` (all tests) and `fraction`.

The program is the last fenced block of the text, or all of it where there is none. Tests come with the prompt, in the
layouts of `program_tests.suite_of`. Whatever a program does it is scored; only a prompt can leave it unscored.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ascent.protocols import Score
from ascent.records import Prompt, Rollout
from ascent.rewards.outcome import Unscored
from ascent.rewards.program_tests import suite_of
from ascent.rewards.registry import Batch
from ascent.sandbox.limits import Limits
from ascent.sandbox.programs import Sandbox, Sandboxing, Suite, Verdict

_FENCE = re.compile(r"^```([\w+-]*)[ \t]*$", re.MULTILINE)


class Programs(Batch):
    """`sandbox` is bubblewrap, and refuses where that is missing; none runs programs with this user's rights."""

    def __init__(
        self,
        *,
        sandbox: Sandboxing = "bubblewrap",
        workers: int = 0,
        limits: Mapping[str, Any] | None = None,
        score: str = "all",
    ) -> None:
        if score not in ("all", "fraction"):
            raise ValueError(f"programs: score={score!r}, but it must be all (every test or nothing) or fraction")
        try:
            bounds = Limits(**(limits or {}))
        except TypeError as error:
            raise ValueError(f"programs: limits={dict(limits or {})}: {error}") from error
        self.weights = {"fraction": 0.0} if score == "all" else {"correct": 0.0}
        self.ended: Counter[str] = Counter()  # what ended programs: time, memory, raised, ...
        self._counting = threading.Lock()
        self._sandbox = Sandbox(workers=workers, limits=bounds, sandbox=sandbox)
        self.together, self.at_once, self.longest = 1, self._sandbox.size, self._sandbox.longest

    def check(self, prompt: Prompt) -> None:
        suite_of(prompt)

    def score(self, rollouts: Sequence[Rollout]) -> list[Score | Unscored]:
        suites = [_suite(rollout.prompt) for rollout in rollouts]
        ready = [place for place, suite in enumerate(suites) if isinstance(suite, Suite)]
        verdicts = self._sandbox.grade([(source_in(rollouts[place].text), suites[place]) for place in ready])  # type: ignore[misc]
        scores: list[Any] = list(suites)
        for place, verdict in zip(ready, verdicts, strict=True):
            scores[place] = self._score(verdict)
        return scores

    def _score(self, verdict: Verdict) -> Score | Unscored:
        if verdict.passed is None:
            return Unscored(verdict.why or "sandbox", verdict.detail)
        if verdict.why is not None:
            with self._counting:
                self.ended[verdict.why] += 1
        return {"correct": float(all(verdict.passed)), "fraction": verdict.fraction}

    def close(self) -> None:
        self._sandbox.close()


def source_in(text: str) -> str:
    """The last fenced block, which is what a reader would copy; all of the text where there is none."""
    start: int | None = None
    block = slice(None)
    for fence in _FENCE.finditer(text):  # one pass: looking for the end of each takes quadratic time where none ends
        if start is None:
            start = fence.end() + 1
        elif not fence[1]:
            start, block = None, slice(start, fence.start())
    return text[block]


def _suite(prompt: Prompt) -> Suite | Unscored:
    try:
        return suite_of(prompt)
    except Unscored as unscored:
        return unscored
