"""GSM8K, MATH and TL;DR: every edition gives the same records."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ascent.data.benchmarks import BOXED, HASHES, schemas_of
from ascent.data.load import load
from ascent.data.schemas import SCHEMAS
from ascent.records import Example, Message, Pair, Prompt
from tests.data import files

DATA = os.environ.get("ASCENT_DATA")
SOLUTION = "Half of 48 is 48/2 = <<48/2=24>>24.\nTogether 48+24 = <<48+24=72>>1,072.\n#### 1,072"
ASKED = (Message("user", f"How many clips?\n{HASHES}"),)
OPENAI = {"question": "How many clips?", "answer": SOLUTION}
VERL = {
    "prompt": [{"role": "user", "content": "How many clips? Other words."}],
    "reward_model": {"ground_truth": "1072", "style": "rule"},
    "extra_info": {"question": "How many clips?", "answer": SOLUTION, "index": 0, "split": "train"},
}


@pytest.mark.parametrize("row", [OPENAI, VERL], ids=["openai", "verl"])
@pytest.mark.parametrize("write", [files.jsonl, files.parquet])
def test_gsm8k(row, write, tmp_path: Path) -> None:
    name = f"gsm8k:{write(tmp_path / 'train', [row])}"
    (prompt,) = load(name, "prompts").records
    assert isinstance(prompt, Prompt)
    assert (prompt.messages, prompt.answer) == (ASKED, "1072")
    (example,) = load(name, "examples").records
    assert isinstance(example, Example)
    worked = "Half of 48 is 48/2 = 24.\nTogether 48+24 = 1,072.\n#### 1,072"
    assert example.messages == (*ASKED, Message("assistant", worked))
    assert prompt.info["solution"] == worked


def test_gsm8k_with_calls_of_the_calculator(tmp_path: Path) -> None:
    """A second annotation without a result stays out, as in the plain solution."""
    solution = SOLUTION.replace("48 is", "48 is <<48>>")
    name = files.jsonl(tmp_path / "train", [{"question": "How many clips?", "answer": solution}])
    (example,) = load(f"gsm8k_calculator:{name}", "examples").records
    assert isinstance(example, Example)
    assert example.messages == (
        *ASKED,
        Message("assistant", "Half of 48 is  48/2 = <calculator>48/2</calculator>"),
        Message("tool", "<result>24</result>"),
        Message("assistant", "24.\nTogether 48+24 = <calculator>48+24</calculator>"),
        Message("tool", "<result>72</result>"),
        Message("assistant", "1,072.\n#### 1,072"),
    )
    assert (
        load(f"gsm8k_calculator:{name}", "prompts").records
        == load(f"gsm8k:{name}", "prompts").records
    )


def test_gsm8k_rows_of_another_kind_are_refused(tmp_path: Path) -> None:
    name = files.jsonl(
        tmp_path / "a",
        [OPENAI, {"question": "q", "answer": "72"}, {"question": "q", "answer": "#### "}],
    )
    with pytest.raises(ValueError) as caught:
        load(f"gsm8k:{name}", "prompts")
    assert "a.jsonl:2: the answer has no '####'" in str(caught.value)
    assert "a.jsonl:3: nothing follows '####'" in str(caught.value)


PROBLEM, WORKED = r"How many asymptotes has $\frac{2}{x}$?", r"It has one, so $\boxed{1}$."


@pytest.mark.parametrize(
    ("row", "answer"),
    [
        ({"problem": PROBLEM, "solution": WORKED, "level": "Level 3", "type": "Algebra"}, WORKED),
        (
            {
                "problem": PROBLEM,
                "solution": WORKED,
                "answer": "1",
                "subject": "Algebra",
                "level": 3,
            },
            "1",
        ),
        (
            {
                "prompt": [
                    {
                        "role": "user",
                        "content": PROBLEM
                        + " Let's think step by step and output the final answer within \\boxed{}.",
                    }
                ],
                "reward_model": {"ground_truth": "1", "style": "rule"},
                "level": "Level 3",
            },
            "1",
        ),
    ],
    ids=["hendrycks", "math500", "verl"],
)
def test_math(row, answer: str, tmp_path: Path) -> None:
    (prompt,) = load(f"math:{files.jsonl(tmp_path / 'a', [row])}", "prompts").records
    assert isinstance(prompt, Prompt)
    assert prompt.messages == (Message("user", f"{PROBLEM}\n{BOXED}"),)
    assert prompt.answer == answer
    assert prompt.info["level"] in ("Level 3", 3)


def test_math_demonstrations_need_solutions(tmp_path: Path) -> None:
    name = files.jsonl(tmp_path / "a", [{"problem": PROBLEM, "solution": WORKED}])
    (example,) = load(f"math:{name}", "examples").records
    assert isinstance(example, Example) and example.messages[-1].content == WORKED
    other = files.jsonl(tmp_path / "b", [VERL])
    with pytest.raises(ValueError, match="which cannot be used as examples"):
        load(f"math:{other}", "examples")


POST = {"subreddit": "pets", "title": "A cat", "post": "It sat.\nIt left. "}
TEXT = "SUBREDDIT: r/pets\n\nTITLE: A cat\n\nPOST: It sat.\nIt left.\n\nTL;DR:"


def test_tldr(tmp_path: Path) -> None:
    posts = f"tldr:{files.parquet(tmp_path / 'posts', [{**POST, 'summary': ' Cat left.'}])}"
    (prompt,) = load(posts, "prompts").records
    assert isinstance(prompt, Prompt)
    assert (prompt.messages, prompt.answer) == ((Message("user", TEXT),), "Cat left.")
    (example,) = load(posts, "examples").records
    assert isinstance(example, Example) and example.messages[-1] == Message(
        "assistant", " Cat left."
    )


@pytest.mark.parametrize(("choice", "chosen"), [(0, " first"), (1, " second")])
def test_tldr_comparisons(choice: int, chosen: str, tmp_path: Path) -> None:
    row = {"info": POST, "summaries": [{"text": " first"}, {"text": "second"}], "choice": choice}
    (pair,) = load(f"tldr:{files.jsonl(tmp_path / 'c', [row])}", "pairs").records
    assert isinstance(pair, Pair)
    assert pair.prompt.messages == (Message("user", TEXT),)
    assert pair.chosen == (Message("assistant", chosen),)
    with pytest.raises(ValueError, match="a choice of 0 or 1"):
        load(f"tldr:{files.jsonl(tmp_path / 'd', [{**row, 'choice': 2}])}", "pairs")


def test_tldr_as_trl_publishes_it(tmp_path: Path) -> None:
    name = f"tldr:{files.jsonl(tmp_path / 'a', [{'prompt': TEXT, 'completion': ' Cat left.'}])}"
    (prompt,) = load(name, "prompts").records
    assert isinstance(prompt, Prompt) and prompt.messages == (Message("user", TEXT),)
    assert prompt.answer == " Cat left."


def test_other_names_stay_what_they_are() -> None:
    assert schemas_of("openai/gsm8k:main@test") == (SCHEMAS, "openai/gsm8k:main@test")
    assert schemas_of("gsm8k:") == (SCHEMAS, "gsm8k:")
    assert schemas_of("gsm8k:a/b:main@test")[1] == "a/b:main@test"


@pytest.mark.parametrize(
    "name", ["gsm8k_calculater:train.jsonl", "gsm8:openai/gsm8k:main", "maths:a.parquet"]
)
def test_a_prefix_that_is_misspelled_is_named(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        ValueError, match=r"no benchmark is called .*; did you mean (gsm8k_calculator|gsm8k|math):"
    ):
        schemas_of(name)
    monkeypatch.chdir(tmp_path)
    Path(name).parent.mkdir(exist_ok=True, parents=True)
    Path(name).touch()
    assert schemas_of(name) == (SCHEMAS, name)


@pytest.mark.skipif(DATA is None, reason="ASCENT_DATA names no folder with gsm8k/ and math/")
@pytest.mark.parametrize(
    ("name", "split", "rows", "empty"),
    # verl's training file of MATH has two rows without a ground truth.
    [
        ("gsm8k", "train", 7473, 0),
        ("gsm8k", "test", 1319, 0),
        ("math", "train", 7500, 2),
        ("math", "test", 5000, 0),
    ],
)
def test_the_whole_files(name: str, split: str, rows: int, empty: int) -> None:
    loaded = load(f"{name}:{DATA}/{name}@{split}", "prompts", invalid_rows="skip")
    assert (loaded.report.rows, len(loaded.records)) == (rows, rows - empty)
    assert loaded.report.kinds == ({"empty": empty} if empty else {})
    for prompt in loaded.records:
        assert isinstance(prompt, Prompt) and prompt.answer
        assert "Let's think" not in prompt.messages[0].content
