"""Hidden tests against a program. Expected values stay on this side; only inputs go in, only replies come out.

Three styles of tests:
- `stdio`: a script; its standard output for each standard input;
- `calls`: a function; its value for each tuple of arguments;
- `asserts`: test code, which runs in a sandbox of its own with proxies for the program's names (see driver.py).

One sandbox serves all cases of a program, so it may remember earlier cases; it can never see an expected value. Every
frame from the program is checked here, and a malformed one is a wrong answer. The tests are at fault only where the
program had no part in the failure (`BadTests`).
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

from ascent.sandbox.limits import Limits
from ascent.sandbox.session import ProgramEnded, Session, Side
from ascent.sandbox.values import decode, equal_values

Start = Callable[[Side], Session]
# At least this long for test code until it first calls the program: no program has run yet, so the machine is busy.
UNCALLED_SECONDS = 10.0


class BadTests(Exception):
    """The tests, not the program, are at fault: there is no verdict."""


class Clock:
    """The time budget of one side, in total and per case."""

    def __init__(self, limits: Limits) -> None:
        self._limits, self._remaining = limits, limits.wall_seconds

    @contextmanager
    def case(self) -> Iterator[float]:
        if self._remaining <= 0:
            raise ProgramEnded("time", f"its {self._limits.wall_seconds:.3g} s are spent")
        start = time.monotonic()
        try:
            yield min(self._limits.test_seconds, self._remaining)
        finally:
            self._remaining -= time.monotonic() - start

    def request(self, session: Session, message: dict[str, Any]) -> dict[str, Any]:
        """Send and receive within one time limit."""
        with self.case() as seconds:
            deadline = time.monotonic() + seconds
            session.send(message, seconds)
            return session.receive(deadline - time.monotonic())


def grade(job: dict[str, Any], limits: Limits, start: Start) -> dict[str, Any]:
    """{"passed": a bool per case, "error": None or how the program ended, "detail": ...}."""
    styles = {"stdio": _stdio, "calls": _calls, "asserts": _asserts}
    passed: list[bool] = []
    error, detail = None, ""
    try:
        styles[job["style"]](job, limits, start, passed)
    except ProgramEnded as ended:
        error, detail = ended.kind, ended.detail
    except RecursionError:
        error, detail = "garbage", "a reply nested too deep"
    missing = len(job["cases"]) - len(passed)
    return {"passed": [*passed, *[False] * missing], "error": error, "detail": detail}


def run_once(job: dict[str, Any], limits: Limits, start: Start) -> dict[str, Any]:
    """Run a script once."""
    with closing(start("program")) as session:
        try:
            clock = Clock(limits)
            _load(session, {"source": job["source"], "prelude": ""}, False, clock)
            status, stdout, stderr = _run(session, job["stdin"], limits, clock)
            return {"status": status, "stdout": _clean(stdout), "stderr": _clean(stderr)}
        except ProgramEnded as ended:
            return {"status": None, "stdout": "", "stderr": _clean(str(ended)), "error": ended.kind}


def _load(session: Session, job: dict[str, Any], define: bool, clock: Clock) -> None:
    message = {"op": "load", "source": job["source"], "prelude": job["prelude"], "define": define}
    reply = clock.request(session, message)
    if "error" in reply:
        raise ProgramEnded("raised", _error_text(reply))


def _run(session: Session, stdin: str, limits: Limits, clock: Clock) -> tuple[int, str, str]:
    """Status, standard output and error of one run."""
    max_bytes = int(limits.output_kb * 1024)
    # JSON escapes may take six characters for one; the frame limit bounds them.
    reply = clock.request(session, {"op": "run", "stdin": stdin, "max_bytes": max_bytes})
    value = reply.get("value")
    value = value if isinstance(value, dict) else {}
    status, stdout, stderr = (value.get(key) for key in ("status", "stdout", "stderr"))
    if type(status) is not int or not isinstance(stdout, str) or not isinstance(stderr, str):
        raise ProgramEnded("garbage", _error_text(reply))
    if len(stdout.encode("utf-8", "surrogatepass")) > max_bytes:
        raise ProgramEnded("output", f"more than {limits.output_kb} kB on standard output")
    return status, stdout, stderr


def _stdio(job: dict[str, Any], limits: Limits, start: Start, passed: list[bool]) -> None:
    with closing(start("program")) as session:
        clock = Clock(limits)
        _load(session, job, False, clock)
        for case in job["cases"]:
            status, stdout, _ = _run(session, case["input"], limits, clock)
            passed.append(
                status == 0 and normalized_lines(stdout) == normalized_lines(case["output"])
            )


def normalized_lines(text: str) -> list[str]:
    """Lines without trailing spaces, and without empty lines at the end."""
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _calls(job: dict[str, Any], limits: Limits, start: Start, passed: list[bool]) -> None:
    with closing(start("program")) as session:
        clock = Clock(limits)
        _load(session, job, True, clock)
        target = clock.request(session, {"op": "name", "name": job["function"]})
        if "error" in target:
            raise ProgramEnded("raised", _error_text(target))
        for case in job["cases"]:
            reply = clock.request(
                session, {"op": "call", "of": 0, "args": case["args"], "kwargs": case["kwargs"]}
            )
            with (
                clock.case() as seconds,
                _alarm(seconds),
            ):  # a set of colliding numbers can take minutes
                passed.append(_is_expected(case["expected"], reply, job["tolerance"]))


def _is_expected(expected: list[Any], reply: dict[str, Any], tolerance: float) -> bool:
    """Is the value one of the expected ones? A reply that cannot be decoded is not."""
    if "value" not in reply:
        return False
    try:
        value = decode(reply["value"])
        return any(
            equal_values(decode(expected_value), value, tolerance=tolerance)
            for expected_value in expected
        )
    except (ValueError, RecursionError):
        return False


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """A time limit for code on this side, in the worker's main thread."""

    def on_alarm(number: int, frame: object) -> None:
        raise ProgramEnded("time", f"its answer could not be read within {seconds:.3g} s")

    before = signal.signal(signal.SIGALRM, on_alarm)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _asserts(job: dict[str, Any], limits: Limits, start: Start, passed: list[bool]) -> None:
    with closing(start("program")) as program, closing(start("tests")) as tests:
        relay = _Relay(tests, program, job, limits)
        if not relay.run({"op": "setup", "source": job["setup"], "names": job["names"]}):
            raise ProgramEnded("raised", "the tests' set-up failed on the program")
        for case, standalone in zip(job["cases"], job["standalone"], strict=True):
            passed.append(relay.run({"op": "check", "source": case}, standalone=standalone))
        if not relay.loaded:
            raise BadTests("no test calls the program, so any program passes")


class _Relay:
    """Runs test code and forwards its calls to the program.

    The program is loaded at the first call. Failures before it are the tests' fault; failures after it may be caused by
    the program, and count against it.
    """

    def __init__(
        self, tests: Session, program: Session, job: dict[str, Any], limits: Limits
    ) -> None:
        self.loaded = False
        self._tests, self._program, self._job = tests, program, job
        # Separate budgets: a slow program does not use up the tests' time.
        self._tests_clock, self._program_clock = Clock(limits), Clock(limits)
        patient = (
            max(limits.wall_seconds, UNCALLED_SECONDS),
            max(limits.test_seconds, UNCALLED_SECONDS),
        )
        self._uncalled_clock = Clock(
            replace(limits, wall_seconds=patient[0], test_seconds=patient[1])
        )

    def run(self, message: dict[str, Any], *, standalone: bool = False) -> bool:
        """True if the code ran to its end. `standalone` code that fails without a call fails for every program."""
        called = False
        frame = self._send_tests(message)
        while "ask" in frame:
            called = True
            frame = self._send_tests(self._call_program(frame["ask"]))
        if "unsupported" in frame:
            raise BadTests(str(frame["unsupported"]))
        if "error" in frame and (
            not self.loaded or (standalone and not called and not _exhausted(frame))
        ):
            raise BadTests(f"a test fails before it calls the program: {_error_text(frame)}")
        return "value" in frame

    def _send_tests(self, message: dict[str, Any]) -> dict[str, Any]:
        try:
            clock = self._tests_clock if self.loaded else self._uncalled_clock
            return clock.request(self._tests, message)
        except ProgramEnded as ended:
            if not self.loaded:
                raise BadTests(f"the tests ended by themselves: {ended}") from ended
            # Tests that are too slow show this kind for every program of their prompt.
            raise ProgramEnded(
                f"tests_{ended.kind}", f"the tests did not survive its answer: {ended.detail}"
            ) from ended

    def _call_program(self, question: dict[str, Any]) -> dict[str, Any]:
        if not self.loaded:
            self.loaded = True
            _load(self._program, self._job, True, self._program_clock)
        reply = self._program_clock.request(self._program, question)
        allowed: dict[str, Any] = {
            key: reply[key] for key in ("value", "changed", "error") if key in reply
        }
        if not allowed.keys() & {"value", "error"}:
            raise ProgramEnded("garbage", "a reply with neither a value nor an error")
        return allowed


def _exhausted(frame: dict[str, Any]) -> bool:
    """Resources that the program's earlier replies may have used up."""
    return frame["error"][0] in ("MemoryError", "RecursionError")


def _error_text(reply: dict[str, Any]) -> str:
    """The error of a reply; only text of the expected form is shown."""
    error = reply.get("error")
    if isinstance(error, list) and error and all(isinstance(part, str) for part in error):
        return _clean(": ".join(error)[:500])
    return "a reply of unknown form"


def _clean(text: str) -> str:
    """Text that can be encoded."""
    return text.encode("utf-8", "replace").decode("utf-8")
