"""Hidden tests against a program. What is expected stays on this side; only inputs go in, only answers come out.

Three styles of tests:
- `stdio`: a script; its standard output for each standard input;
- `calls`: a function; its value for each tuple of arguments;
- `asserts`: test code, which runs in a sandbox of its own where the program's names are stand-ins (see driver.py).

One sandbox serves all cases of a program, so a program may remember earlier cases; it can never see an expectation.
Whatever a program does, it is judged: every frame that comes from it is checked here, and what cannot be read is a
wrong answer. The tests are at fault only where the program had no part in it (`BadTests`).
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

from ascent.sandbox.limits import Limits
from ascent.sandbox.session import Ended, Session, Side
from ascent.sandbox.values import decode, same

Start = Callable[[Side], Session]


class BadTests(Exception):
    """The tests, not the program, are at fault: nothing can be said about the program."""


class Clock:
    """Seconds left to one side, in all and for one case. Only what that side takes itself counts."""

    def __init__(self, limits: Limits) -> None:
        self._limits, self._left = limits, limits.wall_seconds

    @contextmanager
    def case(self) -> Iterator[float]:
        if self._left <= 0:
            raise Ended("time", f"its {self._limits.wall_seconds:.3g} s are spent")
        start = time.monotonic()
        try:
            yield min(self._limits.test_seconds, self._left)
        finally:
            self._left -= time.monotonic() - start

    def ask(self, session: Session, message: dict[str, Any]) -> dict[str, Any]:
        """Sending and waiting together: a program that reads late has no more time than another."""
        with self.case() as seconds:
            until = time.monotonic() + seconds
            session.send(message, seconds)
            return session.receive(until - time.monotonic())


def grade(job: dict[str, Any], limits: Limits, start: Start) -> dict[str, Any]:
    """{"passed": a bool for each case, "error": None or what ended the program, "detail": ...}."""
    styles = {"stdio": _stdio, "calls": _calls, "asserts": _asserts}
    passed: list[bool] = []
    error, detail = None, ""
    try:
        styles[job["style"]](job, limits, start, passed)
    except Ended as ended:
        error, detail = ended.kind, ended.detail
    except RecursionError:
        error, detail = "garbage", "an answer nested too deep to pass on"
    missing = len(job["cases"]) - len(passed)
    return {"passed": [*passed, *[False] * missing], "error": error, "detail": detail}


def run_once(job: dict[str, Any], limits: Limits, start: Start) -> dict[str, Any]:
    """One run of a script, for whoever wants to see what it prints."""
    with closing(start("program")) as session:
        try:
            clock = Clock(limits)
            _load(session, {"source": job["source"], "prelude": ""}, False, clock)
            status, stdout, stderr = _run(session, job["stdin"], limits, clock)
            return {"status": status, "stdout": _clean(stdout), "stderr": _clean(stderr)}
        except Ended as ended:
            return {"status": None, "stdout": "", "stderr": _clean(str(ended)), "error": ended.kind}


def _load(session: Session, job: dict[str, Any], define: bool, clock: Clock) -> None:
    message = {"op": "load", "source": job["source"], "prelude": job["prelude"], "define": define}
    reply = clock.ask(session, message)
    if "error" in reply:
        raise Ended("raised", _complaint(reply))


def _run(session: Session, stdin: str, limits: Limits, clock: Clock) -> tuple[int, str, str]:
    """Status, standard output and error of one run."""
    most = int(limits.output_kb * 1024)
    # A program's text may be all escapes in JSON, six characters for one: the frame's own limit does the rest.
    reply = clock.ask(session, {"op": "run", "stdin": stdin, "most": most})
    value = reply.get("value")
    value = value if isinstance(value, dict) else {}
    status, stdout, stderr = (value.get(key) for key in ("status", "stdout", "stderr"))
    if type(status) is not int or not isinstance(stdout, str) or not isinstance(stderr, str):
        raise Ended("garbage", _complaint(reply))
    if len(stdout.encode("utf-8", "surrogatepass")) > most:
        raise Ended("output", f"more than {limits.output_kb} kB on standard output")
    return status, stdout, stderr


def _stdio(job: dict[str, Any], limits: Limits, start: Start, passed: list[bool]) -> None:
    with closing(start("program")) as session:
        clock = Clock(limits)
        _load(session, job, False, clock)
        for case in job["cases"]:
            status, stdout, _ = _run(session, case["input"], limits, clock)
            passed.append(status == 0 and lines(stdout) == lines(case["output"]))


def lines(text: str) -> list[str]:
    """Lines without the space at their ends and without empty ones at the end of all."""
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _calls(job: dict[str, Any], limits: Limits, start: Start, passed: list[bool]) -> None:
    with closing(start("program")) as session:
        clock = Clock(limits)
        _load(session, job, True, clock)
        target = clock.ask(session, {"op": "name", "name": job["function"]})
        if "error" in target:
            raise Ended("raised", _complaint(target))
        for case in job["cases"]:
            reply = clock.ask(session, {"op": "call", "of": 0, "args": case["args"], "kwargs": case["kwargs"]})
            with clock.case() as seconds, _alarm(seconds):  # numbers chosen to collide take minutes to make a set
                passed.append(_right(case["expected"], reply, job["tolerance"]))


def _right(expected: list[Any], reply: dict[str, Any], tolerance: float) -> bool:
    """Is the answer one of those that are expected? What nobody encoded, or nobody can decode, is none."""
    if "value" not in reply:
        return False
    try:
        got = decode(reply["value"])
        return any(same(decode(want), got, tolerance=tolerance) for want in expected)
    except (ValueError, RecursionError):
        return False


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """Ends what takes too long on this side; a worker's main thread does nothing else."""

    def late(number: int, frame: object) -> None:
        raise Ended("time", f"its answer could not be read within {seconds:.3g} s")

    before = signal.signal(signal.SIGALRM, late)
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
            raise Ended("raised", "the tests' preparation failed on the program")
        for case, alone in zip(job["cases"], job["alone"], strict=True):
            passed.append(relay.run({"op": "check", "source": case}, alone=alone))
        if not relay.loaded:
            raise BadTests("no test asks the program anything, so any program passes")


class _Relay:
    """Runs test code and answers its questions with the program's answers.

    The program is loaded at the first question. What goes wrong before it is the tests' doing, whatever the program
    is; what goes wrong after it may be made by the program, and counts against it.
    """

    def __init__(self, tests: Session, program: Session, job: dict[str, Any], limits: Limits) -> None:
        self.loaded = False
        self._tests, self._program, self._job = tests, program, job
        # Each its own time: a program that answers at the last moment does not leave the tests without any.
        self._of_tests, self._of_program = Clock(limits), Clock(limits)

    def run(self, message: dict[str, Any], *, alone: bool = False) -> bool:
        """True when the code ran to its end. Code that is `alone` and fails unasked fails for every program."""
        asked = False
        frame = self._tell(message)
        while "ask" in frame:
            asked = True
            frame = self._tell(self._answer(frame["ask"]))
        if "unsupported" in frame:
            raise BadTests(str(frame["unsupported"]))
        if "error" in frame and (not self.loaded or (alone and not asked and not _exhausted(frame))):
            raise BadTests(f"a test fails before it asks the program anything: {_complaint(frame)}")
        return "value" in frame

    def _tell(self, message: dict[str, Any]) -> dict[str, Any]:
        try:
            return self._of_tests.ask(self._tests, message)
        except Ended as ended:
            if not self.loaded:
                raise BadTests(f"the tests ended by themselves: {ended}") from ended
            # Tests that are too slow for everybody show as this word on every program of their prompt.
            raise Ended(f"tests_{ended.kind}", f"the tests did not survive its answer: {ended.detail}") from ended

    def _answer(self, question: dict[str, Any]) -> dict[str, Any]:
        if not self.loaded:
            self.loaded = True
            _load(self._program, self._job, True, self._of_program)
        reply = self._of_program.ask(self._program, question)
        allowed: dict[str, Any] = {key: reply[key] for key in ("value", "changed", "error") if key in reply}
        if not allowed.keys() & {"value", "error"}:
            raise Ended("garbage", "an answer with neither a value nor an error")
        return allowed


def _exhausted(frame: dict[str, Any]) -> bool:
    """What the program's earlier answers may have used up."""
    return frame["error"][0] in ("MemoryError", "RecursionError")


def _complaint(reply: dict[str, Any]) -> str:
    """What a reply says went wrong; it may hold anything, so only text of the expected form is shown."""
    error = reply.get("error")
    if isinstance(error, list) and error and all(isinstance(part, str) for part in error):
        return _clean(": ".join(error)[:500])
    return "an answer of no known form"


def _clean(text: str) -> str:
    """Text that can be written to a file or a terminal."""
    return text.encode("utf-8", "replace").decode("utf-8")
