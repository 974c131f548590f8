"""The door to the sandbox: grade programs against hidden tests, or run one and see what it prints."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ascent.sandbox import asserts as test_code
from ascent.sandbox import cgroups
from ascent.sandbox.isolation import require_bubblewrap
from ascent.sandbox.limits import Limits
from ascent.sandbox.pool import Died, Late, Pool, module_command
from ascent.sandbox.values import NotPlain, decode, encode, same

Sandboxing = Literal["bubblewrap", "none"]
# Beyond the wall clocks of the program and its tests: starting two sandboxes and killing them on a busy machine.
SPARE_SECONDS = 90.0
EMPTY = "no tests, so nothing can be said about a program; give at least one case"


@dataclass(frozen=True)
class Suite:
    """Hidden tests in one of three styles; make them with `stdio`, `calls` or `asserts`, which refuse what cannot test
    a program: a ValueError says why. `prelude` is code that the program may rely on."""

    style: Literal["stdio", "calls", "asserts"]
    cases: tuple[Any, ...]
    function: str = ""
    setup: str = ""
    tolerance: float = 1e-9
    prelude: str = ""
    names: tuple[str, ...] = ()  # of asserts: what the program supplies
    alone: tuple[bool, ...] = ()  # of asserts: which cases depend on nothing but the program

    @classmethod
    def stdio(cls, cases: Sequence[tuple[str, str]]) -> Suite:
        """(standard input, expected standard output); space at line ends does not count."""
        for place, (given, want) in enumerate(cases):
            _text(given, f"the input of case {place}")
            _text(want, f"the output of case {place}")
        if cases and not any(want.strip() for _, want in cases):
            raise ValueError("every expected output is empty, so a program that does nothing passes")
        return cls("stdio", tuple({"input": given, "output": want} for given, want in cases))

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
        if isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or not 0 <= tolerance < 1:
            raise ValueError(f"tolerance={tolerance!r}, but it is a relative error of at least 0 and below 1")
        if cases and all(want is None for _, want in cases):
            raise ValueError(f"every expected value of {function} is None, so a function that does nothing passes")
        encoded = tuple(_call(place, *case, unwrap) for place, case in enumerate(cases))
        return cls("calls", encoded, function=function, tolerance=tolerance, prelude=prelude)

    @classmethod
    def asserts(cls, cases: Sequence[str], *, setup: str = "", function: str = "", prelude: str = "") -> Suite:
        """Test code, one case each, after `setup`; the names it reads and nobody defines are the program's, and so is
        `function`. An item that tests nothing, such as `result = f(10)`, belongs to the next case."""
        if isinstance(cases, str) or not isinstance(cases, Sequence):
            raise ValueError(f"asserts is a {type(cases).__name__}, but it is a list of texts, one for each test")
        for place, case in enumerate(cases):
            _text(case, f"test {place}")
        _text(setup, "the set-up")
        if function:
            _identifier(function)
        if not cases:
            raise ValueError(EMPTY)
        read = test_code.parse(cases, setup, function)
        return cls(*("asserts", read.cases, function, setup), prelude=prelude, names=read.names, alone=read.alone)

    def __post_init__(self) -> None:
        if not self.cases:
            raise ValueError(EMPTY)


def _text(value: Any, what: str) -> None:
    if not isinstance(value, str):
        raise ValueError(f"{what} is {str(value)[:60]} ({type(value).__name__}), but it must be text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{what} is no UTF-8") from None


def _identifier(name: Any) -> None:
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(f"function={name!r}, but it is the name of a function")


def _call(place: int, args: Any, want: Any, unwrap: bool) -> dict[str, Any]:
    if not isinstance(args, list | tuple):
        raise ValueError(f"the arguments of case {place} are a {type(args).__name__}, but they must be a list")
    try:
        given = [encode(arg) for arg in args]
        wants = [encode(want), *([encode(want[0])] if unwrap and isinstance(want, list) and len(want) == 1 else [])]
    except NotPlain as error:
        raise ValueError(f"case {place} holds no plain data ({error}); write it as asserts") from error
    except RecursionError:
        raise ValueError(f"case {place} is nested too deep") from None
    if not same(decode(wants[0]), decode(wants[0])):
        raise ValueError(f"case {place} expects {str(want)[:60]}, which equals nothing, not even itself")
    return {"args": given, "kwargs": {}, "expected": wants}


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

    @property
    def longest(self) -> float:
        """Seconds after which a program has its verdict, whatever it does."""
        return 2 * self.limits.wall_seconds + SPARE_SECONDS

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
        return [_verdict(answer) for answer in self._pool.map(jobs, self.longest)]

    def run(self, source: str, stdin: str = "") -> Output:
        """Run a script once."""
        job = {"style": "run", "source": source, "stdin": stdin, "limits": self.limits.plain()}
        (answer,) = self._pool.map([job], self.longest)
        if isinstance(answer, Late | Died):
            return Output(None, "", str(answer), "worker")
        if "unscored" in answer:
            return Output(None, "", answer["detail"], answer["unscored"])
        return Output(answer["status"], answer["stdout"], answer["stderr"], answer.get("error"))

    def _job(self, source: str, tests: Suite) -> dict[str, Any]:
        return {
            **{"source": source, "style": tests.style, "cases": tests.cases, "function": tests.function},
            **{"setup": tests.setup, "tolerance": tests.tolerance, "prelude": tests.prelude, "names": tests.names},
            **{"alone": tests.alone, "limits": self.limits.plain()},
        }

    def close(self) -> None:
        self._pool.close()
        cgroups.sweep()


def _verdict(answer: Mapping[str, Any] | Late | Died) -> Verdict:
    if isinstance(answer, Late | Died):
        return Verdict(None, "worker", str(answer))
    if "unscored" in answer:
        return Verdict(None, answer["unscored"], answer["detail"])
    return Verdict(tuple(answer["passed"]), answer["error"], answer["detail"])
