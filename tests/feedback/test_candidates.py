"""Answers from a run and from files: what belongs together, what is left out, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ascent.feedback.candidates import is_run, read_file_candidates, read_run_candidates
from ascent.feedback.comparisons import make_comparisons
from ascent.records import Message


def sample(step: int, name: str, completion: str, **more: Any) -> dict[str, Any]:
    record = {
        "step": step,
        "id": name,
        "sample": 0,
        "prompt": f"{name}?",
        "completion": completion,
        "tokens": ["a"],
    }
    return record | more


def make_run(folder: Path, *records: dict[str, Any] | str) -> Path:
    folder.mkdir()
    (folder / "config.yaml").write_text("algorithm: grpo\n")
    lines = [each if isinstance(each, str) else json.dumps(each) + "\n" for each in records]
    (folder / "samples.jsonl").write_text("".join(lines))
    return folder


def write_rows(path: Path, *rows: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_the_groups_of_a_run(tmp_path: Path) -> None:
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "a?"}]
    run = make_run(
        tmp_path / "grpo",
        sample(1, "a", "x", messages=turns),
        sample(1, "a", "y", messages=turns),
        sample(1, "b", "z"),
        "{broken\n",
        "[]\n",
        "null\n",
        '{"step": 1}\n',
        sample(2, "a", "w"),
        sample(2, "a", "v"),
        sample(2, "c", "episode", ended="done"),
        '{"step": 3, "id": "a", "comp',
    )
    assert is_run(str(run)) and not is_run(str(tmp_path))
    found = read_run_candidates(run)
    assert [each.id for each in found.prompts] == ["a@1", "b@1", "a@2"]
    assert found.prompts[0].messages == (Message("system", "Be brief."), Message("user", "a?"))
    assert found.prompts[1].messages == (Message("user", "b?"),)
    assert [(each.id, each.model, each.text) for each in found.answers["a@1"]] == [
        ("0.0", "grpo", "x"),
        ("0.1", "grpo", "y"),
    ]
    assert found.left_out == {"damaged lines": 4, "episodes of an environment": 1}
    questions, _ = make_comparisons(found.prompts, found.answers, "pairs", seed=0)
    assert [each.id for each in questions] == ["a@1#0.0-0.1", "a@2#0.0-0.1"]
    assert [each.id for each in read_run_candidates(run, step=2).prompts] == ["a@2"]
    assert [each.id for each in read_run_candidates(run, limit=1).prompts] == ["a@1"]
    assert len(read_run_candidates(run, limit=1).answers["a@1"]) == 2


def test_a_run_without_rollouts_says_how_to_get_answers(tmp_path: Path) -> None:
    run = make_run(tmp_path / "sft")
    with pytest.raises(
        ValueError, match=r"has no logged rollouts.*ascent label .*sft --prompts PROMPTS"
    ):
        read_run_candidates(run)
    run = make_run(tmp_path / "tools", sample(1, "c", "x", ended="done"))
    with pytest.raises(ValueError, match=r"\(1 episodes of an environment\)"):
        read_run_candidates(run)
    with pytest.raises(ValueError, match="step 7 of"):
        read_run_candidates(run, step=7)


def test_one_answer_in_a_row_belongs_to_the_others_of_its_question(tmp_path: Path) -> None:
    name = write_rows(
        tmp_path / "answers.jsonl",
        {"prompt": "a?", "completion": "x", "model": "old"},
        {"prompt": "b?", "completion": "u", "model": "old"},
        {"prompt": "a?", "completion": "y", "model": "new"},
        {"prompt": "a?", "completion": "z", "model": "new"},
        {"prompt": "b?", "completion": "", "model": "new"},
    )
    found = read_file_candidates(name)
    assert [(each.id, each.model, each.text) for each in found.answers["answers.jsonl:1"]] == [
        ("0.0", "old", "x"),
        ("1.0", "new", "y"),
        ("1.1", "new", "z"),
    ]
    questions, left = make_comparisons(found.prompts, found.answers, "rankings", seed=0)
    assert len(questions) == 1 and left == {
        "empty answers": 1,
        "prompts whose answers are all equal": 1,
    }
    assert len(read_file_candidates(name, limit=1).prompts) == 1
    assert len(read_file_candidates(f"{name}:2").prompts) == 2


def test_lists_and_pairs(tmp_path: Path) -> None:
    conversation = [{"role": "user", "content": "c?"}]
    found = read_file_candidates(
        write_rows(
            tmp_path / "mixed.jsonl",
            {"prompt": "a?", "responses": ["x", "y", "z"], "models": ["m", "n", "m"]},
            {"prompt": "b?", "chosen": "good", "rejected": "bad"},
            {
                "chosen": [*conversation, {"role": "assistant", "content": "1"}],
                "rejected": [*conversation, {"role": "assistant", "content": "2"}],
            },
            {"prompt": "d?", "answers": ["tied", "with this"], "set_aside": "tie"},
        )
    )
    texts = {
        found.prompts[n].messages[-1].content: [a.text for a in found.answers[found.prompts[n].id]]
        for n in range(4)
    }
    assert texts == {
        "a?": ["x", "y", "z"],
        "b?": ["good", "bad"],
        "c?": ["1", "2"],
        "d?": ["tied", "with this"],
    }
    assert [a.id for a in found.answers[found.prompts[0].id]] == ["0.0", "1.0", "0.1"]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (
            {"prompt": "a?", "responses": ["x", "y"], "models": ["m"]},
            "one model for each of the 2 responses",
        ),
        ({"responses": ["x", "y"]}, "no value in any of the columns prompt"),
        ({"prompt": "a?"}, "no value in any of the columns completion"),
        ({"prompt": "a?", "responses": ["x", 5]}, r"responses\[1\] is int 5"),
        ({"prompt": "a?", "chosen": "x", "rejected": "x"}, "chosen equals rejected"),
    ],
)
def test_a_row_that_is_no_question_is_refused_with_its_line(
    tmp_path: Path, row: dict, problem: str
) -> None:
    name = write_rows(tmp_path / "a.jsonl", {"prompt": "q?", "responses": ["x", "y"]}, row)
    with pytest.raises(ValueError, match=rf"a\.jsonl:2: .*{problem}"):
        read_file_candidates(name)
