"""Hidden tests against a program. What is expected stays on this side; only inputs go in, only answers come out.

Three styles of tests:
- `stdio`: a script; its standard output for each standard input;
- `calls`: a function; its value for each tuple of arguments;
- `asserts`: test code, which runs in a sandbox of its own where the program's names are stand-ins (see driver.py).

One sandbox serves all cases of a program, so a program may remember earlier cases; it can never see an expectation.
"""

from __future__ import annotations

import ast
import builtins
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ascent.sandbox.limits import Limits
from ascent.sandbox.session import Ended, Session, Side
from ascent.sandbox.values import decode, same

Start = Callable[[Side], Session]


class BadTests(Exception):
    """The tests, not the program, are at fault: nothing can be said about the program."""


class Clock:
    """Seconds left to a program, in all and for one case."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._end = time.monotonic() + limits.wall_seconds

    def case(self) -> float:
        left = min(self._limits.test_seconds, self._end - time.monotonic())
        if left <= 0:
            raise Ended("time", f"the program's {self._limits.wall_seconds:.3g} s are spent")
        return left


def grade(job: dict[str, Any], limits: Limits, start: Start) -> dict[str, Any]:
    """{"passed": a bool for each case, "error": None or what ended the program, "detail": ...}."""
    styles = {"stdio": _stdio, "calls": _calls, "asserts": _asserts}
    passed: list[bool] = []
    error, detail = None, ""
    try:
        styles[job["style"]](job, limits, start, passed)
    except Ended as ended:
        error, detail = ended.kind, ended.detail
    missing = len(job["cases"]) - len(passed)
    return {"passed": [*passed, *[False] * missing], "error": error, "detail": detail}


def run_once(job: dict[str, Any], limits: Limits, start: Start) -> dict[str, Any]:
    """One run of a script, for whoever wants to see what it prints."""
    session = start("program")
    try:
        _load(session, job["source"], False, Clock(limits))
        return _run(session, job["stdin"], limits, Clock(limits))
    except Ended as ended:
        return {"status": None, "stdout": "", "stderr": str(ended), "error": ended.kind}
    finally:
        session.close()


def _load(session: Session, source: str, define: bool, clock: Clock) -> None:
    reply = session.ask({"op": "load", "source": source, "define": define}, clock.case())
    if "error" in reply:
        raise Ended("raised", _complaint(reply))


def _run(session: Session, stdin: str, limits: Limits, clock: Clock) -> dict[str, Any]:
    most = int(limits.output_kb * 1024)
    # A program's text may be all escapes in JSON, six characters for one: the frame's own limit does the rest.
    reply = session.ask({"op": "run", "stdin": stdin, "most": most}, clock.case())
    value = reply.get("value")
    if not isinstance(value, dict) or not isinstance(value.get("stdout"), str):
        raise Ended("garbage", _complaint(reply))
    if len(value["stdout"]) > most:
        raise Ended("output", f"more than {limits.output_kb} kB on standard output")
    return value


def _stdio(job: dict[str, Any], limits: Limits, start: Start, passed: list[bool]) -> None:
    session, clock = start("program"), Clock(limits)
    try:
        _load(session, job["source"], False, clock)
        for case in job["cases"]:
            done = _run(session, case["input"], limits, clock)
            passed.append(done.get("status") == 0 and lines(done["stdout"]) == lines(case["output"]))
    finally:
        session.close()


def lines(text: str) -> list[str]:
    """Lines without the space at their ends and without empty ones at the end of all."""
    return [line.rstrip() for line in text.rstrip().splitlines()]


def _calls(job: dict[str, Any], limits: Limits, start: Start, passed: list[bool]) -> None:
    session, clock = start("program"), Clock(limits)
    try:
        _load(session, job["source"], True, clock)
        target = session.ask({"op": "name", "name": job["function"]}, clock.case())
        if "error" in target:
            raise Ended("raised", _complaint(target))
        for case in job["cases"]:
            message = {"op": "call", "of": 0, "args": case["args"], "kwargs": case["kwargs"]}
            reply = session.ask(message, clock.case())
            passed.append(_right(decode(case["expected"]), reply, job["tolerance"], clock.case()))
    finally:
        session.close()


def _right(want: Any, reply: dict[str, Any], tolerance: float, seconds: float) -> bool:
    if "value" not in reply:
        return False
    try:
        with _alarm(seconds):  # a set of numbers chosen to collide takes minutes to build
            return same(want, decode(reply["value"]), tolerance=tolerance)
    except (ValueError, RecursionError):  # a handle, or a frame of the program's own making: no answer to compare
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
    names = free_names("\n".join([job["setup"], *job["cases"]]))
    program = start("program")
    try:
        tests = start("tests")
    except BaseException:
        program.close()
        raise
    try:
        clock = Clock(limits)
        _load(program, job["source"], True, clock)
        setup = {"op": "setup", "source": job["setup"], "names": names}
        if not _relayed(tests, program, setup, clock):
            raise Ended("raised", "the tests' preparation failed on the program")
        for case in job["cases"]:
            passed.append(_relayed(tests, program, {"op": "check", "source": case}, clock))
    finally:
        program.close()
        tests.close()


def _relayed(tests: Session, program: Session, message: dict[str, Any], clock: Clock) -> bool:
    """Run test code, answering its questions with the program's answers; True when it ran to its end."""
    asked = False
    try:
        tests.send(message, clock.case())
        frame = tests.receive(clock.case())
    except Ended as ended:
        raise BadTests(f"the tests ended by themselves: {ended}") from ended
    while "ask" in frame:
        asked = True
        reply = program.ask(frame["ask"], clock.case())
        allowed: dict[str, Any] = {key: reply[key] for key in ("value", "changed", "error") if key in reply}
        if not allowed:
            raise Ended("garbage", "an answer with neither a value nor an error")
        left = clock.case()
        try:
            tests.send(allowed, left)
            frame = tests.receive(left)
        except RecursionError as error:
            raise Ended("garbage", "an answer nested too deep to pass on") from error
        except Ended as ended:
            # Its answer may be made to choke whoever reads it, so this counts against the program; tests that are too
            # slow for everybody show as this word on every program of their prompt.
            raise Ended(f"tests_{ended.kind}", f"the tests did not survive its answer: {ended.detail}") from ended
    if "unsupported" in frame:
        raise BadTests(str(frame["unsupported"]))
    if "error" in frame and not asked:
        raise BadTests(f"a test fails before it asks the program anything: {_complaint(frame)}")
    return "value" in frame


def free_names(source: str) -> list[str]:
    """The names that test code reads and nobody gives it: those it expects of the program."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise BadTests(f"the tests do not parse: {error}") from error
    read: set[str] = set()
    given = set(dir(builtins))
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else given).add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            given.add(node.name)
        elif isinstance(node, ast.arg):
            given.add(node.arg)
        elif isinstance(node, ast.alias):
            given.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.ExceptHandler) and node.name:
            given.add(node.name)
    return sorted(read - given)


def _complaint(reply: dict[str, Any]) -> str:
    error = reply.get("error")
    return ": ".join(str(part) for part in error)[:500] if isinstance(error, list) else str(reply)[:200]
