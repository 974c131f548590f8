"""`ascent inspect`: what a person sees."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from ascent.cli.main import app
from tests.data import chat


def inspect(*arguments: str) -> Result:
    return CliRunner().invoke(
        app, ["inspect", *arguments], catch_exceptions=False, env={"COLUMNS": "300"}
    )


def write(path: Path, rows: list[dict[str, object]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def model(tmp_path: Path) -> str:
    chat.tokenizer(pad="<|end|>").save_pretrained(tmp_path / "model")
    return str(tmp_path / "model")


PAIRS = [
    {"prompt": f"sort {n} 1", "chosen": "1 " * (n + 1), "rejected": "x", "source": "me"}
    for n in range(6)
]


def test_without_a_model(tmp_path: Path) -> None:
    name = write(tmp_path / "a.jsonl", [*PAIRS, PAIRS[0]])
    done = inspect(name)
    assert done.exit_code == 0
    assert "7 pairs of 7 rows, schema: chosen and rejected" in done.stdout
    assert "columns not used: source" in done.stdout
    assert "Lengths in characters" in done.stdout
    assert "1 records repeat an earlier one, 1 repeat an earlier prompt" in done.stdout
    assert "the chosen answer is the longer one in 100% of pairs" in done.stdout
    assert "add --model" in done.stdout
    row = next(
        line.split() for line in done.stdout.splitlines() if line.strip().startswith("chosen")
    )
    assert row == ["chosen", "7", "6.3", "6", "12", "12"]
    assert "█" in done.stdout


def test_words_and_side_by_side(tmp_path: Path) -> None:
    one = write(tmp_path / "a.jsonl", PAIRS)
    two = write(tmp_path / "b.jsonl", [{"prompt": "sort 2 1", "completion": "1 2"}])
    done = inspect(one, two, "--words")
    assert "Lengths in words" in done.stdout
    for column in ("prompt (1)", "chosen (1)", "rejected (1)", "SFT (2)"):
        assert column in done.stdout
    assert "share 1 prompts" in done.stdout


def test_with_a_model_a_sample_is_rendered_and_trained_tokens_are_marked(
    tmp_path: Path, model: str
) -> None:
    name = write(
        tmp_path / "a.jsonl",
        [{"prompt": "sort 2 1", "completion": "1 2"}, {"prompt": "p", "completion": "x " * 60}],
    )
    done = inspect(name, "--model", model, "--max-tokens", "40")
    assert "Lengths in tokens" in done.stdout
    assert "pad equals EOS, which is safe here" in done.stdout
    assert "1 of 2 records cannot be trained on (40 tokens a record" in done.stdout
    assert "a.jsonl:2: " in done.stdout
    assert "<|start|>user\nsort 2 1<|end|>\n<|start|>assistant\n⟦1 2<|end|>⟧" in done.stdout


def test_prompts_are_shown_as_a_sampler_gets_them(tmp_path: Path, model: str) -> None:
    done = inspect(write(tmp_path / "a.jsonl", [{"prompt": "sort 2 1"}]), "--model", model)
    assert "<|start|>user\nsort 2 1<|end|>\n<|start|>assistant\n" in done.stdout
    assert "⟦" not in done.stdout.partition("as a sampler continues it")[2]


def test_bad_rows_are_shown_and_the_status_tells(tmp_path: Path) -> None:
    done = inspect(
        write(tmp_path / "a.jsonl", [*PAIRS, {"prompt": "q", "chosen": "a", "rejected": "a"}])
    )
    assert done.exit_code == 1
    assert "1 invalid rows of 7 (1 equal)" in done.stdout
    assert "a.jsonl:7: chosen equals rejected" in done.stdout


@pytest.mark.parametrize("kind", ["prompts", "examples", "pairs", "unpaired"])
def test_built_in_tasks(kind: str) -> None:
    done = inspect("style@heldout:50", "--as", kind)
    assert done.exit_code == 0
    assert f"style@heldout:50: 50 {kind} of 50 rows" in done.stdout


def test_training_and_held_out_prompts_share_nothing() -> None:
    assert (
        "style and style@heldout share 0 prompts"
        in inspect("style", "style@heldout", "--as", "prompts").stdout
    )


def test_an_unknown_kind_is_an_error() -> None:
    with pytest.raises(ValueError, match="style as 'pears', but it must be one of prompts"):
        inspect("style", "--as", "pears")


def test_text_files_need_no_torch(tmp_path: Path) -> None:
    name = write(tmp_path / "a.jsonl", PAIRS)
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "ascent", "inspect", name],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    heavy = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()} & {
        "torch",
        "transformers",
        "datasets",
    }
    assert not heavy
