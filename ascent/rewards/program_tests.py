"""Parse the hidden tests of a prompt, in the layouts of common data sets."""

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

# The imports of LeetCode's environment. `builtins` again, because `math` has a `pow`.
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


def load_tests(prompt: Prompt) -> Suite:
    """The tests of a prompt; Unscored if it has none (`no_tests`) or they cannot be parsed (`bad_tests`).

    They are in the column `tests` in any of these layouts, or in the data set's own columns; verl's are in
    `reward_model.ground_truth`, which is the prompt's answer. A value may be JSON text. None counts as absent. Other
    layouts are refused.

    | from | layout |
    |---|---|
    | Ascent | `{"stdio": CASES}`; a case is `[INPUT, OUTPUT]` or `{"input": .., "output": ..}`, both text |
    | Ascent | `{"function": NAME, "calls": CASES, "tolerance": 1e-9}`; a case is `[ARGUMENTS, VALUE]`, or as above |
    | Ascent | `{"asserts": [CODE, ...], "setup": CODE}`, or the list alone |
    | APPS | `input_output`: `{"inputs": [..], "outputs": [..]}`, texts or lists of lines |
    | APPS | the same with `"fn_name"`: lists of arguments, and values, each perhaps in a list of one |
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
        for required, optional, read in _COLUMNS:
            if required <= info.keys():
                return read(
                    {name: info[name] for name in info.keys() & (required | optional)}, prompt
                )
        if prompt.answer is not None and prompt.answer.lstrip()[:1] in ("{", "["):
            return _suite(prompt.answer, info, prompt)
    except (ValueError, RecursionError) as error:
        raise Unscored("bad_tests", str(error)) from None
    raise Unscored(
        "no_tests",
        "the prompt has no tests: no column tests, and none of a layout of docs/rewards.md",
    )


def _suite(value: Any, info: Fields, prompt: Prompt) -> Suite:
    value = _parsed(value)
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        return Suite.asserts(value)
    if isinstance(value, list):
        return _typed_cases({"tests": value, "metadata": info.get("metadata")}, prompt)
    if not isinstance(value, Mapping):
        raise ValueError(f"tests are {_describe(value)}, but they are a mapping or a list")
    fields = {name: item for name, item in value.items() if item is not None}
    for required, optional, read in _LAYOUTS:
        if required <= fields.keys():
            unknown = sorted(fields.keys() - required - optional)
            if unknown:
                known = ", ".join(sorted(required | optional))
                raise ValueError(
                    f"tests have {unknown[0]!r} beside {', '.join(sorted(required))}; they may have {known}"
                )
            return read(fields, prompt)
    raise ValueError(
        f"tests with {', '.join(map(repr, fields)) or 'nothing'} are in no layout of docs/rewards.md"
    )


def _stdio(fields: Fields, prompt: Prompt) -> Suite:
    return Suite.stdio(
        [_pair(case, index) for index, case in enumerate(_list(fields["stdio"], "stdio"))]
    )


def _calls(fields: Fields, prompt: Prompt) -> Suite:
    cases = [_pair(case, index) for index, case in enumerate(_list(fields["calls"], "calls"))]
    return Suite.calls(fields["function"], cases, tolerance=fields.get("tolerance", 1e-9))


def _asserts(fields: Fields, prompt: Prompt) -> Suite:
    return Suite.asserts(_list(fields["asserts"], "asserts"), setup=fields.get("setup", ""))


def _apps(fields: Fields, prompt: Prompt) -> Suite:
    inputs, outputs = _list(fields["inputs"], "inputs"), _list(fields["outputs"], "outputs")
    if len(inputs) != len(outputs):
        raise ValueError(f"{len(inputs)} inputs, but {len(outputs)} outputs; each input has one")
    if "fn_name" not in fields:
        return Suite.stdio(
            [
                (_join_lines(text), _join_lines(want))
                for text, want in zip(inputs, outputs, strict=True)
            ]
        )
    name = fields["fn_name"]
    if inputs and all(isinstance(each, str) for each in inputs):
        cases = [_call_from_lines(text, want) for text, want in zip(inputs, outputs, strict=True)]
        return Suite.calls(name, cases, prelude=LEETCODE)
    # Most outputs are wrapped in a list of one, some are not; if all have one item, both readings are accepted.
    wrapped = all(isinstance(want, list) and len(want) == 1 for want in outputs)
    expected = [
        [_restore_int_keys(want[0])] if wrapped else _restore_int_keys(want) for want in outputs
    ]
    arguments = [
        [_restore_int_keys(arg) for arg in _list(args, "the arguments of a case")]
        for args in inputs
    ]
    return Suite.calls(
        name, list(zip(arguments, expected, strict=True)), unwrap=wrapped, prelude=LEETCODE
    )


def _apps_column(fields: Fields, prompt: Prompt) -> Suite:
    return _suite(fields["input_output"], {}, prompt)


def _mbpp(fields: Fields, prompt: Prompt) -> Suite:
    setup = [
        *_list(fields.get("test_imports", []), "test_imports"),
        fields.get("test_setup_code", ""),
    ]
    if not all(map(_is_text, setup)):
        raise ValueError(
            f"test_imports and test_setup_code are {_describe(setup)}, but they are code"
        )
    return Suite.asserts(_list(fields["test_list"], "test_list"), setup="\n".join(setup))


def _humaneval(fields: Fields, prompt: Prompt) -> Suite:
    """The prompt itself is code, which the answer continues or repeats."""
    test, name = fields["test"], fields["entry_point"]
    if not isinstance(test, str) or not re.search(r"^def check\(", test, re.MULTILINE):
        raise ValueError(f"test is {_describe(test)}, but it is code that defines check(candidate)")
    prompt_text = prompt.messages[-1].content
    prelude = (
        prompt_text
        if re.search(rf"^def {re.escape(str(name))}\(", prompt_text, re.MULTILINE)
        and _is_code(prompt_text)
        else ""
    )
    return Suite.asserts([f"{test}\ncheck({name})"], function=name, prelude=prelude)


def _livecodebench(fields: Fields, prompt: Prompt) -> Suite:
    cases = [
        *_load_cases(fields.get("public_test_cases", [])),
        *_load_cases(fields.get("private_test_cases", [])),
    ]
    return _typed_cases({"tests": cases, "metadata": fields.get("metadata")}, prompt)


def _typed_cases(fields: Fields, prompt: Prompt) -> Suite:
    """Cases with a `testtype`, the same for all."""
    cases = fields["tests"]
    names, kinds = [_function(fields["metadata"])], set()
    for index, case in enumerate(cases):
        if not isinstance(case, Mapping) or not {"input", "output"} <= case.keys():
            raise ValueError(
                f"case {index} is {_describe(case)}, but it has an input and an output"
            )
        kinds.add(str(case.get("testtype") or STDIN[0]))
        names.append(_function(case.get("metadata")))
    if kinds <= set(STDIN):
        return Suite.stdio([(case["input"], case["output"]) for case in cases])
    functions = {name for name in names if name is not None}
    if kinds != {"functional"} or len(functions) != 1:
        raise ValueError(
            f"testtype {', '.join(sorted(kinds))} with {len(functions)} function names, but it is stdin, or "
            "functional with one metadata.func_name"
        )
    return Suite.calls(
        functions.pop(),
        [_call_from_lines(each["input"], each["output"]) for each in cases],
        prelude=LEETCODE,
    )


def _verl(fields: Fields, prompt: Prompt) -> Suite:
    filled = [each for name in ("inputs", "outputs") for each in _list(fields.get(name, []), name)]
    if any(each not in (None, "") for each in filled):
        raise ValueError("tests have assert_case beside inputs and outputs; give one of the two")
    return Suite.asserts(_list(fields["assert_case"], "assert_case"))


Layout = tuple[frozenset[str], frozenset[str], Callable[[Fields, Prompt], Suite]]


def _layout(required: str, optional: str, read: Callable[[Fields, Prompt], Suite]) -> Layout:
    return frozenset(required.split()), frozenset(optional.split()), read


_NAMED: tuple[Layout, ...] = (
    _layout("test_list", "test_setup_code test_imports", _mbpp),
    _layout("test entry_point", "", _humaneval),
)
# Layouts of one value, and layouts of columns.
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
    _layout("input_output", "", _apps_column),
    _layout("private_test_cases", "public_test_cases metadata", _livecodebench),
    _layout("public_test_cases", "metadata", _livecodebench),
)


def _parsed(value: Any) -> Any:
    """Parse JSON text, or a Python literal."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        try:
            return ast.literal_eval(value)
        except (ValueError, SyntaxError, MemoryError):
            raise ValueError(f"tests are {_describe(value)}, which is no JSON: {error}") from None


def _load_cases(value: Any) -> list[Any]:
    """LiveCodeBench's private cases are JSON, pickled, compressed, in base 64."""
    if isinstance(value, str) and value.lstrip()[:1] != "[":
        try:
            packed = zlib.decompress(base64.b64decode(value, validate=True))
            value = _SafeUnpickler(io.BytesIO(packed)).load()
        except (
            ValueError,
            zlib.error,
            pickle.UnpicklingError,
            EOFError,
            IndexError,
            AttributeError,
        ) as error:
            raise ValueError(
                f"test cases are {_describe(value)}, neither JSON nor packed JSON: {error}"
            ) from None
    return _list(_parsed(value), "test cases")


class _SafeUnpickler(pickle.Unpickler):
    """Loads built-in values only: other pickles could run code."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} in packed test cases, which are text")


def _function(metadata: Any) -> str | None:
    parsed = _parsed(metadata) if metadata else None
    name = parsed.get("func_name") if isinstance(parsed, Mapping) else None
    return name if isinstance(name, str) else None


def _pair(case: Any, index: int) -> tuple[Any, Any]:
    if isinstance(case, Mapping) and case.keys() == {"input", "output"}:
        return case["input"], case["output"]
    if isinstance(case, list | tuple) and len(case) == 2:
        return case[0], case[1]
    raise ValueError(
        f"case {index} is {_describe(case)}, but it is [input, output], or a mapping with just these"
    )


def _call_from_lines(text: Any, want: Any) -> tuple[list[Any], Any]:
    """One JSON argument per line, and the JSON value."""
    if not isinstance(text, str) or not isinstance(want, str):
        raise ValueError(
            f"a case has {_describe(text)} and {_describe(want)}, but both are JSON text"
        )
    try:
        return [
            json.loads(line) for line in text.strip("\n").split("\n") if text.strip()
        ], json.loads(want)
    except ValueError as error:
        raise ValueError(
            f"a case has {_describe(text)} and {_describe(want)}, which are no JSON: {error}"
        ) from None


def _restore_int_keys(value: Any) -> Any:
    """JSON turned integer keys into text."""
    if (
        isinstance(value, Mapping)
        and value
        and all(re.fullmatch(r"-?\d+", str(key)) for key in value)
    ):
        return {int(key): item for key, item in value.items()}
    return value


def _join_lines(value: Any) -> Any:
    return "\n".join(value) if isinstance(value, list) and all(map(_is_text, value)) else value


def _list(value: Any, what: str) -> list[Any]:
    value = _parsed(value)
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise ValueError(f"{what} is {_describe(value)}, but it is a list")
    return list(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_code(text: str) -> bool:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _describe(value: Any) -> str:
    shown = repr(value)
    return f"{shown if len(shown) <= 60 else shown[:57] + '...'} ({type(value).__name__})"
