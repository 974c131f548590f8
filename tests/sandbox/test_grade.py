"""Whatever a program does, it is judged, and no wrong one passes: each way out that was thought of, and noise."""

import math
import os
import shutil
import sys
import time
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ascent.sandbox.grade import BadTests, grade, normalized_lines, run_once
from ascent.sandbox.limits import Limits
from ascent.sandbox.programs import Sandbox, Suite
from tests.sandbox.hostile import programs_in

LIMITS = Limits(
    wall_seconds=4.0, test_seconds=2.0, cpu_seconds=4, memory_mb=256, processes=12, output_kb=256
)
FIB_90 = 2880067194370816120

needs_bubblewrap = pytest.mark.skipif(
    shutil.which("bwrap") is None and os.environ.get("CI") != "true",
    reason="the package bubblewrap is not installed (with CI=true this is a failure)",
)


@pytest.fixture(scope="module")
def sandbox():
    made = Sandbox(workers=1, limits=LIMITS)
    yield made
    made.close()


def test_space_at_line_ends_does_not_count():
    assert normalized_lines("1 2 \n3\n\n") == normalized_lines("1 2\r\n3") == ["1 2", "3"]
    assert normalized_lines("1\n\n2") != normalized_lines("1\n2")
    assert normalized_lines(" 1") != normalized_lines("1")


# What a wrong program answers to `solve`, or does instead, under every style of tests.
NEVER_RIGHT = programs_in("never_right.txt")
STYLES = {
    "stdio": Suite.stdio([("8\n", "48\n"), ("9\n", "49\n")]),
    "calls": Suite.calls("solve", [((8,), 48), ((9,), 49)]),
    "asserts": Suite.asserts(
        ["assert solve(8) == 48", "assert [solve(9)] == [49] and 49 in {solve(9)}"]
    ),
}


@needs_bubblewrap
@pytest.mark.parametrize("way", NEVER_RIGHT)
def test_a_wrong_program_is_wrong_whatever_it_does(way, sandbox):
    found = sandbox.grade([(NEVER_RIGHT[way], suite) for suite in STYLES.values()])
    assert [verdict.fraction for verdict in found] == [0.0, 0.0, 0.0]
    "".join(verdict.detail for verdict in found).encode()  # what is told of it can be written down


class Way(NamedTuple):
    """A program, the arguments of `Suite.STYLE`, and what each test must say."""

    program: str
    style: str
    tests: tuple[Any, ...]
    passed: tuple[bool, ...]
    options: dict[str, Any] = {}  # noqa: RUF012 - never changed


PATCH = "import sys\nsys.modules['__main__'].encode = lambda *a: "
EMPTIED = "def f(xs):\n    xs.clear()\n    return []"
STOPS = "def f(n): raise StopIteration"
JUDGED = {
    # tests that ask in one line and assert in the next
    "set-up line, wrong": Way(
        "def f(n): return 3", "asserts", (["r = f(10)", "assert r == 55"],), (False,)
    ),
    "set-up line, right": Way(
        "def f(n): return 55", "asserts", (["r = f(10)", "assert r == 55"],), (True,)
    ),
    "set-up line, absent": Way("g = 1", "asserts", (["r = f(10)", "assert r == 55"],), (False,)),
    "set-up asks": Way(
        "def f(n): return 3", "asserts", (["assert r == 55"],), (False,), {"setup": "r = f(10)"}
    ),
    "later test, earlier answer": Way(
        *(
            "def f(n): return 3",
            "asserts",
            (["assert f(1) == 3", "assert seen == [1]"],),
            (True, False),
        ),
        {"setup": "seen = []"},
    ),
    # answers that end iteration
    "all of a map": Way(STOPS, "asserts", (["assert all(map(f, [1, 2]))"],), (False,)),
    "zip": Way(
        STOPS, "asserts", (["for a, b in zip(map(f, [1]), [2]):\n    assert a == b"],), (False,)
    ),
    "next with a default": Way(
        STOPS, "asserts", (["assert next(map(f, [1]), None) is None"],), (False,)
    ),
    "called until": Way(
        STOPS, "asserts", (["assert list(iter(lambda: f(1), 0)) == []"],), (False,)
    ),
    "async for": Way(
        "def f(n): raise StopAsyncIteration",
        "asserts",
        (
            [
                "import asyncio\nclass A:\n    def __aiter__(self): return self\n"
                "    async def __anext__(self): return f(1)\n"
                "async def main():\n    async for x in A(): assert x == 1\nassert asyncio.run(main()) is None"
            ],
        ),
        (False,),
    ),
    # the tests' own values
    "emptied input": Way(
        EMPTIED, "asserts", (["xs = [3, 1]", "assert f(xs) == sorted(xs)"],), (False,)
    ),
    "emptied input, later": Way(
        EMPTIED, "asserts", (["xs = [3, 1]\ny = f(xs)\nassert y == sorted(xs)"],), (False,)
    ),
    "emptied dict": Way(
        *(
            "def f(d):\n    d.clear()\n    return 0",
            "asserts",
            (["d = {1: 2}\nassert f(d) == sum(d)"],),
            (False,),
        ),
    ),
    "sorted in place": Way(
        "def f(xs): xs.sort()", "asserts", (["xs = [3, 1]\nf(xs)\nassert xs == [1, 3]"],), (True,)
    ),
    "one list for every answer": Way(
        *("a = []\ndef f(n):\n    a.append(n)\n    return a", "asserts"),
        *((["x = f(1)\ny = f(2)\nassert x == [1] and y == [1, 2]"],), (True,)),
    ),
    "doc of its own": Way("def f(n): pass", "asserts", (["assert f.__doc__"],), (False,)),
    # what equals what
    "float for an integer": Way(
        f"def f(n): return float({FIB_90})", "calls", ("f", [((90,), FIB_90)]), (False,)
    ),
    "True in a set": Way("def f(n): return {True}", "calls", ("f", [((1,), {1})]), (False,)),
    "True for a key": Way("def f(n): return {True: 2}", "calls", ("f", [((1,), {1: 2})]), (False,)),
    "surrogate": Way("def f(n): return '\\ud800'", "calls", ("f", [((1,), "?")]), (False,)),
    "surrogates": Way(
        "def f(n): return '\\ud83d\\ude00'", "calls", ("f", [((1,), "\U0001f600")]), (False,)
    ),
    "bytes": Way(
        "import sys\nsys.stdout.buffer.write(b'\\xff')", "stdio", ([("", "\ufffd")],), (False,)
    ),
    "other line ends": Way(
        "print('1\\v2\\f3\\x1c4\\x85')", "stdio", ([("", "1\n2\n3\n4")],), (False,)
    ),
    "iterator": Way("def f(n): return iter([n])", "asserts", (["assert f(1) == [1]"],), (False,)),
    "range": Way("def f(n): return range(n)", "asserts", (["assert f(2) == [0, 1]"],), (False,)),
    "keys": Way("def f(n): return {n: 0}.keys()", "calls", ("f", [((1,), [1])]), (False,)),
    # answers that nobody can read
    "complex": Way(
        f"{PATCH}{{'c': [10 ** 400, 0]}}\ndef f(n): 0", "calls", ("f", [((1,), 1)]), (False,)
    ),
    "passed on, deep": Way(
        *("def f(n):\n    a = []\n    for _ in range(960): a = [a]\n    return a", "asserts"),
        *(([f"x = f({n})\nassert f(x) == 1" for n in range(3)],), (False,) * 3),
    ),
    # right ones that were lost
    "local of the same name": Way(
        "def f(n): return n",
        "asserts",
        (["def c():\n    f = 1\n    return f\nassert f(3) == 3"],),
        (True,),
    ),
    "own function as argument": Way(
        "def f(n): return n\ndef g(h, n): return h(n)",
        "asserts",
        (["assert g(f, 3) == 3"],),
        (True,),
    ),
    "type as argument": Way(
        "def f(t): return t('3')", "asserts", (["assert f(int) == 3"],), (True,)
    ),
    "built-in's name": Way(
        "def sum(a, b): return a + b", "asserts", (["assert sum(1, 2) == 3"],), (True,)
    ),
    "attributes": Way(
        *(
            "class Node: pass\ndef f(n): return n.left.value",
            "asserts",
            (["assert f(root) == 3"],),
            (True,),
        ),
        {"setup": "root = Node()\nroot.left = Node()\nroot.left.value = 3"},
    ),
    "long argument, later": Way(
        "f = len",
        "asserts",
        (["assert f([1]) == 1", "assert f([0] * 300_000) == 300_000"],),
        (True, True),
    ),
    "method of Solution": Way(
        "class Solution:\n    def f(self, n): return n", "calls", ("f", [((1,), 1)]), (True,)
    ),
    "set of sets": Way(
        "def f(n): return {frozenset({n})}", "calls", ("f", [((1,), {frozenset({1})})]), (True,)
    ),
    "iterator, taken": Way(
        "def f(n): return iter([n])", "asserts", (["assert next(f(1)) == 1"],), (True,)
    ),
    "written at exit": Way(
        "import atexit\natexit.register(print, 8)", "stdio", ([("", "8")],), (True,)
    ),
    "written by a thread": Way(
        "import threading, time\ndef main():\n    time.sleep(0.2)\n    print(8)\nthreading.Thread(target=main).start()",
        *("stdio", ([("", "8")],), (True,)),
    ),
    "written by a stream of its own": Way(
        *(
            "import sys\nclass Fast:\n    text, out = '', sys.stdout\n    def write(self, s): self.text += s\n"
            "    def flush(self):\n        self.out.write(self.text)\n        self.out.flush()\n"
            "sys.stdout = Fast()\nprint(8)",
            "stdio",
            ([("", "8")],),
            (True,),
        ),
    ),
    "exit": Way("print(8)\nexit()", "stdio", ([("", "8")],), (True,)),
    "exit in a call": Way("def f(n): exit(0)", "calls", ("f", [((1,), 1)]), (False,)),
    "a file of its own": Way(
        *("open('stream', 'w')\nprint(8)", "stdio", ([("", "8"), ("", "8")],), (True, True)),
    ),
    "dataclass": Way(
        *(
            "from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\n"
            "def f(n): return P(n).x",
            "calls",
            ("f", [((1,), 1)]),
            (True,),
        ),
    ),
    "error that cannot be shown, once": Way(
        *("def f(n):\n    if n:\n        raise ValueError(10 ** 5000)\n    return 0", "calls"),
        *(("f", [((1,), 1), ((0,), 0)]), (False, True)),
    ),
}


@needs_bubblewrap
@pytest.mark.parametrize("way", JUDGED)
def test_every_program_is_judged(way, sandbox):
    program, style, tests, passed, options = JUDGED[way]
    (verdict,) = sandbox.grade([(program, getattr(Suite, style)(*tests, **options))])
    assert verdict.passed == passed, verdict


@needs_bubblewrap
def test_a_program_that_answers_just_before_its_clock_ends_is_judged():
    """The tests have time of their own, and a slow test costs the program none."""
    slow = "import time\ndef f(n):\n    time.sleep(1.2 * (n == 0))\n    return n"
    tests = Suite.asserts(
        ["assert f(0) == 0", "import time\ntime.sleep(0.6)\nassert f(1) == 1", "assert f(2) == 3"]
    )
    sandbox = Sandbox(workers=1, limits=replace(LIMITS, wall_seconds=1.6, test_seconds=1.6))
    (verdict,) = sandbox.grade([(slow, tests)])
    sandbox.close()
    assert verdict.passed == (True, True, False), verdict


@needs_bubblewrap
def test_tests_that_start_slowly_are_not_bad():
    """No program has run before the first call, so only a busy machine can be the reason."""
    tests = Suite.asserts(["import time\ntime.sleep(1.5)\nassert f(1) == 1", "assert f(2) == 3"])
    sandbox = Sandbox(workers=1, limits=replace(LIMITS, wall_seconds=1.0, test_seconds=1.0))
    (verdict,) = sandbox.grade([("def f(n): return n", tests)])
    sandbox.close()
    assert verdict.passed == (True, False), verdict


BAD = {
    "before anything is asked": (["import nosuchmodule", "assert f(1) == 1"], ""),
    "after something was asked": (
        ["assert f(1) == 1", "import nosuchmodule\nassert f(1) == 1"],
        "",
    ),
    "by hanging": (["import time\ntime.sleep(30)\nassert f(1) == 1"], ""),
    "in the set-up": (["assert f(1) == 1"], "1 / 0"),
    "by passing what cannot travel": (["assert f(print) == 1"], ""),
    "by never asking": (["for n in []:\n    assert f(n) == 1"], ""),
}


@needs_bubblewrap
@pytest.mark.parametrize("how", BAD)
def test_tests_that_fail_for_every_program_are_bad(how, sandbox):
    cases, setup = BAD[how]
    (verdict,) = sandbox.grade([("def f(n): return 1", Suite.asserts(cases, setup=setup))])
    assert verdict.passed is None and verdict.reason == "bad_tests", verdict


FORGE = """
import json, os, struct
data = json.dumps(%s).encode()
for fd in range(3, 64):
    try:
        os.write(fd, struct.pack(">I", len(data)) + data)
    except OSError:
        pass
"""


@needs_bubblewrap
@pytest.mark.parametrize(
    "frame",
    [
        *[
            '{"value": {"status": 0, "stdout": "8"}}',
            '{"value": {"status": [], "stdout": "8", "stderr": ""}}',
        ],
        *[
            '{"value": {"status": True, "stdout": "8", "stderr": ""}}',
            '{"value": 3, "error": {}}',
            "{}",
        ],
        '{"value": json.loads("[" * 900 + "]" * 900)}',
    ],
)
def test_a_script_that_forges_its_own_end(frame, sandbox):
    output = sandbox.run(FORGE % frame)
    assert (output.status, output.error) == (None, "garbage")
    (verdict,) = sandbox.grade([(FORGE % frame, Suite.stdio([("", "9")]))])
    assert verdict.passed == (False,)


@needs_bubblewrap
def test_what_a_script_prints_can_be_written_down(sandbox):
    output = sandbox.run(
        "import sys\nsys.stdout.buffer.write(b'a\\xff')\nsys.stderr.buffer.write(b'\\xff')"
    )
    assert output.stdout == "a?" and output.status == 0 and output.stderr.encode()


class Echo:
    """A session that says whatever it is told to, in turn; then the last of it for ever."""

    def __init__(self, frames):
        self._frames = list(frames)

    def send(self, message, seconds):
        pass

    def receive(self, seconds):
        return self._frames.pop(0) if len(self._frames) > 1 else self._frames[0]

    def ask(self, message, seconds):
        return self.receive(seconds)

    def close(self):
        pass


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.sampled_from([48, 10**400])
    | st.floats()
    | st.text(st.characters(), max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from("ifcbutsdrqgyh") | st.text(max_size=2), inner, max_size=2)
    ),
    max_leaves=8,
)
ENCODED = st.dictionaries(st.sampled_from("ifcbutsdrqgyh"), JSON, min_size=1, max_size=1)
KEYS = st.sampled_from(["value", "error", "changed", "ask", "unsupported"])
FRAMES = st.lists(
    st.fixed_dictionaries({"value": ENCODED | JSON}) | st.dictionaries(KEYS, JSON, max_size=3),
    min_size=1,
    max_size=3,
)


def job_of(style):
    suite = {**STYLES, "asserts": Suite.asserts(["assert solve(8) == 48"])}[style]
    more = {
        name: getattr(suite, name, "")
        for name in ("function", "setup", "tolerance", "prelude", "names", "standalone")
    }
    return {"style": style, "source": "", "cases": suite.cases, "stdin": "", **more}


@pytest.mark.parametrize("style", [*STYLES, "run"])
@settings(max_examples=100, deadline=None)
@given(frames=FRAMES)
@example(frames=[{"value": {"f": 10**400}}])
@example(frames=[{"value": {"c": [0, 10**400]}}])
@example(frames=[{"value": {"status": 0, "stdout": "8"}}])
@example(frames=[{"error": ["\ud800"]}])
def test_no_frame_of_a_program_stops_the_grader(style, frames):
    """The tests' side asks once and then fails, so that nothing passes."""

    def start(side):
        tests = [
            {"value": None},
            {"ask": {"op": "name", "name": "solve"}},
            {"error": ["AssertionError", ""]},
        ]
        return Echo(tests if side == "tests" else [{"value": None}, *frames])

    if style == "run":
        found = run_once(job_of("stdio"), LIMITS, start)
        assert found["status"] is None or isinstance(found["stdout"].encode(), bytes)
        return
    found = grade(job_of(style), LIMITS, start)
    assert not any(found["passed"]) or any(
        48 in _leaves(frame) or 49 in _leaves(frame) for frame in frames
    )
    assert isinstance(found["detail"].encode(), bytes)


def _leaves(value):
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in _leaves(item)]
    return (
        [leaf for item in value for leaf in _leaves(item)] if isinstance(value, list) else [value]
    )


def test_tests_that_die_before_they_ask_are_bad_and_later_they_count_against_the_program():
    asks = {"ask": {"op": "name", "name": "solve"}}
    program = [{"value": None}, {"value": 1}]
    fails = {"error": ["MemoryError", "no memory"]}

    def judged(*frames):
        return grade(
            job_of("asserts"), LIMITS, lambda side: Echo(frames if side == "tests" else program)
        )

    with pytest.raises(BadTests, match="before it calls the program: MemoryError"):
        judged(fails)
    assert judged({"value": None}, asks, fails)["passed"] == [False]


class Slow(Echo):
    """Reads at the last moment, and answers at the last moment after that."""

    def __init__(self, frames):
        super().__init__(frames)
        self.taken = 0.0

    def send(self, message, seconds):
        time.sleep(0.9 * seconds)
        self.taken += 0.9 * seconds

    def receive(self, seconds):
        time.sleep(max(0.9 * seconds, 0))
        self.taken += max(0.9 * seconds, 0)
        return super().receive(seconds)


def test_a_program_that_reads_late_has_no_more_time():
    slow = Slow([{"value": None}])
    grade(job_of("calls"), replace(LIMITS, wall_seconds=0.5, test_seconds=0.5), lambda side: slow)
    assert slow.taken <= 0.5


def test_integers_of_any_length_and_answers_of_any_depth_are_compared():
    for value in (10**4000, {"i": hex(10**9000)}, {"c": [1, 10**4000]}, math.inf, {"t": {"a": 1}}):
        frames = [{"value": None}, {"value": {"h": 0}}, {"value": value}]
        assert grade(job_of("calls"), LIMITS, lambda side, f=frames: Echo(f))["passed"] == [
            False,
            False,
        ]
    deep: Any = 48
    for _ in range(sys.getrecursionlimit() * 2):
        deep = [deep]
    assert grade(job_of("calls"), LIMITS, lambda side: Echo([{}, {}, {"value": deep}]))[
        "passed"
    ] == [False, False]
