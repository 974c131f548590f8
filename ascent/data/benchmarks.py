"""GSM8K, MATH and TL;DR, whoever published the file: `gsm8k:FILE`, `math:FILE`, `tldr:FILE` where a name is expected.

Every edition of a benchmark gives the same records: the bare question with one instruction of ours, its answer, and the
worked solution in Prompt.info. Editions that are known, by their columns:

    gsm8k   question, answer ("... #### 72"); verl's parquet with extra_info
    math    problem, solution (and answer); verl's parquet, whose instruction is taken off
    tldr    subreddit, title, post (and summary); comparisons with info, summaries, choice; prompt and completion
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ascent.data import columns as values
from ascent.data.columns import Columns
from ascent.data.errors import RowError
from ascent.data.preferences import pair
from ascent.data.schemas import SCHEMAS, Schema
from ascent.records import Example, Message, Pair, Prompt

HASHES = 'Reason step by step, then write "####" and the final answer.'
BOXED = r"Reason step by step and put the final answer in \boxed{}."
# What verl appends to a question of MATH.
APPENDED = " Let's think step by step and output the final answer within \\boxed{}."
# GSM8K's solutions carry notes for a calculator: 48/2 = <<48/2=24>>24.
CALCULATOR = re.compile(r"<<[^<>]*>>")


def layouts_of(name: str) -> tuple[Sequence[Schema], str]:
    """How to read a name, and the name without its benchmark."""
    benchmark, colon, place = name.partition(":")
    return (BENCHMARKS[benchmark], place) if colon and place and benchmark in BENCHMARKS else (SCHEMAS, name)


def _has(row: Mapping[str, Any], *names: str) -> bool:
    return all(row.get(name) is not None for name in names)


def _is_gsm8k(row: Mapping[str, Any]) -> bool:
    extra = row.get("extra_info")
    return _has(row, "question", "answer") or (isinstance(extra, Mapping) and _has(extra, "question", "answer"))


def _gsm8k(fields: Columns) -> tuple[str, str]:
    """Question and worked solution."""
    source = fields.row if fields.has("question") else fields.get("extra_info")
    if not isinstance(source, Mapping):
        raise RowError("type", "extra_info holds no question and answer; every row of this file needs both")
    solution = values.text(source.get("answer"), "answer")
    if "####" not in solution:
        raise RowError("missing", "the answer has no '####', which marks the result in GSM8K; is this another dataset?")
    return values.text(source.get("question"), "question"), CALCULATOR.sub("", solution)


def _asked(question: str, instruction: str) -> tuple[Message, ...]:
    return (Message("user", f"{question.strip()}\n{instruction}"),)


def gsm8k_prompt(fields: Columns) -> Prompt:
    question, solution = _gsm8k(fields)
    answer = solution.rpartition("####")[2].strip().replace(",", "")
    if not answer:
        raise RowError("empty", "nothing stands behind '####'; every question of GSM8K has a result")
    return Prompt(fields.id, _asked(question, HASHES), answer, {"benchmark": "gsm8k", "solution": solution})


def gsm8k_example(fields: Columns) -> Example:
    question, solution = _gsm8k(fields)
    return Example(fields.id, (*_asked(question, HASHES), Message("assistant", solution)))


def math_prompt(fields: Columns) -> Prompt:
    """Where there is only a worked solution it is the answer: the reward takes what is boxed in it."""
    info = {name: fields.row[name] for name in ("level", "type", "subject", "solution") if fields.has(name)}
    if fields.has("problem"):
        question = fields.text("problem")
        answer = fields.text("answer" if fields.has("answer") else "solution")
    else:
        question = values.messages(fields.get("prompt"), "prompt")[-1].content.removesuffix(APPENDED)
        rule = fields.get("reward_model")
        answer = values.text(rule.get("ground_truth") if isinstance(rule, Mapping) else None, "ground_truth")
    return Prompt(fields.id, _asked(question, BOXED), answer, {"benchmark": "math", **info})


def math_example(fields: Columns) -> Example:
    asked = _asked(fields.text("problem"), BOXED)
    return Example(fields.id, (*asked, Message("assistant", fields.text("solution"))))


def _post(row: Mapping[str, Any]) -> tuple[Message, ...]:
    """The question in the form that published policies and reward models of this task read."""
    subreddit, title, post = (values.text(row.get(name), name).strip() for name in ("subreddit", "title", "post"))
    return (Message("user", f"SUBREDDIT: r/{subreddit}\n\nTITLE: {title}\n\nPOST: {post}\n\nTL;DR:"),)


def _summary(text: Any, name: str) -> tuple[Message, ...]:
    """One space first: a base model joins it to "TL;DR:" as it is."""
    return (Message("assistant", f" {values.text(text, name).strip()}"),)


def tldr_prompt(fields: Columns) -> Prompt:
    summary = fields.optional("summary")
    answer = None if summary is None else values.text(summary, "summary").strip()
    return Prompt(fields.id, _post(fields.row), answer, {"benchmark": "tldr"})


def tldr_example(fields: Columns) -> Example:
    return Example(fields.id, (*_post(fields.row), *_summary(fields.get("summary"), "summary")))


def tldr_pair(fields: Columns) -> Pair:
    info, texts, choice = fields.get("info"), fields.get("summaries"), fields.get("choice")
    if not isinstance(info, Mapping) or not isinstance(texts, Sequence) or len(texts) != 2 or choice not in (0, 1):
        raise RowError("type", "a comparison has info, two summaries and a choice of 0 or 1")
    said = [_summary(each.get("text") if isinstance(each, Mapping) else each, "summaries") for each in texts]
    return pair(fields, _post(info), said[choice], said[1 - choice])


BENCHMARKS: dict[str, tuple[Schema, ...]] = {
    "gsm8k": (
        Schema("question of GSM8K", "prompts", "OpenAI, verl", _is_gsm8k, gsm8k_prompt),
        Schema("question and solution of GSM8K", "examples", "OpenAI, verl", _is_gsm8k, gsm8k_example),
    ),
    "math": (
        Schema(
            *("problem of MATH", "prompts", "Hendrycks, MATH-500, verl"),
            fits=lambda row: _has(row, "problem", "solution") or _has(row, "prompt", "reward_model"),
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
            *("post", "prompts", "OpenAI"), fits=lambda row: _has(row, "subreddit", "title", "post"), read=tldr_prompt
        ),
        *SCHEMAS,
    ),
}
