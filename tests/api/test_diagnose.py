"""Runs diagnosed from their folders: causes made on purpose, files, other runs, the line at the end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import ascent
from ascent.api.diagnose import count_facts
from ascent.cli.main import app
from ascent.config.load import merge_configs
from ascent.diagnose.records import from_json
from ascent.records import Example, Message
from tests.setup.runs import TINY

ROLLOUTS: dict[str, Any] = {
    "algorithm": "grpo",
    "model": {"policy": "tiny:llama", "dtype": "float32"},
    "data": {"train": "arithmetic:64", "evaluate": "arithmetic@heldout:8"},
    "rewards": [{"use": "verifier"}],
    "rollouts": {"prompts_per_step": 3, "group_size": 4, "max_new_tokens": 6},
    "update": {"learning_rate": 1e-3},
    "run": {"steps": 6, "save_every": 100, "evaluate_every": 3},
}


def train(folder: Path, recipe: dict[str, Any], **changes: Any) -> list[str]:
    said: list[str] = []
    ascent.train(merge_configs(recipe, changes), run=folder, progress=False, say=said.append)
    return said


def test_an_untrained_policy_finds_the_task_too_hard(tmp_path: Path) -> None:
    said = train(tmp_path / "run", ROLLOUTS)
    (line,) = [each for each in said if each.startswith("diagnosis: ")]
    assert line.startswith("diagnosis: no_signal_too_hard")
    at_end = from_json((tmp_path / "run/diagnosis.json").read_text())  # written by the run itself
    assert (at_end.line(), at_end.step, at_end.plot) == (line, 6, None)
    found = ascent.diagnose_run(tmp_path / "run")
    assert found.failed and found.cause == "no_signal_too_hard"
    assert found.findings[0].rollouts[0]["prompt"]
    assert from_json((tmp_path / "run/diagnosis.json").read_text()) == found
    assert found.plot is not None and Path(found.plot).read_bytes().startswith(b"\x89PNG")


def test_nothing_is_written_on_request(tmp_path: Path) -> None:
    train(tmp_path / "run", ROLLOUTS)
    before = sorted(each.name for each in (tmp_path / "run").iterdir())
    assert ascent.diagnose_run(tmp_path / "run", write=False).plot is None
    assert sorted(each.name for each in (tmp_path / "run").iterdir()) == before


def test_a_healthy_run_has_no_findings(tmp_path: Path) -> None:
    said = train(tmp_path / "run", TINY, run={"steps": 12, "save_every": 100, "evaluate_every": 4})
    assert "diagnosis: nothing found wrong" in said
    assert from_json((tmp_path / "run/diagnosis.json").read_text()).findings == ()
    found = ascent.diagnose_run(tmp_path / "run")
    assert found.findings == () and not found.failed and found.plot is None


def test_copies_leaks_and_order_are_seen_in_the_data(tmp_path: Path) -> None:
    rows = [{"prompt": f"{n} + 1 =", "completion": str(n + 1)} for n in range(8)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "train.jsonl").write_text(text * 4)
    (tmp_path / "held.jsonl").write_text(text)
    data = {"train": str(tmp_path / "train.jsonl"), "evaluate": str(tmp_path / "held.jsonl")}
    train(tmp_path / "run", TINY, data=data)
    found = ascent.diagnose_run(tmp_path / "run")
    assert [each.cause for each in found.findings][:2] == ["data_leak", "data_copies"]
    assert "24 of 32 records" in found.findings[1].evidence[0]
    assert not ascent.diagnose_run(tmp_path / "run", read_data=False).failed
    (tmp_path / "train.jsonl").unlink()  # the run can still be diagnosed without its data
    assert not ascent.diagnose_run(tmp_path / "run").failed


def test_an_ordered_file_has_a_correlation_with_length() -> None:
    records = [
        Example(str(n), (Message("user", "x" * n), Message("assistant", "y"))) for n in range(1, 30)
    ]
    assert count_facts(records, ()).order > 0.99
    assert abs(count_facts([*records[::2], *records[::-2]], ()).order) < 0.3


def test_other_runs_say_what_differs(tmp_path: Path) -> None:
    for name, changes in (
        ("a", {}),
        ("b", {"seed": 1}),
        ("c", {"update": {"learning_rate": 1e-5}}),
    ):
        train(tmp_path / name, ROLLOUTS, **changes)
    found = ascent.diagnose_run(tmp_path / "a", against=[tmp_path])
    assert len(found.against) == 2
    assert found.against[0].startswith(f"{tmp_path / 'b'}: seed 0 (there 1)")
    assert "update.learning_rate 0.001 (there 1e-05)" in found.against[1]


def test_a_failed_run_is_diagnosed_too(tmp_path: Path) -> None:
    reward = tmp_path / "broken.py"
    reward.write_text("def broken(rollout):\n    return None\n")
    said: list[str] = []
    recipe = merge_configs(ROLLOUTS, {"rewards": [{"use": f"{reward}:broken"}]})
    with pytest.raises(Exception, match="could not be scored"):
        ascent.train(recipe, run=tmp_path / "run", progress=False, say=said.append)
    assert [each for each in said if each.startswith("diagnosis: unscored_rewards")]
    assert ascent.diagnose_run(tmp_path / "run").cause == "unscored_rewards"


def test_the_command(tmp_path: Path) -> None:
    train(tmp_path / "run", ROLLOUTS)
    done = CliRunner().invoke(app, ["diagnose", str(tmp_path / "run")], catch_exceptions=False)
    assert done.exit_code == 0
    assert "no_signal_too_hard (sure, 0.90, from step 1 on)" in done.stdout
    assert "set data.train: easier prompts" in done.stdout
    done = CliRunner().invoke(
        app, ["diagnose", str(tmp_path / "run"), "--json"], catch_exceptions=False
    )
    assert json.loads(done.stdout)["findings"][0]["cause"] == "no_signal_too_hard"
    with pytest.raises(ValueError, match="is no run folder"):
        CliRunner().invoke(app, ["diagnose", str(tmp_path)], catch_exceptions=False)
