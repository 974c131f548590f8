"""The files that both sides read: the same rows in the same order, one file for every stage and seed."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet
from settings import SEEDS, Study

import ascent
from ascent.tasks import TASKS

CALL = re.compile(r"<<([^<>=]*)=([^<>]*)>>")  # GSM8K's annotations: 48/2 = <<48/2=24>>24
CODE = (
    ("returns the number x plus {a}", "x", "x + {a}"),
    ("returns the number x times {a} plus {b}", "x", "x * {a} + {b}"),
    ("returns the remainder of x divided by {a}", "x", "x % {a}"),
    ("returns the larger of x and {a}", "x", "max(x, {a})"),
    ("returns True if x is greater than {a}, else False", "x", "x > {a}"),
    ("returns the sum of the list x plus {a}", "xs", "sum(x) + {a}"),
    ("returns the list x with {a} added to every element", "xs", "[each + {a} for each in x]"),
    ("returns the elements of the list x that are smaller than {a}", "xs", "[each for each in x if each < {a}]"),
    ("returns the first {a} elements of the list x", "xs", "x[:{a}]"),
    ("returns how often {a} occurs in the list x", "xs", "x.count({a})"),
)


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def prepare(study: Study) -> None:
    """All files of the study, unless they are there."""
    settings, folder = study.settings, study.work / "data"
    if (folder / "done").exists():
        return
    train = ascent.load_data(f"gsm8k:{study.data / 'train.parquet'}", "prompts")[: settings.train_rows]
    test = ascent.load_data(f"gsm8k:{study.data / 'test.parquet'}", "prompts")[: settings.test_rows]
    write_rows(folder / "test.jsonl", map(_question, test))
    examples = [{"messages": [*_question(each)["prompt"], _answer(each.info["solution"])]} for each in train]
    write_rows(folder / "sft.jsonl", _shuffled(examples, 0, settings.sft_epochs))
    for seed in (0, *SEEDS):
        write_rows(folder / f"prompts-{seed}.jsonl", _shuffled(list(map(_question, train)), seed, 1))
    questions = _shuffled(list(map(_question, train)), 0, 1)
    write_rows(folder / "pilot.jsonl", questions[-settings.pilot_questions :])
    raw = pyarrow.parquet.read_table(study.data / "train.parquet").to_pylist()
    solutions = [(row.get("extra_info") or row)["answer"] for row in raw]  # with their annotations
    called = [_with_calls(each.messages[-1].content, text) for each, text in zip(train, solutions, strict=False)]
    write_rows(folder / "tools.jsonl", _shuffled(called, 0, settings.sft_epochs))
    prepare_digest(study, folder)
    prepare_code(study, folder)
    (folder / "done").touch()


def _question(prompt: ascent.Prompt) -> dict[str, Any]:
    return {"prompt": [{"role": "user", "content": prompt.messages[-1].content}], "answer": prompt.answer}


def _answer(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def _shuffled(rows: list[Any], seed: int, epochs: int) -> list[Any]:
    """Every epoch in another order, one after the other; both sides read them in order."""
    rng = random.Random(seed)
    return [row for _ in range(epochs) for row in rng.sample(rows, len(rows))]


def _with_calls(question: str, solution: str) -> dict[str, Any]:
    """The solution with calls of the calculator in place of annotations; a result is a message of its own."""
    messages, start = [{"role": "user", "content": question}], 0
    for call in CALL.finditer(solution):
        messages.append(_answer(f"{solution[start : call.start()]}<calculator>{call[1]}</calculator>"))
        messages.append({"role": "tool", "content": f"<result>{call[2]}</result>"})
        start = call.end()
    return {"messages": [*messages, _answer(solution[start:])]}


def prepare_digest(study: Study, folder: Path) -> None:
    """Summaries of mixed quality to imitate, and pairs of them with the preferences of a known utility."""
    pairs = TASKS["digest"].pairs("train", study.settings.digest_rows)
    rows = [{"messages": [{"role": "user", "content": pair.prompt.messages[-1].content}, _answer(each[0].content)]}
            for pair in pairs for each in (pair.chosen, pair.rejected)]  # fmt: skip
    write_rows(folder / "digest-sft.jsonl", _shuffled(rows, 0, 1))


def prepare_code(study: Study, folder: Path) -> None:
    """Functions of one line with the values that they return; the last tenth of the rows is held out."""
    rng = random.Random(0)
    rows = [_function(rng) for _ in range(study.settings.code_rows)]
    held_out = max(1, len(rows) // 10)
    write_rows(folder / "code.jsonl", rows[:-held_out])
    write_rows(folder / "code-test.jsonl", rows[-held_out:])


def _function(rng: random.Random) -> dict[str, Any]:
    """Tests whose results differ: a constant passes none of the suites."""
    words, kind, body = rng.choice(CODE)
    numbers = {"a": rng.randint(2, 6), "b": rng.randint(2, 9)}
    text, source = words.format(**numbers), body.format(**numbers)
    results: list[Any] = []
    while len(set(map(repr, results))) < 2:
        inputs = [
            rng.randint(0, 12) if kind == "x" else [rng.randint(0, 9) for _ in range(rng.randint(2, 8))]
            for _ in range(5)
        ]
        results = [eval(source, {"x": each}) for each in inputs]
    tests = [f"assert solve({each!r}) == {result!r}" for each, result in zip(inputs, results, strict=True)]
    question = f"Write a Python function solve(x) that {text}. Answer with the code only, in a ```python block."
    return {"prompt": [{"role": "user", "content": question}], "answer": source, "tests": tests}
