"""Tests of a prompt in every layout that is read, and everything else refused by name."""

import base64
import json
import os
import pickle
import shutil
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascent.records import Message, Prompt
from ascent.rewards.outcome import Unscored
from ascent.rewards.program_tests import load_tests
from ascent.sandbox.limits import Limits
from ascent.sandbox.programs import Sandbox

LIMITS = Limits(wall_seconds=5, test_seconds=2)
DOUBLE = "def double(n):\n    return 2 * n\nif __name__ == '__main__':\n    print(double(int(input())))\n"
WRONG = "def double(n):\n    return 8 if n else 1\nif __name__ == '__main__':\n    print(7)\n"

needs_bubblewrap = pytest.mark.skipif(
    shutil.which("bwrap") is None and os.environ.get("CI") != "true",
    reason="the package bubblewrap is not installed (with CI=true this is a failure)",
)


def prompt(info, answer=None, said="Double it."):
    return Prompt("data.jsonl:7", (Message("user", said),), answer, info)


def packed(cases):
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(cases)))).decode()


STDIN = [
    {"input": "4", "output": "8", "testtype": "stdin"},
    {"input": "5\n", "output": "10\n", "testtype": "stdin"},
]
FUNCTIONAL = [
    {"input": "4", "output": "8", "testtype": "functional"},
    {"input": "5\n", "output": "10"},
]
FUNCTIONAL[1]["testtype"] = "functional"
IN_OUT = {"inputs": ["4", "5"], "outputs": ["8", "10\n"]}
CALLED = {"fn_name": "double", "inputs": [[4], [5]], "outputs": [[8], [10]]}
ASSERTS = ["assert double(4) == 8", "assert double(5) == 10"]
CHECK = "def check(candidate):\n    assert candidate(4) == 8\n    assert candidate(5) == 10\n"
NAMED = json.dumps({"func_name": "double"})

READ = {
    "stdio": prompt({"tests": {"stdio": [["4", "8"], ["5", "10"]]}}),
    "stdio, named": prompt(
        {"tests": {"stdio": [{"input": "4", "output": "8"}, {"input": "5", "output": "10"}]}}
    ),
    "stdio, other columns empty": prompt(
        {"tests": {"stdio": [["4", "8"], ["5", "10"]], "calls": None}}
    ),
    "calls": prompt({"tests": {"function": "double", "calls": [[[4], 8], [[5], 10]]}}),
    "calls, named": prompt(
        {"tests": {"function": "double", "calls": [{"input": [4], "output": 8}, [[5], 10]]}}
    ),
    "calls, JSON": prompt(
        {"tests": json.dumps({"function": "double", "calls": [[[4], 8], [[5], 10]]})}
    ),
    "asserts": prompt({"tests": {"asserts": ASSERTS, "setup": "import math"}}),
    "asserts, no set-up": prompt({"tests": {"asserts": ASSERTS, "setup": None}}),
    "asserts, a list": prompt({"tests": ASSERTS}),
    "APPS": prompt({"input_output": json.dumps(IN_OUT), "solutions": "[]"}),
    "APPS, lines": prompt(
        {"input_output": {"inputs": [["4"], ["5", ""]], "outputs": [["8"], ["10"]]}}
    ),
    "APPS, called": prompt({"input_output": json.dumps(CALLED)}),
    "APPS, not wrapped": prompt({"input_output": json.dumps({**CALLED, "outputs": [8, 10]})}),
    "APPS, in tests": prompt({"tests": IN_OUT}),
    "MBPP": prompt({"test_list": ASSERTS, "test_setup_code": "", "challenge_test_list": []}),
    "MBPP, sanitized": prompt(
        {"test_list": ASSERTS, "test_imports": ["import math"], "code": "..."}
    ),
    "MBPP, CSV": prompt({"test_list": json.dumps(ASSERTS), "test_imports": None}),
    "HumanEval": prompt({"test": CHECK, "entry_point": "double", "canonical_solution": "..."}),
    "LiveCodeBench": prompt(
        {"public_test_cases": json.dumps(STDIN[:1]), "private_test_cases": packed(STDIN[1:])}
    ),
    "LiveCodeBench, plain": prompt(
        {"private_test_cases": json.dumps(STDIN), "public_test_cases": "[]"}
    ),
    "LiveCodeBench, called": prompt(
        {"private_test_cases": json.dumps(FUNCTIONAL), "metadata": NAMED}
    ),
    "LiveCodeBench, one list": prompt({"tests": FUNCTIONAL, "metadata": {"func_name": "double"}}),
    "LiveCodeBench, names in the cases": prompt(
        {"tests": [{**each, "metadata": NAMED} for each in FUNCTIONAL]}
    ),
    "verl": prompt({}, json.dumps(IN_OUT)),
    "verl, a mapping that became text": prompt({}, str(IN_OUT)),
    "verl, called": prompt({}, json.dumps({**IN_OUT, "fn_name": "double"})),
    "verl, asserts": prompt(
        {}, json.dumps({"assert_case": ASSERTS, "inputs": ["", ""], "outputs": [None, None]})
    ),
}


@needs_bubblewrap
def test_every_layout_tells_right_programs_from_wrong_ones():
    suites = {name: load_tests(each) for name, each in READ.items()}
    sandbox = Sandbox(workers=1, limits=LIMITS)
    found = sandbox.grade(
        [(source, suite) for suite in suites.values() for source in (DOUBLE, WRONG)]
    )
    sandbox.close()
    right, wrong = (
        dict(zip(suites, found[::2], strict=True)),
        dict(zip(suites, found[1::2], strict=True)),
    )
    assert {name: verdict for name, verdict in right.items() if verdict.solved is not True} == {}
    assert {name: verdict for name, verdict in wrong.items() if verdict.solved is not False} == {}


SPECIAL = {
    "the rest of a function": (
        prompt({"test": CHECK, "entry_point": "double"}, said='def double(n):\n    """Twice."""\n'),
        *("    return 2 * n\n", "    return n\n"),
    ),
    "a function again, with what the prompt gives": (
        prompt(
            {"test": "def check(c):\n    assert c([1]) == helped(2)", "entry_point": "f"},
            said="from typing import List\ndef helped(n):\n    return n\ndef f(x: List[int]) -> int:\n    pass\n",
        ),
        *("def f(x: List[int]) -> int:\n    return 2", "def f(x: List[int]) -> int:\n    return 3"),
    ),
    "LeetCode's imports": (
        prompt({"tests": {"fn_name": "f", "inputs": [[[1, 1]]], "outputs": [2]}}),
        *(
            f"class Solution:\n    def f(self, xs: List[int]): return Counter(xs)[1] * pow(1, 1, {n})"
            for n in (2, 1)
        ),
    ),
    "keys that are numbers": (
        prompt({"tests": {"fn_name": "f", "inputs": [[{"1": 2}]], "outputs": [[{"2": 1}]]}}),
        *("def f(d): return {v: k for k, v in d.items()}", "def f(d): return {'2': 1}"),
    ),
    "a list that is not wrapped": (
        prompt({"tests": {"fn_name": "f", "inputs": [[1], [2]], "outputs": [[1], [1, 2]]}}),
        *("def f(n): return list(range(1, n + 1))", "def f(n): return 1 if n == 1 else [1, 2]"),
    ),
    "arguments on lines": (
        prompt({}, json.dumps({"fn_name": "f", "inputs": ['[1, 2]\n"a"'], "outputs": ['"a3"']})),
        *("def f(xs, s): return s + str(sum(xs))", "def f(xs, s): return 3"),
    ),
    "no arguments": (
        prompt({}, json.dumps({"fn_name": "f", "inputs": [""], "outputs": ["[]"]})),
        *("def f(): return []", "def f(): return None"),
    ),
}


@needs_bubblewrap
def test_what_a_layout_supplies():
    sandbox = Sandbox(workers=1, limits=LIMITS)
    for name, (asked, right, wrong) in SPECIAL.items():
        found = sandbox.grade([(right, load_tests(asked)), (wrong, load_tests(asked))])
        assert [verdict.solved for verdict in found] == [True, False], (name, found)
    sandbox.close()


REFUSED = {
    "integer stdin": (
        {"stdio": [[4, "8"]]},
        r"the input of case 0 is 4 \(int\), but it must be text",
    ),
    "null output": ({"stdio": [["4", None]]}, "the output of case 0 is None"),
    "no UTF-8": ({"stdio": [["4", "\udcff"]]}, "the output of case 0 is no UTF-8"),
    "outputs of nothing": ({"stdio": [["4", ""], ["5", "\n"]]}, "every expected output is empty"),
    "stdio, other names": (
        {"stdio": [{"in": "4", "out": "8"}]},
        r"case 0 is \{'in': '4'.*, but it is \[input, output\]",
    ),
    "stdio, three": ({"stdio": [["4", "8", "9"]]}, "case 0 is"),
    "stdio, a text": ({"stdio": "48"}, "stdio is 48"),
    "stdio, none": ({"stdio": []}, "no tests"),
    "asserts, a mapping": (
        {"asserts": {"a": 1}},
        r"asserts is \{'a': 1\} \(dict\), but it is a list",
    ),
    "asserts, a text": ({"asserts": "assert f(1) == 1"}, "no JSON"),
    "asserts, numbers": ({"asserts": [1]}, "test 0 is 1 "),
    "asserts, null": ({"asserts": [None]}, "test 0 is None"),
    "asserts, a number for set-up": ({"asserts": ["assert f(1)"], "setup": 3}, "the set-up is 3"),
    "asserts that ask nothing": ({"asserts": ["assert 1 == 2"]}, "calls nothing of the program"),
    "asserts of a tuple": ({"asserts": ["assert (f(1) == 2, 'no')"]}, "always true"),
    "asserts never called": (
        {"asserts": ["def test_f():\n    assert f(1) == 2"]},
        "nothing is asserted",
    ),
    "calls without a function": ({"calls": [[[1], 1]]}, "in no layout"),
    "calls of no name": ({"calls": [[[1], 1]], "function": "a.b"}, "the name of a function"),
    "calls, a text for arguments": (
        {"calls": [["ab", 1]], "function": "f"},
        "the arguments of case 0 are a str",
    ),
    "calls of nothing": (
        {"calls": [[[1], None]], "function": "f"},
        "every expected value of f is None",
    ),
    "calls of NaN": (
        {"calls": [[[1], [float("nan")]]], "function": "f"},
        "equals nothing, not even itself",
    ),
    "tolerance": ({"calls": [[[1], 1.0]], "function": "f", "tolerance": "1"}, "tolerance='1'"),
    "two layouts": (
        {"stdio": [["4", "8"]], "asserts": ["assert f(1)"]},
        "tests have 'asserts' beside stdio",
    ),
    "a slip": ({"stdoi": [["4", "8"]]}, "tests with 'stdoi' are in no layout"),
    "nothing": ({}, "tests with nothing"),
    "a number": (3, "tests are 3"),
    "words": ("see below", "no JSON"),
    "APPS, lengths": ({"inputs": ["1"], "outputs": []}, "1 inputs, but 0 outputs"),
    "APPS, numbers": ({"inputs": [1], "outputs": ["1"]}, "the input of case 0 is 1"),
    "APPS, null": ({"inputs": ["1"], "outputs": [None]}, "the output of case 0 is None"),
    "APPS, another key": (
        {"inputs": ["1"], "outputs": ["1"], "func_name": "f"},
        "tests have 'func_name' beside",
    ),
    "APPS, arguments": (
        {"inputs": [1], "outputs": [1], "fn_name": "f"},
        "the arguments of a case is 1",
    ),
    "HumanEval, no check": (
        {"test": "assert f(1) == 1", "entry_point": "f"},
        r"defines check\(candidate\)",
    ),
    "HumanEval, no name": ({"test": CHECK, "entry_point": 3}, "the name of a function"),
    "MBPP, imports": (
        {"test_list": ASSERTS, "test_imports": [3]},
        "test_imports and test_setup_code are",
    ),
    "LiveCodeBench, no name": (FUNCTIONAL, "functional with 0 function names"),
    "LiveCodeBench, both": ([*FUNCTIONAL, *STDIN], "testtype functional, stdin with"),
    "LiveCodeBench, no output": ([{"input": "4"}], "case 0 is"),
    "LiveCodeBench, no JSON": (
        [{**FUNCTIONAL[0], "output": "eight", "metadata": NAMED}],
        "no JSON",
    ),
    "verl, both": (
        {"assert_case": ASSERTS, "inputs": ["4"], "outputs": ["8"]},
        "assert_case beside inputs",
    ),
    "deep": ("[" * 100_000, "recursion|JSON|nested"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_everything_else_is_refused(name):
    tests, words = REFUSED[name]
    with pytest.raises(Unscored, match=words) as refused:
        load_tests(prompt({"tests": tests}))
    assert refused.value.kind == "bad_tests"


def test_a_pickle_is_not_run(tmp_path):
    class Hostile:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path / 'ran'}",)

    text = base64.b64encode(zlib.compress(pickle.dumps(Hostile()))).decode()
    with pytest.raises(Unscored, match=r"system in packed test cases"):
        load_tests(prompt({"private_test_cases": text}))
    assert not (tmp_path / "ran").exists()
    with pytest.raises(Unscored, match="neither JSON nor packed JSON"):
        load_tests(prompt({"private_test_cases": "eJwrTi0uTk"}))


@pytest.mark.parametrize(
    ("info", "answer"), [({}, None), ({"tests": None}, None), ({"test": "..."}, "42")]
)
def test_a_prompt_without_tests(info, answer):
    with pytest.raises(Unscored) as missing:
        load_tests(prompt(info, answer))
    assert missing.value.kind == "no_tests"


KEYS = (
    "stdio",
    "calls",
    "function",
    "asserts",
    "setup",
    "inputs",
    "outputs",
    "fn_name",
    "test",
    "entry_point",
    "input",
)
ANY = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=3)
    | st.sampled_from(["f", "assert f(1)"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from([*KEYS, "output", "testtype", "metadata", "test_list"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=10,
)


@settings(max_examples=300, deadline=None)
@given(
    tests=ANY,
    columns=st.dictionaries(
        st.sampled_from([*KEYS, "input_output", "private_test_cases"]), ANY, max_size=3
    ),
)
def test_whatever_stands_there_is_read_or_refused(tests, columns):
    for asked in (
        prompt({"tests": tests}),
        prompt(columns),
        prompt({}, json.dumps(tests)),
        prompt({}, str(tests)),
    ):
        try:
            suite = load_tests(asked)
        except Unscored as refused:
            assert refused.kind in ("bad_tests", "no_tests")
        else:
            json.dumps(suite.cases)
