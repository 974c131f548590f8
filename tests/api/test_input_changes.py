"""A run goes on with the inputs and the recipe that it began with, or it says what changed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ascent.api.train import resume_run, train_plan
from ascent.config.load import merge_configs, nest_keys
from ascent.config.validate import validate
from ascent.plan.resolve import resolve
from tests.setup.runs import weights_of
from tests.setup.world import INPUTS, KINDS, furnished, other


def quiet(text: str) -> None: ...


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        folder = furnished(tmp_path_factory.mktemp("world"))
        patch.syspath_prepend(str(folder))  # so that a reward's own module is found
        patch.setattr(
            "ascent.runs.folder.draw", lambda *_, **__: None
        )  # it takes longer than the training
        yield folder


@pytest.fixture(scope="module")
def killed(
    world: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], tuple[Path, bytes]]:
    """A run of each kind that was killed after its first step, and the weights that it would have ended with."""
    known: dict[str, tuple[Path, bytes]] = {}

    def of(kind: str) -> tuple[Path, bytes]:
        if kind not in known:
            folder = tmp_path_factory.mktemp("killed") / "run"
            train_plan(resolve(validate(nest_keys(KINDS[kind](world)))), folder, say=quiet)
            final = weights_of(folder, 2)
            shutil.rmtree(folder / "checkpoints/2")
            (folder / "outcome.json").unlink()
            known[kind] = folder, final
        return known[kind]

    return of


@pytest.fixture
def copied(killed: Callable[[str], tuple[Path, bytes]], tmp_path: Path) -> Callable[[str], Path]:
    return lambda kind: Path(shutil.copytree(killed(kind)[0], tmp_path / "run"))


@pytest.fixture
def changed(world: Path) -> Iterator[Callable[[str], Path]]:
    """Change files of the world; afterwards they are as they were."""
    before: dict[Path, bytes | None] = {}

    def change(name: str) -> Path:
        path = world / name
        before[path] = path.read_bytes() if path.exists() else None
        other(path)
        return path

    yield change
    for path, content in before.items():
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_changed_and_the_run_ends_in_the_same_weights(
    kind: str, killed: Any, copied: Any, world: Path
) -> None:
    folder, said = copied(kind), []
    assert resume_run(folder, say=said.append) == 2
    assert weights_of(folder, 2) == killed(kind)[1]
    assert not (folder / "changes.jsonl").exists()
    assert not any("from step" in line for line in said)


@pytest.mark.parametrize(("kind", "key", "file"), INPUTS)
def test_an_input_that_changed_is_named_and_refused_unless_accepted(
    kind: str, key: str, file: str, copied: Any, changed: Any
) -> None:
    """Nothing of it is touched by the refusal: restored, the same run goes on."""
    folder, path = copied(kind), changed(file)
    before = sorted(
        (each, each.read_bytes())
        for each in folder.rglob("*")
        if each.is_file() and each.name != "lock"
    )
    with pytest.raises(ValueError) as refused:
        resume_run(folder, say=quiet)
    text = str(refused.value)
    lines = [line for line in text.splitlines() if line.strip().startswith(f"{key} ")]
    assert len(lines) == 1 and path.name in lines[0] and str(path.parent) in lines[0], text
    assert "--accept-changes" in text
    after = sorted(
        (each, each.read_bytes())
        for each in folder.rglob("*")
        if each.is_file() and each.name != "lock"
    )
    assert after == before


def test_every_kind_of_run_has_each_of_its_inputs_tested(killed: Any, world: Path) -> None:
    """What is recorded of each kind, but models that only a start needs and what others show already."""
    tested = {(kind, key) for kind, key, _ in INPUTS}
    shown = {
        ("sft", "model.policy"),
        ("dpo", "model.policy"),
        ("reward_model", "model.policy"),
        ("kd", "model.policy"),
        ("a row", "model.policy"),
        ("ppo", "model.critic_from"),  # only a start needs them
    }
    alike = {
        "a row": "sft",
        "ppo with lora": "grpo",
        "instructgpt": "grpo",
        "tools": "grpo",
        "an environment": "grpo",
        "kd": "sft",
        "dpo from its policy": "dpo",
    }
    for kind in KINDS:
        for each in json.loads((killed(kind)[0] / "inputs.json").read_text())["inputs"]:
            pairs = {(kind, each["key"]), (alike.get(kind, kind), each["key"])}
            assert pairs & (tested | shown), (kind, each["key"])
            assert each["content"], each


def test_accepted_changes_count_from_the_next_step_and_are_written_down(
    copied: Any, killed: Any, changed: Any
) -> None:
    folder, path = copied("grpo"), changed("train_prompts.jsonl")
    said: list[str] = []
    assert resume_run(folder, accept_changes=True, say=said.append) == 2
    assert any(
        line.startswith(f"data.train {path} ") and line.endswith("accepted, from step 2 on")
        for line in said
    )
    (line,) = [json.loads(line) for line in (folder / "changes.jsonl").read_text().splitlines()]
    assert (line["step"], line["key"], line["input"]) == (2, "data.train", True)
    assert line["was"]["content"] != line["now"]["content"]
    assert weights_of(folder, 2) != killed("grpo")[1]
    shutil.rmtree(
        folder / "checkpoints/2"
    )  # from step 2 on it is the run's own: nothing is to be accepted again
    again: list[str] = []
    assert resume_run(folder, say=again.append) == 2
    assert not any("from step" in line for line in again)
    shutil.rmtree(folder / "checkpoints")  # but step 1 was made with what was there before
    with pytest.raises(ValueError, match=r"data\.train .* has another content"):
        resume_run(folder, say=quiet)


def test_log_probs_of_another_reference_are_not_used(copied: Any, changed: Any) -> None:
    folder = copied("dpo")
    changed("reference/model.safetensors")
    said: list[str] = []
    resume_run(folder, accept_changes=True, say=said.append)
    assert any(
        "it is of another reference); its log-probs are computed again" in line for line in said
    )


def test_what_only_a_start_needs_is_not_looked_at_later(
    copied: Any, killed: Any, changed: Any
) -> None:
    folder = copied("sft")
    path = changed("policy/model.safetensors")
    assert resume_run(folder, say=quiet) == 2
    assert weights_of(folder, 2) == killed("sft")[1]
    shutil.rmtree(folder / "checkpoints")  # now it starts again
    with pytest.raises(
        ValueError, match=rf"model.policy {path.parent} has another content \(model.safetensors "
    ):
        resume_run(folder, say=quiet)


@pytest.mark.parametrize("gone", ["train_prompts.jsonl", "reward.py", "policy"])
def test_an_input_that_is_gone_is_named(
    gone: str, copied: Any, world: Path, tmp_path: Path
) -> None:
    folder = copied("grpo")
    (world / gone).rename(tmp_path / gone)
    try:
        with pytest.raises(ValueError, match=rf"{gone}.*"):
            resume_run(folder, say=quiet)
    finally:
        (tmp_path / gone).rename(world / gone)


def test_a_run_as_policy_is_held_to_the_checkpoint_that_it_was(world: Path, tmp_path: Path) -> None:
    """The policy is the reference of GRPO. The run that it names trains on, and its newest checkpoint is another."""
    settings = {key: value for key, value in KINDS["sft"](world).items() if key != "data.evaluate"}
    settings = {**settings, "run.keep": 9}
    settings.pop("run.evaluate_every")
    train_plan(resolve(validate(nest_keys(settings))), tmp_path / "sft", say=quiet)
    said: list[str] = []
    plan = resolve(
        validate(nest_keys({**KINDS["grpo"](world), "model.policy": str(tmp_path / "sft")}))
    )
    train_plan(plan, tmp_path / "whole", say=said.append)
    held = tmp_path / "sft/checkpoints/2/model"
    assert f"model.policy {tmp_path / 'sft'} is {held}" in said
    assert yaml.safe_load((tmp_path / "whole/config.yaml").read_text())["model"]["policy"] == str(
        tmp_path / "sft"
    )
    _edit(tmp_path / "sft", {"run.steps": 3})
    resume_run(tmp_path / "sft", say=quiet)
    final = weights_of(tmp_path / "whole", 2)
    shutil.rmtree(tmp_path / "whole/checkpoints/2")
    resume_run(tmp_path / "whole", say=quiet)
    assert weights_of(tmp_path / "whole", 2) == final
    shutil.rmtree(tmp_path / "whole/checkpoints/2")
    shutil.rmtree(held.parent)
    with pytest.raises(
        ValueError,
        match=rf"has another content .* at {tmp_path}/sft/checkpoints/3/model, which was ",
    ):
        resume_run(tmp_path / "whole", say=quiet)


def _edit(folder: Path, changes: dict[str, Any]) -> None:
    path = folder / "config.yaml"
    recipe = yaml.safe_load(path.read_text())
    if "rewards[0].weight" in changes:
        recipe["rewards"][0]["weight"] = changes.pop("rewards[0].weight")
    path.write_text(yaml.safe_dump(merge_configs(recipe, nest_keys(changes))))


EDITS: list[tuple[str, dict[str, Any], str]] = [
    ("grpo", {"update.learning_rate": 3e-6}, "update.learning_rate 0.001 -> 3e-06, from step 2 on"),
    ("grpo", {"cells.kl.weight": 0.5}, "cells.kl.weight 0.04 -> 0.5, from step 2 on"),
    ("grpo", {"rollouts.group_size": 4}, "rollouts.group_size 2 -> 4, from step 2 on"),
    ("grpo", {"rollouts.temperature": 0.5}, "rollouts.temperature 1.0 -> 0.5, from step 2 on"),
    ("grpo", {"rewards[0].weight": -1.0}, "rewards[0].weight 1.0 -> -1.0, from step 2 on"),
    ("sft", {"run.steps": 3}, "run.steps 2 -> 3, from step 2 on"),
]


@pytest.mark.parametrize(("kind", "edit", "words"), EDITS)
def test_an_edit_of_the_recipe_is_reported_recorded_and_has_an_effect(
    kind: str, edit: dict[str, Any], words: str, copied: Any, killed: Any
) -> None:
    folder, said = copied(kind), []
    _edit(folder, dict(edit))
    resume_run(folder, say=said.append)
    assert words in said
    lines = [json.loads(line) for line in (folder / "changes.jsonl").read_text().splitlines()]
    assert all(line["step"] == 2 for line in lines) and {line["key"] for line in lines} >= {
        words.split()[0]
    }
    other_bits = weights_of(folder, 2) != killed(kind)[1]
    assert other_bits == ("run.steps" not in edit)
    shutil.rmtree(folder / f"checkpoints/{3 if 'run.steps' in edit else 2}")
    again: list[str] = []
    resume_run(folder, say=again.append)
    assert not any("from step" in line for line in again)  # said once


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("grpo", {"algorithm": "rloo"}, r"algorithm 'grpo' -> 'rloo' cannot be changed on resume"),
    (
        "grpo",
        {"seed": 1},
        r"seed 0 -> 1 cannot be changed on resume: all random numbers so far depend on the old one",
    ),
    (
        "grpo",
        {"cells.policy_loss": {"use": "cispo"}},
        r"cells.policy_loss.use 'clip' -> 'cispo' cannot be changed on resume: another",
    ),
    ("grpo", {"update.epochs": 2}, r"update.epochs 1 -> 2 cannot be changed on resume"),
    ("ppo with lora", {"model.lora": 4}, r"model.lora 2 -> 4 cannot be changed on resume"),
    (
        "ppo with lora",
        {"model.quantize": "nf4"},
        r"model.quantize null -> 'nf4' cannot be changed on resume: the saved",
    ),
    (
        "ppo",
        {"model.critic_from": "nowhere"},
        r"model.critic_from .* -> nowhere has no effect: it is read at the start",
    ),
    ("sft", {"data.batch_size": 2}, r"data.batch_size 4 -> 2 cannot be changed on resume"),
    ("sft", {"data.shuffle": False}, r"data.shuffle true -> false cannot be changed on resume"),
    (
        "sft",
        {"model.policy": "nowhere"},
        r"model.policy .* -> nowhere has no effect: it is read at the start",
    ),
]


@pytest.mark.parametrize(("kind", "edit", "words"), REFUSED)
def test_an_edit_that_cannot_mean_what_it_says_is_refused_accepted_or_not(
    kind: str, edit: dict[str, Any], words: str, copied: Any
) -> None:
    folder = copied(kind)
    if "algorithm" in edit:  # its cells are spelled out in config.yaml
        path = folder / "config.yaml"
        path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "cells": {}}))
    _edit(folder, edit)
    for accept in (False, True):
        with pytest.raises(ValueError, match=words):
            resume_run(folder, accept_changes=accept, say=quiet)


def test_a_name_that_stands_for_the_same_content_is_no_other_input(
    copied: Any, killed: Any, world: Path
) -> None:
    folder = copied("grpo")
    moved = world / "moved" / "train_prompts.jsonl"
    moved.parent.mkdir()
    shutil.copy(world / "train_prompts.jsonl", moved)
    _edit(folder, {"data.train": str(moved)})
    said: list[str] = []
    assert resume_run(folder, say=said.append) == 2
    assert any(line.startswith("data.train ") and line.endswith("from step 2 on") for line in said)
    assert weights_of(folder, 2) == killed("grpo")[1]


def test_a_run_without_its_inputs_written_down_is_refused(copied: Any) -> None:
    folder = copied("sft")
    (folder / "inputs.json").unlink()
    with pytest.raises(
        ValueError,
        match=r"has no inputs.json: the version of Ascent that made it recorded no inputs",
    ):
        resume_run(folder, say=quiet)


def test_damage_is_named(copied: Any) -> None:
    folder = copied("sft")
    for name in ("environment.json", "inputs.json"):
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(whole[:-5])
        with pytest.raises(ValueError, match=rf"{folder / name} is damaged: it is not JSON"):
            resume_run(folder, say=quiet)
        (folder / name).write_bytes(whole)
