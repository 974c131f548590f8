"""The door to the sandbox: grade programs against hidden tests, or run one and see what it prints."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ascent.sandbox.isolation import require_bubblewrap
from ascent.sandbox.limits import Limits
from ascent.sandbox.pool import Died, Late, Pool, module_command
from ascent.sandbox.values import NotPlain, encode

Sandboxing = Literal["bubblewrap", "none"]
# Beyond the program's own wall clock: starting two sandboxes and killing them on a busy machine.
SPARE_SECONDS = 90.0


@dataclass(frozen=True)
class Suite:
    """Hidden tests in one of three styles; make them with `stdio`, `calls` or `asserts`."""

    style: Literal["stdio", "calls", "asserts"]
    cases: tuple[Any, ...]
    function: str = ""
    setup: str = ""
    tolerance: float = 1e-9

    @classmethod
    def stdio(cls, cases: Sequence[tuple[str, str]]) -> Suite:
        """(standard input, expected standard output); space at line ends does not count."""
        return cls("stdio", tuple({"input": given, "output": want} for given, want in cases))

    @classmethod
    def calls(cls, function: str, cases: Sequence[tuple[Sequence[Any], Any]], *, tolerance: float = 1e-9) -> Suite:
        """(arguments, expected value) of one function; plain data only."""
        try:
            encoded = [
                {"args": [encode(arg) for arg in args], "kwargs": {}, "expected": encode(want)} for args, want in cases
            ]
        except NotPlain as error:
            raise ValueError(f"a case of {function} holds no plain data ({error}); write it as asserts") from error
        return cls("calls", tuple(encoded), function=function, tolerance=tolerance)

    @classmethod
    def asserts(cls, cases: Sequence[str], *, setup: str = "") -> Suite:
        """Test code, one case each, after `setup`; the names it reads and nobody defines are the program's."""
        return cls("asserts", tuple(cases), setup=setup)

    def __post_init__(self) -> None:
        if not self.cases:
            raise ValueError("no tests, so nothing can be said about a program; give at least one case")


@dataclass(frozen=True)
class Verdict:
    """What the tests say. `passed` is None where nothing can be said; `why` then names the reason."""

    passed: tuple[bool, ...] | None
    why: str | None = None  # bad_tests, sandbox, worker; or what ended the program: time, memory, output, died, ...
    detail: str = ""

    @property
    def fraction(self) -> float | None:
        return None if self.passed is None else sum(self.passed) / len(self.passed)

    @property
    def solved(self) -> bool | None:
        return None if self.passed is None else all(self.passed)


@dataclass(frozen=True)
class Output:
    """What a program printed. `status` is None where it was stopped; `error` then says by what."""

    status: int | None
    stdout: str
    stderr: str
    error: str | None = None


@dataclass
class Sandbox:
    """A pool of graders. `sandbox="none"` must be said in so many words: it runs programs with this user's rights."""

    workers: int = 0  # 0: one for each core
    limits: Limits = field(default_factory=Limits)
    sandbox: Sandboxing = "bubblewrap"

    def __post_init__(self) -> None:
        if self.sandbox not in ("bubblewrap", "none"):
            raise ValueError(f"sandbox={self.sandbox!r}, but it must be bubblewrap or none")
        if self.sandbox == "bubblewrap":
            require_bubblewrap()  # refuse before the first step, not in a worker
        first = os.getpid() * 64  # two pools of one machine should not share their users
        self._pool = Pool(
            lambda slot: module_command("ascent.sandbox.worker", self.sandbox, str(first + slot)),
            self.workers or os.cpu_count() or 1,
        )
        if self.sandbox == "bubblewrap":
            self._try()

    @property
    def size(self) -> int:
        """How many programs run at once."""
        return self._pool.size

    def _try(self) -> None:
        """Whatever keeps bubblewrap from working is known now, not at the first program."""
        tried = self.run("")
        if tried.error in ("sandbox", "worker"):
            self.close()
            raise ValueError(
                f"bubblewrap does not work on this machine: {tried.stderr}; allow user namespaces, or say "
                "`sandbox: none` to run model-written programs with this user's rights"
            )

    def grade(self, programs: Sequence[tuple[str, Suite]]) -> list[Verdict]:
        """A verdict for each (source, tests), in order."""
        jobs = [self._job(source, tests) for source, tests in programs]
        return [_verdict(answer) for answer in self._pool.map(jobs, self.limits.wall_seconds + SPARE_SECONDS)]

    def run(self, source: str, stdin: str = "") -> Output:
        """Run a script once."""
        job = {"style": "run", "source": source, "stdin": stdin, "limits": self.limits.plain()}
        (answer,) = self._pool.map([job], self.limits.wall_seconds + SPARE_SECONDS)
        if isinstance(answer, Late | Died):
            return Output(None, "", str(answer), "worker")
        if "unscored" in answer:
            return Output(None, "", answer["detail"], answer["unscored"])
        return Output(answer["status"], answer["stdout"], answer["stderr"], answer.get("error"))

    def _job(self, source: str, tests: Suite) -> dict[str, Any]:
        return {
            **{"source": source, "style": tests.style, "cases": tests.cases, "function": tests.function},
            **{"setup": tests.setup, "tolerance": tests.tolerance, "limits": self.limits.plain()},
        }

    def close(self) -> None:
        self._pool.close()


def _verdict(answer: Mapping[str, Any] | Late | Died) -> Verdict:
    if isinstance(answer, Late | Died):
        return Verdict(None, "worker", str(answer))
    if "unscored" in answer:
        return Verdict(None, answer["unscored"], answer["detail"])
    return Verdict(tuple(answer["passed"]), answer["error"], answer["detail"])
