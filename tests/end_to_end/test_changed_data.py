"""Runs that go on with other data: other held-out records, files that grew, files in another folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

import ascent
from ascent.config.load import merge_configs
from tests.setup.runs import weights_of

RECIPE: dict[str, Any] = {
    "algorithm": "sft",
    "model": {"policy": "tiny:llama", "dtype": "float32"},
    "data": {"train": "train.jsonl", "batch_size": 4, "max_tokens": 64},
    "update": {"learning_rate": 1e-2},
    "run": {"steps": 4, "save_every": 1, "keep": 4},
}
GRPO: dict[str, Any] = {
    **RECIPE,
    "algorithm": "grpo",
    "data": {"train": "train.jsonl"},
    "rewards": [{"use": "tokens.py:even"}],
    "rollouts": {"prompts_per_step": 3, "group_size": 2, "max_new_tokens": 4},
}
KINDS: dict[str, dict[str, Any]] = {
    "sft": RECIPE,
    "mix": merge_configs(RECIPE, {"data": {"mix": [{"use": "more.jsonl", "share": 0.5}]}}),
    "grpo": GRPO,
    "stale": merge_configs(GRPO, {"rollouts": {"max_staleness": 1}}),
}
REWARD = """
def even(rollout):
    return float(sum(rollout.turns[-1].completion.tokens) % 2)
"""


def rows(first: int, last: int) -> list[dict[str, str]]:
    return [
        {"prompt": f"{n}+1=", "completion": f"{n + 1}", "answer": f"{n + 1}"}
        for n in range(first, last)
    ]


def write(name: str, records: list[dict[str, str]]) -> None:
    Path(name).write_text("".join(json.dumps(each) + "\n" for each in records))


def train(recipe: dict[str, Any] = RECIPE, into: str = "run", **changes: Any) -> ascent.Run:
    return ascent.train(
        merge_configs(recipe, changes), run=into, progress=False, say=lambda line: None
    )


def rewind(step: int, run: str = "run") -> None:
    """As if the run had been killed after this step."""
    for path in Path(run, "checkpoints").iterdir():
        if int(path.name) > step:
            shutil.rmtree(path)
    Path(run, "outcome.json").unlink(missing_ok=True)


def contents(run: str = "run") -> dict[str, bytes]:
    files = (path for path in Path(run).rglob("*") if path.is_file() and path.name != "lock")
    return {str(path): path.read_bytes() for path in files}


def resume(run: str | Path = "run", **options: Any) -> ascent.Run:
    return ascent.resume(run, progress=False, say=lambda line: None, **options)


def edit(changes: dict[str, Any]) -> None:
    file = Path("run/config.yaml")
    file.write_text(yaml.safe_dump(merge_configs(yaml.safe_load(file.read_text()), changes)))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "ascent.runs.folder.draw", lambda *_, **__: None
    )  # it takes longer than the training
    write("train.jsonl", rows(0, 6))
    write("more.jsonl", rows(100, 104))
    Path("tokens.py").write_text(REWARD)
    return tmp_path


def test_the_best_checkpoint_is_the_best_by_what_is_evaluated_now() -> None:
    """The first held-out records are those that are trained on, the others nobody could answer."""
    write("easy.jsonl", rows(0, 4))
    write("hard.jsonl", [{"prompt": "zz@#", "completion": "QXJ%&!!"}])
    train(data={"evaluate": "easy.jsonl"}, run={"keep": 1, "keep_best": 1, "evaluate_every": 1})
    edit({"data": {"evaluate": "hard.jsonl"}, "run": {"steps": 8}})
    found = resume(accept_changes=True)
    losses = {int(row["step"]): row["eval/loss/total"] for row in found.metrics}
    before, after = ([losses[step] for step in steps] for steps in (range(1, 5), range(5, 9)))
    assert min(after) > max(before)  # so that by the numbers alone an old one were the best
    assert found.checkpoints == sorted({min(range(5, 9), key=lambda step: losses[step]), 8})
    findings = json.loads((found.path / "diagnosis.json").read_text())["findings"]
    assert all(each["began"] > 4 for each in findings if each["cause"] == "overfitting")


@pytest.mark.parametrize("records", [40, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_goes_on_with_a_file_that_grew_or_shrank(kind: str, records: int) -> None:
    train(KINDS[kind])
    rewind(2)
    name, before = "more.jsonl" if kind == "mix" else "train.jsonl", contents()
    write(name, rows(100, 100 + records))
    with pytest.raises(ValueError, match=rf"(?s){name} has another content .* --accept-changes"):
        resume()
    assert contents() == before
    shutil.copytree("run", "again")
    found = resume(accept_changes=True)
    assert (found.state, [change["step"] for change in found.changes]) == ("finished", [3])
    assert [row["step"] for row in found.metrics] == [1, 2, 3, 4]
    final = weights_of(Path("run"), 4)
    resume("again", accept_changes=True)
    assert weights_of(Path("again"), 4) == final
    rewind(3)  # and from a checkpoint with the new data nothing has changed any more
    resume()
    assert weights_of(Path("run"), 4) == final


def test_other_prompts_are_refused_where_rollouts_of_the_old_ones_are_unfinished() -> None:
    train(GRPO, rollouts={"max_staleness": 1, "partial_rollouts": True})
    rewind(2)
    before = contents()
    write("train.jsonl", rows(100, 120))
    with pytest.raises(
        ValueError, match=r"holds unfinished rollouts of its prompts.*put it back"
    ) as refused:
        resume(accept_changes=True)
    assert "--accept-changes" not in str(refused.value)
    assert contents() == before


def of_another_run(**changes: Any) -> None:
    """The checkpoints of a run that began elsewhere."""
    train(into="other", **changes)
    shutil.rmtree("run/checkpoints")
    shutil.copytree("other/checkpoints", "run/checkpoints")
    rewind(2)


def damaged(name: str) -> None:
    Path("run", name).write_bytes(b'{"step": 1}\n{"st\n{"step": 4}\n')


PPO = {**GRPO, "algorithm": "ppo", "rollouts": {"prompts_per_step": 2, "max_new_tokens": 4}}
REFUSALS: dict[str, tuple[Any, str]] = {
    "another seed": (lambda: of_another_run(seed=1), "seed was 1 and is 0"),
    "other learners": (
        lambda: of_another_run(recipe=PPO),
        "the checkpoint's learners .* are not this run's",
    ),
    "versions": (lambda: damaged("environment.json"), "environment.json is damaged"),
    "log": (lambda: damaged("samples.jsonl"), "samples.jsonl, line 2 is not JSON"),
    "steps": (lambda: edit({"run": {"steps": 1}}), "step 2 of 1.*raise run.steps"),
}


@pytest.mark.parametrize("reason", REFUSALS)
def test_a_resume_that_is_refused_writes_nothing(reason: str) -> None:
    train()
    rewind(2)
    change, words = REFUSALS[reason]
    change()
    before = contents()
    with pytest.raises(ValueError, match=words):
        resume(accept_changes=True)
    assert contents() == before


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("kind", ["sft", "grpo"])
def test_a_relative_path_is_resumed_from_the_folder_of_the_start(
    kind: str,
    there: bool,
    folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    train(KINDS[kind])
    rewind(2)
    before = contents()
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    if there:
        write("train.jsonl", rows(50, 60))
    words = f"train.jsonl is read from the current folder, and the run was started in {folder}: resume it there"
    with pytest.raises(ValueError, match=words):
        resume(folder / "run")
    monkeypatch.chdir(folder)
    assert contents() == before
    assert resume().state == "finished"
