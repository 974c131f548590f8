"""From Python: train in one call, then sample, score and export."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

import ascent
from ascent.api.export import export
from ascent.api.sample import sample
from ascent.api.score import score
from tests.setup.runs import tiny_plan

SETTINGS = {
    "data.batch_size": 16, "data.max_tokens": 64, "update.learning_rate": 3e-3, "run.steps": 2, "run.save_every": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def sft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "sft"
    run = ascent.train("sft", model="tiny:llama", data="arithmetic:32", run=folder, settings=SETTINGS)
    assert run.state == "finished" and len(run.metrics) == 2
    return folder


def test_samples_are_reproducible_and_greedy_ones_do_not_differ(sft: Path) -> None:
    asked = {"samples": 2, "max_new_tokens": 4, "seed": 5}
    first = list(sample(str(sft), ["1+1=", "2+2="], **asked))  # type: ignore[arg-type]
    assert first == list(sample(str(sft), ["1+1=", "2+2="], **asked))  # type: ignore[arg-type]
    assert [each.prompt for each in first] == ["1+1=", "1+1=", "2+2=", "2+2="]
    greedy = list(sample(str(sft), ["1+1="], samples=2, max_new_tokens=4, greedy=True))
    assert greedy[0] == greedy[1]


def test_exported_folder_loads_without_ascent(sft: Path, tmp_path: Path) -> None:
    target = export(str(sft), tmp_path / "plain")
    AutoModelForCausalLM.from_pretrained(target)
    assert not any("ascent" in path.read_text() for path in target.glob("*.json"))


def test_scores_come_from_a_reward_model_only(sft: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no scalar head"):
        list(score(str(sft), "arithmetic@heldout:2"))
    from ascent.api.train import train_plan

    train_plan(tiny_plan(algorithm="reward_model", run={"steps": 1}), tmp_path / "rm", say=lambda text: None)
    lines = list(score(str(tmp_path / "rm"), "arithmetic@heldout:3"))
    assert [line.place for line in lines] == [1, 2, 3]
    assert all(len(line.scores) == 2 for line in lines)


def test_a_wrong_setting_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"update\.lr is not a key; did you mean update\.learning_rate"):
        ascent.train("sft", model="tiny:llama", data="arithmetic:8", run=tmp_path / "r", settings={"update.lr": 1.0})
