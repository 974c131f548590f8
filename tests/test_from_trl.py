"""Scripts of TRL run after two changes, the import and the trainer's call (docs/coming-from/trl.md)."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import datasets
import pytest
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from ascent.models.tiny import create
from ascent.runs.folder import read_run
from tests.data.chat import CHATML

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted((ROOT / "examples" / "from_trl").glob("*.py"))
PAGE = (ROOT / "docs" / "coming-from" / "trl.md").read_text()
PAIRS = re.findall(r"There:\n\n```text\n(.*?)```\n\nHere:\n\n```text\n(.*?)```", PAGE, re.DOTALL)


def source(path: Path) -> str:
    """The script without its docstring."""
    return path.read_text().partition('"""\n\n')[2]


def untouched(text: str, trainer: str) -> list[str]:
    """The statements of a script without those that import the library or train."""

    def changes(node: ast.stmt) -> bool:
        code = ast.unparse(node)
        if isinstance(node, ast.Import | ast.ImportFrom):
            return code.startswith(("from trl ", "import ascent"))
        return code.startswith(trainer)

    return [ast.unparse(node) for node in ast.parse(text).body if not changes(node)]


def test_the_page_has_the_four_scripts() -> None:
    assert {path.stem for path in SCRIPTS} == {"sft", "dpo", "reward_model", "grpo"}
    assert sorted(after for _, after in PAIRS) == sorted(source(path) for path in SCRIPTS)


@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_nothing_but_the_import_and_the_trainer_changes(before: str, after: str) -> None:
    assert untouched(before, "trainer") == untouched(after, "ascent.train(")
    assert before.count("Trainer(") == 1 and after.count("ascent.train(") == 1


def said(content: str, role: str = "assistant") -> dict[str, str]:
    return {"role": role, "content": content}


def rows(name: str) -> list[dict[str, Any]]:
    """Rows with the columns of the data set of that name on the hub."""
    asked = [[said(f"{number} + 1 =", "user")] for number in range(20)]
    if name == "trl-lib/Capybara":
        return [
            {"source": "x", "messages": [*each, said("2"), *each, said("3")], "num_turns": 2}
            for each in asked
        ]
    if name == "trl-lib/ultrafeedback_binarized":
        scores = {"score_chosen": 8.0, "score_rejected": 2.5}
        return [
            {"chosen": [*each, said("yes")], "rejected": [*each, said("no, never")], **scores}
            for each in asked
        ]
    assert name == "trl-lib/DeepMath-103K"
    return [{"prompt": each, "solution": str(number)} for number, each in enumerate(asked)]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_the_script_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    special = ["<|start|>", "<|end|>"]
    model = create(tmp_path / "model", special=special, chat_template=CHATML, seed=0)
    monkeypatch.setattr(
        datasets, "load_dataset", lambda name, split: datasets.Dataset.from_list(rows(name))
    )
    monkeypatch.chdir(tmp_path)
    text = re.sub(r"Qwen/[\w.-]+", str(model), source(path))
    text = text.replace('"run.steps": 200', '"run.steps": 2').replace(
        '"max_new_tokens": 256', '"max_new_tokens": 8'
    )
    exec(compile(text, str(path), "exec"), {"__name__": "__main__"})
    run = read_run(next((tmp_path / "runs").iterdir()))
    assert run.state == "finished" and len([row for row in run.metrics if "loss/total" in row]) == 2
    saved = run.path / "checkpoints" / str(run.checkpoints[-1]) / "model"
    loader = (
        AutoModelForSequenceClassification if path.stem == "reward_model" else AutoModelForCausalLM
    )
    assert loader.from_pretrained(saved).config.vocab_size == 260
    if path.stem == "grpo":
        assert {"reward/boxed", "reward/brief"} <= run.metrics[-1].keys()
        assert 0 < run.metrics[-1]["reward/brief"] <= 1
