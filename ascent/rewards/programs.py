"""Model-written programs against hidden tests, in the sandbox. Parts: `correct` (all tests) and `fraction`.

The program is the last fenced block of the text, or the whole text without one. Tests come with the prompt, in the
layouts of `program_tests.load_tests`. Any program is scored; only a prompt's tests can leave it unscored.
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
from ascent.rewards.program_tests import load_tests
from ascent.rewards.registry import Batch
from ascent.sandbox.limits import Limits
from ascent.sandbox.programs import Sandbox, Sandboxing, Suite, Verdict

_FENCE = re.compile(r"^([ \t]*)(`{3,})([^`\n]*)$", re.MULTILINE)


class Programs(Batch):
    """`sandbox`: bubblewrap (an error if it is missing), or none, which runs programs with this user's rights."""

    def __init__(
        self,
        *,
        sandbox: Sandboxing = "bubblewrap",
        workers: int = 0,
        limits: Mapping[str, Any] | None = None,
        score: str = "all",
    ) -> None:
        if score not in ("all", "fraction"):
            raise ValueError(
                f"programs: score={score!r}, but it must be all (every test or nothing) or fraction"
            )
        try:
            parsed_limits = Limits(**(limits or {}))
        except TypeError as error:
            raise ValueError(f"programs: limits={dict(limits or {})}: {error}") from error
        self.weights = {"fraction": 0.0} if score == "all" else {"correct": 0.0}
        self.failure_counts: Counter[str] = Counter()  # time, memory, raised, ...
        self._counts_lock = threading.Lock()
        self._sandbox = Sandbox(workers=workers, limits=parsed_limits, sandbox=sandbox)
        self.batch_size, self.concurrency, self.max_seconds = (
            1,
            self._sandbox.size,
            self._sandbox.max_seconds,
        )

    def check(self, prompt: Prompt) -> None:
        load_tests(prompt)

    def score(self, rollouts: Sequence[Rollout]) -> list[Score | Unscored]:
        suites = [_tests_or_unscored(rollout.prompt) for rollout in rollouts]
        runnable = [index for index, suite in enumerate(suites) if isinstance(suite, Suite)]
        verdicts = self._sandbox.grade(
            [(extract_code(rollouts[index].text), suites[index]) for index in runnable]  # type: ignore[misc]
        )
        scores: list[Any] = list(suites)
        for index, verdict in zip(runnable, verdicts, strict=True):
            scores[index] = self._score(verdict)
        return scores

    def _score(self, verdict: Verdict) -> Score | Unscored:
        if verdict.passed is None:
            return Unscored(verdict.reason or "sandbox", verdict.detail)
        if verdict.reason is not None:
            with self._counts_lock:
                self.failure_counts[verdict.reason] += 1
        return {"correct": float(all(verdict.passed)), "fraction": verdict.fraction}

    def close(self) -> None:
        self._sandbox.close()


def extract_code(text: str) -> str:
    """The last fenced block; the whole text if there is none.

    As in Markdown, the closing fence has at least as many backticks as the opening one and no words, and a block loses
    the indentation of its fence. A closing fence at most three spaces further right counts if none stands further left:
    a docstring has fences of its own. A block that is never closed ends with the text. After a closed block, one that
    is never closed or is indented further, as an example in a list, counts only if its fence names a language.
    """
    opening: re.Match[str] | None = None
    indented: re.Match[str] | None = (
        None  # the first closing fence that is indented further than the opening one
    )
    block: tuple[str, str] | None = None  # the fence's indentation, the text
    for fence in _FENCE.finditer(text):  # one pass: a search per fence would take quadratic time
        further = len(fence[1]) - len(opening[1]) if opening else 0
        if opening and indented and fence[3].strip() and further <= 0:
            block, opening = _last(block, opening, text[opening.end() + 1 : indented.start()]), None
        if opening is None:
            opening, indented = fence, None
        elif not fence[3].strip() and len(fence[2]) >= len(opening[2]) and further <= 3:
            if further <= 0:
                block, opening = (
                    _last(block, opening, text[opening.end() + 1 : fence.start()]),
                    None,
                )
            else:
                indented = indented or fence
    if opening and indented:
        block = _last(block, opening, text[opening.end() + 1 : indented.start()])
    elif opening and (block is None or opening[3].strip()) and text[opening.end() :].strip():
        block = opening[1], text[opening.end() + 1 :]
    if block is None:
        return text
    indent, code = block
    return re.sub(rf"^[ \t]{{1,{len(indent)}}}", "", code, flags=re.MULTILINE) if indent else code


def _last(block: tuple[str, str] | None, opening: re.Match[str], code: str) -> tuple[str, str]:
    """The later of two closed blocks, unless it is indented further and names no language."""
    example = block is not None and len(opening[1]) > len(block[0]) and not opening[3].strip()
    return block if block is not None and example else (opening[1], code)


def _tests_or_unscored(prompt: Prompt) -> Suite | Unscored:
    try:
        return load_tests(prompt)
    except Unscored as unscored:
        return unscored
