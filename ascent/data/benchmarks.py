"""GSM8K, MATH and TL;DR: the schemas behind the names `gsm8k:FILE`, `math:FILE`, `tldr:FILE`.

`gsm8k_calculator:FILE` are GSM8K's solutions with calls of the calculator, as environment `tools` expects them.

Every edition of a benchmark gives the same records: the question with one instruction of ours, its answer, and the
worked solution in Prompt.info. Known editions, by their columns:

    gsm8k   question, answer ("... #### 72"); verl's parquet with extra_info
    math    problem, solution (and answer); verl's parquet, whose instruction is removed
    tldr    subreddit, title, post (and summary); comparisons with info, summaries, choice; prompt and completion
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ascent.data import columns as values
from ascent.data.columns import Columns
from ascent.data.errors import RowError
from ascent.data.preferences import make_pair
from ascent.data.schemas import SCHEMAS, Schema
from ascent.records import Example, Message, Pair, Prompt

HASHES = 'Reason step by step, then write "####" and the final answer.'
BOXED = r"Reason step by step and put the final answer in \boxed{}."
# verl appends this to a question of MATH.
VERL_INSTRUCTION = " Let's think step by step and output the final answer within \\boxed{}."
# GSM8K's solutions hold calculator annotations: 48/2 = <<48/2=24>>24.
CALCULATOR = re.compile(r"<<[^<>]*>>")
CALCULATED = re.compile(r"<<([^<>=]*)=([^<>]*)>>")


def schemas_of(name: str) -> tuple[Sequence[Schema], str]:
    """The schemas to try for a name, and the name without its benchmark prefix."""
    benchmark, _, path = name.partition(":")
    near = get_close_matches(benchmark, BENCHMARKS, n=1, cutoff=0.8) if path else []
    if not near or near == [benchmark]:
        return (BENCHMARKS[benchmark], path) if near else (SCHEMAS, name)
    if Path(name).expanduser().exists():
        return SCHEMAS, name
    raise ValueError(
        f"{name}: no benchmark is called {benchmark!r}; did you mean {near[0]}:{path}?"
    )


def _has(row: Mapping[str, Any], *names: str) -> bool:
    return all(row.get(name) is not None for name in names)


def _is_gsm8k(row: Mapping[str, Any]) -> bool:
    extra = row.get("extra_info")
    return _has(row, "question", "answer") or (
        isinstance(extra, Mapping) and _has(extra, "question", "answer")
    )


def _read_gsm8k(columns: Columns) -> tuple[str, str]:
    """Question and worked solution."""
    source = columns.row if columns.has("question") else columns.get("extra_info")
    if not isinstance(source, Mapping):
        raise RowError(
            "type", "extra_info holds no question and answer; every row of this file needs both"
        )
    solution = values.text(source.get("answer"), "answer")
    if "####" not in solution:
        raise RowError(
            "missing",
            "the answer has no '####', which marks the result in GSM8K; is this another dataset?",
        )
    return values.text(source.get("question"), "question"), solution


def _make_prompt(question: str, instruction: str) -> tuple[Message, ...]:
    return (Message("user", f"{question.strip()}\n{instruction}"),)


def gsm8k_prompt(columns: Columns) -> Prompt:
    question, annotated = _read_gsm8k(columns)
    solution = CALCULATOR.sub("", annotated)
    answer = solution.rpartition("####")[2].strip().replace(",", "")
    if not answer:
        raise RowError("empty", "nothing follows '####'; every question of GSM8K has a result")
    return Prompt(
        columns.id,
        _make_prompt(question, HASHES),
        answer,
        {"benchmark": "gsm8k", "solution": solution},
    )


def gsm8k_example(columns: Columns) -> Example:
    question, solution = _read_gsm8k(columns)
    return Example(
        columns.id,
        (*_make_prompt(question, HASHES), Message("assistant", CALCULATOR.sub("", solution))),
    )


def gsm8k_calls(columns: Columns) -> Example:
    """Where the solution is annotated, the model calls the calculator; its result is a message of its own."""
    question, solution = _read_gsm8k(columns)
    messages, start = [*_make_prompt(question, HASHES)], 0
    for call in CALCULATED.finditer(solution):
        words = CALCULATOR.sub("", solution[start : call.start()])
        messages.append(Message("assistant", f"{words}<calculator>{call[1]}</calculator>"))
        messages.append(Message("tool", f"<result>{call[2]}</result>"))
        start = call.end()
    return Example(
        columns.id, (*messages, Message("assistant", CALCULATOR.sub("", solution[start:])))
    )


def math_prompt(columns: Columns) -> Prompt:
    """Without a bare answer the worked solution is the answer: the reward extracts what is boxed."""
    info = {
        name: columns.row[name]
        for name in ("level", "type", "subject", "solution")
        if columns.has(name)
    }
    if columns.has("problem"):
        question = columns.text("problem")
        answer = columns.text("answer" if columns.has("answer") else "solution")
    else:
        question = values.messages(columns.get("prompt"), "prompt")[-1].content.removesuffix(
            VERL_INSTRUCTION
        )
        rule = columns.get("reward_model")
        answer = values.text(
            rule.get("ground_truth") if isinstance(rule, Mapping) else None, "ground_truth"
        )
    return Prompt(columns.id, _make_prompt(question, BOXED), answer, {"benchmark": "math", **info})


def math_example(columns: Columns) -> Example:
    prompt = _make_prompt(columns.text("problem"), BOXED)
    return Example(columns.id, (*prompt, Message("assistant", columns.text("solution"))))


def _make_post(row: Mapping[str, Any]) -> tuple[Message, ...]:
    """The prompt format of the published policies and reward models of this task."""
    subreddit, title, post = (
        values.text(row.get(name), name).strip() for name in ("subreddit", "title", "post")
    )
    return (
        Message("user", f"SUBREDDIT: r/{subreddit}\n\nTITLE: {title}\n\nPOST: {post}\n\nTL;DR:"),
    )


def _make_summary(text: Any, name: str) -> tuple[Message, ...]:
    """The leading space separates it from "TL;DR:" in a base model's text."""
    return (Message("assistant", f" {values.text(text, name).strip()}"),)


def tldr_prompt(columns: Columns) -> Prompt:
    summary = columns.optional("summary")
    answer = None if summary is None else values.text(summary, "summary").strip()
    return Prompt(columns.id, _make_post(columns.row), answer, {"benchmark": "tldr"})


def tldr_example(columns: Columns) -> Example:
    return Example(
        columns.id, (*_make_post(columns.row), *_make_summary(columns.get("summary"), "summary"))
    )


def tldr_pair(columns: Columns) -> Pair:
    info, texts, choice = columns.get("info"), columns.get("summaries"), columns.get("choice")
    if (
        not isinstance(info, Mapping)
        or not isinstance(texts, Sequence)
        or len(texts) != 2
        or choice not in (0, 1)
    ):
        raise RowError("type", "a comparison has info, two summaries and a choice of 0 or 1")
    answers = [
        _make_summary(each.get("text") if isinstance(each, Mapping) else each, "summaries")
        for each in texts
    ]
    return make_pair(columns, _make_post(info), answers[choice], answers[1 - choice])


GSM8K = Schema("question of GSM8K", "prompts", "OpenAI, verl", _is_gsm8k, gsm8k_prompt)
BENCHMARKS: dict[str, tuple[Schema, ...]] = {
    "gsm8k": (
        GSM8K,
        Schema(
            "question and solution of GSM8K", "examples", "OpenAI, verl", _is_gsm8k, gsm8k_example
        ),
    ),
    "gsm8k_calculator": (
        GSM8K,
        Schema(
            "question of GSM8K and solution with calls",
            "examples",
            "OpenAI, verl",
            _is_gsm8k,
            gsm8k_calls,
        ),
    ),
    "math": (
        Schema(
            *("problem of MATH", "prompts", "Hendrycks, MATH-500, verl"),
            fits=lambda row: (
                _has(row, "problem", "solution") or _has(row, "prompt", "reward_model")
            ),
            read=math_prompt,
        ),
        Schema(
            *("problem and solution of MATH", "examples", "Hendrycks, MATH-500"),
            fits=lambda row: _has(row, "problem", "solution"),
            read=math_example,
        ),
    ),
    "tldr": (
        Schema(
            *("comparison of summaries", "pairs", "OpenAI"),
            fits=lambda row: _has(row, "info", "summaries", "choice"),
            read=tldr_pair,
        ),
        Schema(
            *("post with its summary", "examples", "OpenAI"),
            fits=lambda row: _has(row, "subreddit", "title", "post", "summary"),
            read=tldr_example,
        ),
        Schema(
            *("post", "prompts", "OpenAI"),
            fits=lambda row: _has(row, "subreddit", "title", "post"),
            read=tldr_prompt,
        ),
        *SCHEMAS,
    ),
}
