"""The interface of the sandbox: grade programs against hidden tests, or run one."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ascent.sandbox import asserts as test_code
from ascent.sandbox import cgroups
from ascent.sandbox.isolation import require_bubblewrap
from ascent.sandbox.limits import Limits
from ascent.sandbox.pool import Pool, WorkerDied, WorkerTimeout, module_command
from ascent.sandbox.values import NotPlain, decode, encode, equal_values

Sandboxing = Literal["bubblewrap", "none"]
# Beyond the wall time of program and tests: starting and killing two sandboxes on a busy machine.
OVERHEAD_SECONDS = 90.0
EMPTY = "there are no tests; give at least one case"


@dataclass(frozen=True)
class Suite:
    """Hidden tests in one of three styles; created by `stdio`, `calls` or `asserts`, which raise ValueError for tests
    that test nothing. `prelude` is code that the program may use."""

    style: Literal["stdio", "calls", "asserts"]
    cases: tuple[Any, ...]
    function: str = ""
    setup: str = ""
    tolerance: float = 1e-9
    prelude: str = ""
    names: tuple[str, ...] = ()  # of asserts: names that the program defines
    standalone: tuple[bool, ...] = ()  # of asserts: cases that depend on nothing but the program

    @classmethod
    def stdio(cls, cases: Sequence[tuple[str, str]]) -> Suite:
        """(standard input, expected standard output); space at line ends does not count."""
        for index, (stdin, expected) in enumerate(cases):
            _text(stdin, f"the input of case {index}")
            _text(expected, f"the output of case {index}")
        if cases and not any(expected.strip() for _, expected in cases):
            raise ValueError(
                "every expected output is empty, so a program that does nothing passes"
            )
        return cls(
            "stdio", tuple({"input": stdin, "output": expected} for stdin, expected in cases)
        )

    @classmethod
    def calls(
        cls,
        function: str,
        cases: Sequence[tuple[Sequence[Any], Any]],
        *,
        tolerance: float = 1e-9,
        unwrap: bool = False,
        prelude: str = "",
    ) -> Suite:
        """(arguments, expected value) of one function; plain data only. With `unwrap`, an expected list of one item
        stands for the item as well."""
        _identifier(function)
        if (
            isinstance(tolerance, bool)
            or not isinstance(tolerance, int | float)
            or not 0 <= tolerance < 1
        ):
            raise ValueError(
                f"tolerance={tolerance!r}, but it is a relative error of at least 0 and below 1"
            )
        if cases and all(expected is None for _, expected in cases):
            raise ValueError(
                f"every expected value of {function} is None, so a function that does nothing passes"
            )
        encoded = tuple(_call(index, *case, unwrap) for index, case in enumerate(cases))
        return cls("calls", encoded, function=function, tolerance=tolerance, prelude=prelude)

    @classmethod
    def asserts(
        cls, cases: Sequence[str], *, setup: str = "", function: str = "", prelude: str = ""
    ) -> Suite:
        """Test code, one case each, after `setup`; undefined names are the program's, and so is `function`. An item
        that tests nothing, such as `result = f(10)`, belongs to the next case."""
        if isinstance(cases, str) or not isinstance(cases, Sequence):
            raise ValueError(
                f"asserts is a {type(cases).__name__}, but it is a list of texts, one for each test"
            )
        for index, case in enumerate(cases):
            _text(case, f"test {index}")
        _text(setup, "the set-up")
        if function:
            _identifier(function)
        if not cases:
            raise ValueError(EMPTY)
        parsed = test_code.parse(cases, setup, function)
        return cls(
            *("asserts", parsed.cases, function, setup),
            prelude=prelude,
            names=parsed.names,
            standalone=parsed.standalone,
        )

    def __post_init__(self) -> None:
        if not self.cases:
            raise ValueError(EMPTY)


def _text(value: Any, what: str) -> None:
    if not isinstance(value, str):
        raise ValueError(
            f"{what} is {str(value)[:60]} ({type(value).__name__}), but it must be text"
        )
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{what} is no UTF-8") from None


def _identifier(name: Any) -> None:
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(f"function={name!r}, but it is the name of a function")


def _call(index: int, args: Any, expected: Any, unwrap: bool) -> dict[str, Any]:
    if not isinstance(args, list | tuple):
        raise ValueError(
            f"the arguments of case {index} are a {type(args).__name__}, but they must be a list"
        )
    try:
        stdin = [encode(arg) for arg in args]
        accepted = [
            encode(expected),
            *(
                [encode(expected[0])]
                if unwrap and isinstance(expected, list) and len(expected) == 1
                else []
            ),
        ]
    except NotPlain as error:
        raise ValueError(
            f"case {index} holds no plain data ({error}); write it as asserts"
        ) from error
    except RecursionError:
        raise ValueError(f"case {index} is nested too deep") from None
    if not equal_values(decode(accepted[0]), decode(accepted[0])):
        raise ValueError(
            f"case {index} expects {str(expected)[:60]}, which equals nothing, not even itself"
        )
    return {"args": stdin, "kwargs": {}, "expected": accepted}


@dataclass(frozen=True)
class Verdict:
    """The result of the tests. `passed` is None if there is no verdict; `reason` then says why."""

    passed: tuple[bool, ...] | None
    reason: str | None = (
        None  # bad_tests, sandbox, worker; or how the program ended: time, memory, output, died, ...
    )
    detail: str = ""

    @property
    def fraction(self) -> float | None:
        return None if self.passed is None else sum(self.passed) / len(self.passed)

    @property
    def solved(self) -> bool | None:
        return None if self.passed is None else all(self.passed)


@dataclass(frozen=True)
class Output:
    """The output of a program. `status` is None if it was stopped; `error` then says why."""

    status: int | None
    stdout: str
    stderr: str
    error: str | None = None


@dataclass
class Sandbox:
    """A pool of graders. `sandbox="none"` runs programs with this user's rights."""

    workers: int = 0  # 0: one for each core
    limits: Limits = field(default_factory=Limits)
    sandbox: Sandboxing = "bubblewrap"

    def __post_init__(self) -> None:
        if self.sandbox not in ("bubblewrap", "none"):
            raise ValueError(f"sandbox={self.sandbox!r}, but it must be bubblewrap or none")
        if self.sandbox == "bubblewrap":
            require_bubblewrap()  # fail before the first step, not in a worker
        first = os.getpid() * 64  # two pools of one machine should not share user ids
        self._pool = Pool(
            lambda slot: module_command("ascent.sandbox.worker", self.sandbox, str(first + slot)),
            self.workers or os.cpu_count() or 1,
        )
        if self.sandbox == "bubblewrap":
            self._check_works()

    @property
    def size(self) -> int:
        """How many programs run concurrently."""
        return self._pool.size

    @property
    def max_seconds(self) -> float:
        """Seconds after which every program has a verdict."""
        return 2 * self.limits.wall_seconds + OVERHEAD_SECONDS

    def _check_works(self) -> None:
        """Fail now, not at the first program, if bubblewrap does not work."""
        result = self.run("")
        if result.error in ("sandbox", "worker"):
            self.close()
            raise ValueError(
                f"bubblewrap does not work on this machine: {result.stderr}; allow user namespaces, or say "
                "`sandbox: none` to run model-written programs with this user's rights"
            )

    def grade(self, programs: Sequence[tuple[str, Suite]]) -> list[Verdict]:
        """A verdict for each (source, tests), in order."""
        jobs = [self._job(source, tests) for source, tests in programs]
        return [_verdict(answer) for answer in self._pool.map(jobs, self.max_seconds)]

    def run(self, source: str, stdin: str = "") -> Output:
        """Run a script once."""
        job = {"style": "run", "source": source, "stdin": stdin, "limits": self.limits.as_dict()}
        (answer,) = self._pool.map([job], self.max_seconds)
        if isinstance(answer, WorkerTimeout | WorkerDied):
            return Output(None, "", str(answer), "worker")
        if "unscored" in answer:
            return Output(None, "", answer["detail"], answer["unscored"])
        return Output(answer["status"], answer["stdout"], answer["stderr"], answer.get("error"))

    def _job(self, source: str, tests: Suite) -> dict[str, Any]:
        return {
            **{
                "source": source,
                "style": tests.style,
                "cases": tests.cases,
                "function": tests.function,
            },
            **{
                "setup": tests.setup,
                "tolerance": tests.tolerance,
                "prelude": tests.prelude,
                "names": tests.names,
            },
            **{"standalone": tests.standalone, "limits": self.limits.as_dict()},
        }

    def close(self) -> None:
        self._pool.close()
        cgroups.remove_stale()


def _verdict(answer: Mapping[str, Any] | WorkerTimeout | WorkerDied) -> Verdict:
    if isinstance(answer, WorkerTimeout | WorkerDied):
        return Verdict(None, "worker", str(answer))
    if "unscored" in answer:
        return Verdict(None, answer["unscored"], answer["detail"])
    return Verdict(tuple(answer["passed"]), answer["error"], answer["detail"])
