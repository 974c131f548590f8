"""The files that both sides read: the same rows in the same order, one file for every stage and seed."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from settings import SEEDS, Study

import ascent

# What a function does, what it is called with (x: a number, xs: a list), and its body. The kinds of NEW_CODE are only
# tested, never trained on.
CODE = (
    ("returns the number x plus {a}", "x", "x + {a}"),
    ("returns the number x times {a} plus {b}", "x", "x * {a} + {b}"),
    ("returns the remainder of x divided by {a}", "x", "x % {a}"),
    ("returns x divided by {a}, rounded down", "x", "x // {a}"),
    ("returns the larger of x and {a}", "x", "max(x, {a})"),
    ("returns True if x is greater than {a}, else False", "x", "x > {a}"),
    ("returns True if x is a multiple of {a}, else False", "x", "x % {a} == 0"),
    ("returns the absolute difference of x and {a}", "x", "abs(x - {a})"),
    ("returns the digits of x as a string, repeated {a} times", "x", "str(x) * {a}"),
    ("returns the sum of the list x plus {a}", "xs", "sum(x) + {a}"),
    ("returns the length of the list x plus {a}", "xs", "len(x) + {a}"),
    ("returns the list x with {a} added to every element", "xs", "[each + {a} for each in x]"),
    (
        "returns the elements of the list x that are smaller than {a}",
        "xs",
        "[each for each in x if each < {a}]",
    ),
    (
        "returns the elements of the list x that are divisible by {a}",
        "xs",
        "[each for each in x if each % {a} == 0]",
    ),
    ("returns the list x in reverse order, with {a} at its end", "xs", "x[::-1] + [{a}]"),
    ("returns the first {a} elements of the list x", "xs", "x[:{a}]"),
    ("returns how often {a} occurs in the list x", "xs", "x.count({a})"),
)
NEW_CODE = (
    ("returns the number x minus {a}", "x", "x - {a}"),
    ("returns the square of x plus {a}", "x", "x * x + {a}"),
    ("returns the smaller of x and {a}", "x", "min(x, {a})"),
    ("returns True if {a} is in the list x, else False", "xs", "{a} in x"),
    ("returns the list x with every element multiplied by {a}", "xs", "[each * {a} for each in x]"),
    ("returns the last {a} elements of the list x", "xs", "x[-{a}:]"),
)
CODE_NUMBERS = range(2, 17)


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def prepare(study: Study) -> None:
    """All files of the study, unless they are there."""
    settings, folder = study.settings, study.work / "data"
    if (folder / "done").exists():
        return
    train = ascent.load_data(f"gsm8k:{study.data / 'train.parquet'}", "prompts")[
        : settings.train_rows
    ]
    test = ascent.load_data(f"gsm8k:{study.data / 'test.parquet'}", "prompts")[: settings.test_rows]
    write_rows(folder / "test.jsonl", map(_question, test))
    examples = [
        {"messages": [*_question(each)["prompt"], _answer(each.info["solution"])]} for each in train
    ]
    write_rows(folder / "sft.jsonl", _shuffled(examples, 0, settings.sft_epochs))
    for seed in (0, *SEEDS):
        write_rows(
            folder / f"prompts-{seed}.jsonl", _shuffled(list(map(_question, train)), seed, 1)
        )
    questions = _shuffled(list(map(_question, train)), 0, 1)
    write_rows(folder / "pilot.jsonl", questions[-settings.pilot_questions :])
    solved = ascent.load_data(f"gsm8k_calculator:{study.data / 'train.parquet'}", "examples")[
        : settings.train_rows
    ]
    called = [
        {"messages": [{"role": one.role, "content": one.content} for one in each.messages]}
        for each in solved
    ]
    write_rows(folder / "tools.jsonl", _shuffled(called, 0, settings.sft_epochs))
    prepare_code(study, folder)
    (folder / "done").touch()


def _question(prompt: ascent.Prompt) -> dict[str, Any]:
    return {
        "prompt": [{"role": "user", "content": prompt.messages[-1].content}],
        "answer": prompt.answer,
    }


def _answer(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def _shuffled(rows: list[Any], seed: int, epochs: int) -> list[Any]:
    """Every epoch in another order, one after the other; both sides read them in order."""
    rng = random.Random(seed)
    return [row for _ in range(epochs) for row in rng.sample(rows, len(rows))]


def prepare_code(study: Study, folder: Path) -> None:
    """Functions of one line with the values that they return. No question is trained on and tested: a fifth of the
    numbers of every kind is held out, and whole kinds."""
    rng, found = random.Random(0), {"code": [], "code-test": [], "code-new": []}
    for kind in CODE:
        numbers = rng.sample(CODE_NUMBERS, len(CODE_NUMBERS))[: study.settings.code_numbers]
        for place, number in enumerate(numbers):
            found["code-test" if place % 5 == 0 else "code"].append(_function(rng, kind, number))
    for kind in NEW_CODE:
        numbers = rng.sample(CODE_NUMBERS, len(CODE_NUMBERS))[: study.settings.code_numbers]
        found["code-new"] += [_function(rng, kind, number) for number in numbers]
    for name, rows in found.items():
        write_rows(folder / f"{name}.jsonl", rng.sample(rows, len(rows)))


def _function(rng: random.Random, kind: tuple[str, str, str], number: int) -> dict[str, Any]:
    """Tests whose results differ: a constant passes none of the suites."""
    words, argument, body = kind
    numbers = {"a": number, "b": rng.randint(2, 9)}
    text, source = words.format(**numbers), body.format(**numbers)
    results: list[Any] = []
    while len(set(map(repr, results))) < 2:
        inputs = [
            _value(rng, number) if argument == "x" else _values(rng, number) for _ in range(5)
        ]
        results = [eval(source, {"x": each}) for each in inputs]
    tests = [
        f"assert solve({each!r}) == {result!r}"
        for each, result in zip(inputs, results, strict=True)
    ]
    question = f"Write a Python function solve(x) that {text}. Answer with the code only, in a ```python block."
    return {"prompt": [{"role": "user", "content": question}], "answer": source, "tests": tests}


def _value(rng: random.Random, number: int) -> int:
    """Often near the number of the task, where a wrong comparison shows."""
    return rng.choice((number, rng.randint(0, 2 * number), rng.randint(0, 50)))


def _values(rng: random.Random, number: int) -> list[int]:
    return [_value(rng, number) for _ in range(rng.randint(2, number + 4))]
