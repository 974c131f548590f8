"""Runs that go on with other data: other held-out records, files that grew, files in another folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import ascent
from ascent.config.load import merge_configs

RECIPE: dict[str, Any] = {
    "algorithm": "sft",
    "model": {"policy": "tiny:llama", "dtype": "float32"},
    "data": {"train": "train.jsonl", "batch_size": 4, "max_tokens": 64},
    "update": {"learning_rate": 1e-2},
    "run": {"steps": 4, "save_every": 1, "evaluate_every": 1},
}


def rows(first: int, last: int) -> list[dict[str, str]]:
    return [{"prompt": f"{n}+1=", "completion": f"{n + 1}", "answer": f"{n + 1}"} for n in range(first, last)]


def write(name: str, records: list[dict[str, str]]) -> None:
    Path(name).write_text("".join(json.dumps(each) + "\n" for each in records))


def train(**changes: Any) -> ascent.Run:
    return ascent.train(merge_configs(RECIPE, changes), run="run", progress=False, say=lambda line: None)


def resume(run: str | Path = "run", **options: Any) -> ascent.Run:
    return ascent.resume(run, progress=False, say=lambda line: None, **options)


def edit(changes: dict[str, Any]) -> None:
    file = Path("run/config.yaml")
    file.write_text(yaml.safe_dump(merge_configs(yaml.safe_load(file.read_text()), changes)))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ascent.runs.folder.draw", lambda *_, **__: None)  # it takes longer than the training
    write("train.jsonl", rows(0, 16))
    return tmp_path


def test_the_best_checkpoint_is_the_best_by_what_is_evaluated_now() -> None:
    """The first held-out records are those that are trained on, the others nobody could answer."""
    write("easy.jsonl", rows(0, 4))
    write("hard.jsonl", [{"prompt": "zz@#", "completion": "QXJ%&!!"}])
    train(data={"evaluate": "easy.jsonl"}, run={"keep": 1, "keep_best": 1})
    edit({"data": {"evaluate": "hard.jsonl"}, "run": {"steps": 8}})
    found = resume(accept_changes=True)
    losses = {int(row["step"]): row["eval/loss/total"] for row in found.metrics}
    before, after = ([losses[step] for step in steps] for steps in (range(1, 5), range(5, 9)))
    assert min(after) > max(before)  # so that by the numbers alone an old one were the best
    assert found.checkpoints == sorted({min(range(5, 9), key=lambda step: losses[step]), 8})
    findings = json.loads((found.path / "diagnosis.json").read_text())["findings"]
    assert all(each["began"] > 4 for each in findings if each["cause"] == "overfitting")
