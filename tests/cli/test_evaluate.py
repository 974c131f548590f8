"""`ascent evaluate`: tables, JSON, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from ascent.api.evaluate import EvalResult
from ascent.cli.evaluate import print_evaluation
from ascent.cli.main import app
from ascent.maths.estimates import Estimate
from ascent.models.tiny import create


def call(*arguments: str) -> Result:
    return CliRunner().invoke(
        app, ["evaluate", *arguments], catch_exceptions=False, env={"COLUMNS": "300"}
    )


def test_tables_and_json(tmp_path: Path) -> None:
    model = str(create(tmp_path / "tiny", family="llama", seed=0))
    asked = [model, "arithmetic@heldout:3", "--samples", "2", "--max-new-tokens", "3"]
    done = call(*asked)
    assert done.exit_code == 0
    assert "3 prompts, 2 samples each, scored by verifier of arithmetic" in done.stdout
    for row in ("greedy/correct", "mean@2/correct", "pass@2", "mean@2/truncated", "drawn"):
        assert f"\n{row} " in done.stdout
    found = json.loads(call(*asked, "--json").stdout)
    assert set(found["metrics"]["pass@2"]) == {"value", "low", "high", "prompts"}
    assert found["settings"]["max_new_tokens"] == 3


def test_answers_are_printed_and_all_of_them_written(tmp_path: Path) -> None:
    model, out = str(create(tmp_path / "tiny", family="llama", seed=0)), tmp_path / "answers.jsonl"
    rows = [
        {"prompt": prompt, "answer": str(n)}
        for n, prompt in enumerate(("one :100: [red]", "two", "three"), 1)
    ]
    (tmp_path / "d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = [
        model,
        str(tmp_path / "d.jsonl"),
        "--samples",
        "2",
        "--max-new-tokens",
        "3",
        "--show",
        "2",
    ]
    done = call(*asked, "--out", str(out))
    assert (
        "one :100: [red]\n  reference: 1\n  greedy: " in done.stdout
        and "\ntwo\n  reference: 2\n" in done.stdout
    )
    assert "three" not in done.stdout and f"9 answers are in {out}" in done.stdout
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(row["prompt"], row["sample"]) for row in rows] == [
        (prompt, sample)
        for prompt in ("one :100: [red]", "two", "three")
        for sample in ("greedy", 0, 1)
    ]
    assert (
        rows[0]["answer"] == "1"
        and rows[0]["scores"] == {"correct": 0.0}
        and rows[0]["tokens"] == 3
    )
    found = json.loads(call(*asked, "--json").stdout)
    assert found["answers"] == rows[:6]
    assert "answers" not in json.loads(call(*asked[:-2], "--json").stdout)
    with pytest.raises(
        ValueError, match=r"out=.*answers\.jsonl must be a new file in a folder that exists"
    ):
        call(*asked, "--out", str(out))


def test_mistakes_are_refused() -> None:
    with pytest.raises(ValueError, match="show=-1, but it counts prompts"):
        call("x", "arithmetic", "--show", "-1")
    with pytest.raises(ValueError, match="does not exist; give a folder"):
        call("no such/model here", "arithmetic:1")
    with pytest.raises(ValueError, match="samples=-2"):
        call("x", "arithmetic", "--samples", "-2")
    with pytest.raises(ValueError, match="invalid_rows='drop', but it must be fail or skip"):
        call("x", "arithmetic", "--invalid-rows", "drop")


def test_every_metric_and_every_failure_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    metrics = {
        "pass@1": Estimate(0.5, 0.25, 0.75, 12),
        "greedy/correct": Estimate(1.0, None, None, 1),
    }
    tokens = {"greedy": {"mean": 3.25, "median": 3.0, "max": 9.0}}
    print_evaluation(
        EvalResult(
            "m", "[d].jsonl", "reward exact", 12, 4, {}, metrics, tokens, {"exact/no_gold": 2}
        )
    )
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "m on [d].jsonl: 12 prompts, 4 samples each, scored by reward exact"
    assert "pass@1 0.500 0.250 to 0.750 12" in lines
    assert "greedy/correct 1.000 one prompt 1" in lines
    assert "greedy 3.2 3 9" in lines
    assert lines[-1] == "unscored, left out: 2 (exact/no_gold)"
