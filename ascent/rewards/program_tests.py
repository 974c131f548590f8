"""Hidden tests of a prompt, in the layouts that data sets have."""

from __future__ import annotations

import ast
import base64
import io
import json
import pickle
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ascent.records import Prompt
from ascent.rewards.outcome import Unscored
from ascent.sandbox.programs import Suite

# What LeetCode's own environment supplies; its programs rely on it. `builtins` again, because `math` has a `pow`.
LEETCODE = """import bisect, collections, functools, heapq, itertools, math, operator, re, string, sys
from bisect import *
from collections import *
from functools import *
from heapq import *
from itertools import *
from math import *
from typing import *
from builtins import *
"""
STDIN = ("stdin", "stdin_stdout")

Fields = Mapping[str, Any]


def suite_of(prompt: Prompt) -> Suite:
    """The tests of a prompt; Unscored where it has none (`no_tests`) or where they cannot be read (`bad_tests`).

    They stand in the column `tests` in any of these layouts, or under the columns' own names; verl's stand in
    `reward_model.ground_truth`, which is the prompt's answer. A value may be JSON text. None counts as absent, because
    a table has every column in every row. Whatever else is found is refused.

    | from | layout |
    |---|---|
    | Ascent | `{"stdio": CASES}`; a case is `[INPUT, OUTPUT]` or `{"input": .., "output": ..}`, both text |
    | Ascent | `{"function": NAME, "calls": CASES, "tolerance": 1e-9}`; a case is `[ARGUMENTS, VALUE]`, or as above |
    | Ascent | `{"asserts": [CODE, ...], "setup": CODE}`, or the list alone |
    | APPS | `input_output`: `{"inputs": [..], "outputs": [..]}`, texts or lists of lines |
    | APPS | the same with `"fn_name"`: lists of arguments, and values, which may each stand in a list of one |
    | MBPP | `test_list`, with `test_setup_code` and `test_imports` |
    | HumanEval | `test`, which defines `check(candidate)`, and `entry_point` |
    | LiveCodeBench | `private_test_cases`, `public_test_cases`, or one list: `[{"input", "output", "testtype"}, ..]` |
    | LiveCodeBench | functional ones: an argument as JSON on each line, the name in `metadata["func_name"]` |
    | verl | APPS's, where texts under `"fn_name"` hold an argument as JSON on each line |
    | verl | `{"assert_case": [CODE, ..]}` |
    """
    info = {name: value for name, value in prompt.info.items() if value is not None}
    try:
        if "tests" in info:
            return _suite(info["tests"], info, prompt)
        for needs, more, read in _COLUMNS:
            if needs <= info.keys():
                return read({name: info[name] for name in info.keys() & (needs | more)}, prompt)
        if prompt.answer is not None and prompt.answer.lstrip()[:1] in ("{", "["):
            return _suite(prompt.answer, info, prompt)
    except (ValueError, RecursionError) as error:
        raise Unscored("bad_tests", str(error)) from None
    raise Unscored("no_tests", "the prompt has no tests: no column tests, and none of a layout of docs/rewards.md")


def _suite(value: Any, info: Fields, prompt: Prompt) -> Suite:
    value = _parsed(value)
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        return Suite.asserts(value)
    if isinstance(value, list):
        return _typed({"tests": value, "metadata": info.get("metadata")}, prompt)
    if not isinstance(value, Mapping):
        raise ValueError(f"tests are {_shown(value)}, but they are a mapping or a list")
    fields = {name: found for name, found in value.items() if found is not None}
    for needs, more, read in _LAYOUTS:
        if needs <= fields.keys():
            strange = sorted(fields.keys() - needs - more)
            if strange:
                known = ", ".join(sorted(needs | more))
                raise ValueError(f"tests have {strange[0]!r} beside {', '.join(sorted(needs))}; they may have {known}")
            return read(fields, prompt)
    raise ValueError(f"tests with {', '.join(map(repr, fields)) or 'nothing'} are in no layout of docs/rewards.md")


def _stdio(fields: Fields, prompt: Prompt) -> Suite:
    return Suite.stdio([_pair(case, place) for place, case in enumerate(_list(fields["stdio"], "stdio"))])


def _calls(fields: Fields, prompt: Prompt) -> Suite:
    cases = [_pair(case, place) for place, case in enumerate(_list(fields["calls"], "calls"))]
    return Suite.calls(fields["function"], cases, tolerance=fields.get("tolerance", 1e-9))


def _asserts(fields: Fields, prompt: Prompt) -> Suite:
    return Suite.asserts(_list(fields["asserts"], "asserts"), setup=fields.get("setup", ""))


def _apps(fields: Fields, prompt: Prompt) -> Suite:
    inputs, outputs = _list(fields["inputs"], "inputs"), _list(fields["outputs"], "outputs")
    if len(inputs) != len(outputs):
        raise ValueError(f"{len(inputs)} inputs, but {len(outputs)} outputs; each input has one")
    if "fn_name" not in fields:
        return Suite.stdio([(_lines(given), _lines(want)) for given, want in zip(inputs, outputs, strict=True)])
    name = fields["fn_name"]
    if inputs and all(isinstance(given, str) for given in inputs):
        cases = [_call_in_lines(given, want) for given, want in zip(inputs, outputs, strict=True)]
        return Suite.calls(name, cases, prelude=LEETCODE)
    # Most outputs are wrapped in a list of one and some are not; where all have one item, nobody can tell.
    wrapped = all(isinstance(want, list) and len(want) == 1 for want in outputs)
    wants = [[_keys(want[0])] if wrapped else _keys(want) for want in outputs]
    given = [[_keys(arg) for arg in _list(args, "the arguments of a case")] for args in inputs]
    return Suite.calls(name, list(zip(given, wants, strict=True)), unwrap=wrapped, prelude=LEETCODE)


def _in_column(fields: Fields, prompt: Prompt) -> Suite:
    return _suite(fields["input_output"], {}, prompt)


def _mbpp(fields: Fields, prompt: Prompt) -> Suite:
    setup = [*_list(fields.get("test_imports", []), "test_imports"), fields.get("test_setup_code", "")]
    if not all(map(_is_text, setup)):
        raise ValueError(f"test_imports and test_setup_code are {_shown(setup)}, but they are code")
    return Suite.asserts(_list(fields["test_list"], "test_list"), setup="\n".join(setup))


def _humaneval(fields: Fields, prompt: Prompt) -> Suite:
    """The prompt itself is code, which the answer continues, or repeats and completes."""
    test, name = fields["test"], fields["entry_point"]
    if not isinstance(test, str) or not re.search(r"^def check\(", test, re.MULTILINE):
        raise ValueError(f"test is {_shown(test)}, but it is code that defines check(candidate)")
    begun = prompt.messages[-1].content
    prelude = begun if re.search(rf"^def {re.escape(str(name))}\(", begun, re.MULTILINE) and _is_code(begun) else ""
    return Suite.asserts([f"{test}\ncheck({name})"], function=name, prelude=prelude)


def _livecodebench(fields: Fields, prompt: Prompt) -> Suite:
    cases = [*_cases_of(fields.get("public_test_cases", [])), *_cases_of(fields.get("private_test_cases", []))]
    return _typed({"tests": cases, "metadata": fields.get("metadata")}, prompt)


def _typed(fields: Fields, prompt: Prompt) -> Suite:
    """Cases that say how each is run: all of them in one way."""
    cases = fields["tests"]
    names, kinds = [_function(fields["metadata"])], set()
    for place, case in enumerate(cases):
        if not isinstance(case, Mapping) or not {"input", "output"} <= case.keys():
            raise ValueError(f"case {place} is {_shown(case)}, but it has an input and an output")
        kinds.add(str(case.get("testtype") or STDIN[0]))
        names.append(_function(case.get("metadata")))
    if kinds <= set(STDIN):
        return Suite.stdio([(case["input"], case["output"]) for case in cases])
    found = {name for name in names if name is not None}
    if kinds != {"functional"} or len(found) != 1:
        raise ValueError(
            f"testtype {', '.join(sorted(kinds))} with {len(found)} function names, but it is stdin, or "
            "functional with one metadata.func_name"
        )
    return Suite.calls(found.pop(), [_call_in_lines(each["input"], each["output"]) for each in cases], prelude=LEETCODE)


def _verl(fields: Fields, prompt: Prompt) -> Suite:
    filled = [each for name in ("inputs", "outputs") for each in _list(fields.get(name, []), name)]
    if any(each not in (None, "") for each in filled):
        raise ValueError("tests have assert_case beside inputs and outputs; give one of the two")
    return Suite.asserts(_list(fields["assert_case"], "assert_case"))


Layout = tuple[frozenset[str], frozenset[str], Callable[[Fields, Prompt], Suite]]


def _layout(needs: str, more: str, read: Callable[[Fields, Prompt], Suite]) -> Layout:
    return frozenset(needs.split()), frozenset(more.split()), read


_NAMED: tuple[Layout, ...] = (
    _layout("test_list", "test_setup_code test_imports", _mbpp),
    _layout("test entry_point", "", _humaneval),
)
# What stands in one value, and what stands in columns of a row.
_LAYOUTS = (
    *_NAMED,
    _layout("stdio", "", _stdio),
    _layout("calls function", "tolerance", _calls),
    _layout("asserts", "setup", _asserts),
    _layout("assert_case", "inputs outputs", _verl),
    _layout("inputs outputs", "fn_name", _apps),
)
_COLUMNS = (
    *_NAMED,
    _layout("input_output", "", _in_column),
    _layout("private_test_cases", "public_test_cases metadata", _livecodebench),
    _layout("public_test_cases", "metadata", _livecodebench),
)


def _parsed(value: Any) -> Any:
    """JSON text as what it says; a mapping that became text on its way here is a Python literal."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        try:
            return ast.literal_eval(value)
        except (ValueError, SyntaxError, MemoryError):
            raise ValueError(f"tests are {_shown(value)}, which is no JSON: {error}") from None


def _cases_of(value: Any) -> list[Any]:
    """LiveCodeBench packs its private cases: JSON, pickled, compressed, in base 64."""
    if isinstance(value, str) and value.lstrip()[:1] != "[":
        try:
            packed = zlib.decompress(base64.b64decode(value, validate=True))
            value = _Texts(io.BytesIO(packed)).load()
        except (ValueError, zlib.error, pickle.UnpicklingError, EOFError, IndexError, AttributeError) as error:
            raise ValueError(f"test cases are {_shown(value)}, neither JSON nor packed JSON: {error}") from None
    return _list(_parsed(value), "test cases")


class _Texts(pickle.Unpickler):
    """Reads built-in values alone: a pickle that names anything else could run code."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} in packed test cases, which are text")


def _function(metadata: Any) -> str | None:
    found = _parsed(metadata) if metadata else None
    name = found.get("func_name") if isinstance(found, Mapping) else None
    return name if isinstance(name, str) else None


def _pair(case: Any, place: int) -> tuple[Any, Any]:
    if isinstance(case, Mapping) and case.keys() == {"input", "output"}:
        return case["input"], case["output"]
    if isinstance(case, list | tuple) and len(case) == 2:
        return case[0], case[1]
    raise ValueError(f"case {place} is {_shown(case)}, but it is [input, output], or a mapping with just these")


def _call_in_lines(given: Any, want: Any) -> tuple[list[Any], Any]:
    """An argument on each line, and the value, as JSON."""
    if not isinstance(given, str) or not isinstance(want, str):
        raise ValueError(f"a case has {_shown(given)} and {_shown(want)}, but both are JSON text")
    try:
        return [json.loads(line) for line in given.strip("\n").split("\n") if given.strip()], json.loads(want)
    except ValueError as error:
        raise ValueError(f"a case has {_shown(given)} and {_shown(want)}, which are no JSON: {error}") from None


def _keys(value: Any) -> Any:
    """A mapping with integers for keys again, which JSON made text."""
    if isinstance(value, Mapping) and value and all(re.fullmatch(r"-?\d+", str(key)) for key in value):
        return {int(key): item for key, item in value.items()}
    return value


def _lines(value: Any) -> Any:
    return "\n".join(value) if isinstance(value, list) and all(map(_is_text, value)) else value


def _list(value: Any, what: str) -> list[Any]:
    value = _parsed(value)
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise ValueError(f"{what} is {_shown(value)}, but it is a list")
    return list(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_code(text: str) -> bool:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _shown(value: Any) -> str:
    shown = repr(value)
    return f"{shown if len(shown) <= 60 else shown[:57] + '...'} ({type(value).__name__})"
