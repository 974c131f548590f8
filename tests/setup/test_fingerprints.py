"""What a run depends on, and what of it can be compared: inputs that are neither a file nor a folder, and the rest."""

from __future__ import annotations

import importlib.metadata
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import pytest
from huggingface_hub import constants

from ascent.checkpoints.manifest import CheckpointError
from ascent.checkpoints.save import save
from ascent.config.load import nest_keys
from ascent.config.validate import validate
from ascent.models.load import load
from ascent.models.lora import attach
from ascent.models.tiny import create
from ascent.plan.resolve import Plan, resolve
from ascent.setup import data
from ascent.setup.fingerprints import (
    FingerprintReader,
    HashProgress,
    Input,
    InputName,
    difference,
    find_inputs,
    unchecked,
)
from ascent.tasks import TASKS
from tests.setup.world import SMALL, other


def plan(algorithm: str = "grpo", **more: Any) -> Plan:
    base = {"algorithm": algorithm, "model.policy": "tiny:llama", "data.train": "sort_digits:4"}
    sampled = {"rewards": [{"use": "verifier"}]} if algorithm in ("grpo", "ppo") else {}
    return resolve(
        validate(
            nest_keys({**base, **sampled, **{key.replace("__", "."): v for key, v in more.items()}})
        )
    )


def found(made: Plan, folder: Path, before: dict[str, Input] | None = None) -> dict[str, Input]:
    reading = FingerprintReader(folder, made.config.seed, before)
    return {each.key: reading(each) for each in find_inputs(made)}


def test_a_tiny_model_and_a_task_are_known_by_what_was_made(tmp_path: Path) -> None:
    first = found(plan(), tmp_path)
    assert set(first) == {"model.policy", "data.train"}
    assert set(first["data.train"].content) == {"records"}
    assert "model.safetensors" in first["model.policy"].content
    assert found(plan(), tmp_path) == first
    other(tmp_path / "initial/llama/model.safetensors")
    assert "model.policy tiny:llama has another content (model.safetensors " in difference(
        first["model.policy"], found(plan(), tmp_path)["model.policy"]
    )


def test_a_task_whose_generator_changed_is_another_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = found(plan(), tmp_path)["data.train"]
    task = TASKS["sort_digits"]
    harder = replace(task, draw=lambda noise: replace(task.draw(noise), question="sort 9 8 ="))
    monkeypatch.setitem(TASKS, "sort_digits", harder)
    data._made.cache_clear()
    try:
        now = found(plan(), tmp_path)["data.train"]
    finally:
        data._made.cache_clear()
    assert difference(first, now).startswith(
        "data.train sort_digits:4 has another content (records "
    )


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub that cannot be reached, and a cache with one model in two revisions, of which the second is the newest."""
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    kept = tmp_path / "cache" / "models--owner--name"
    for mark in ("a", "b"):
        create(kept / "snapshots" / (mark * 40), **SMALL)
    (kept / "refs").mkdir()
    (kept / "refs/main").write_text("a" * 40)
    return kept


def test_a_model_of_the_hub_is_held_to_its_revision(cached: Path, tmp_path: Path) -> None:
    made = plan(model__policy="owner/name")
    first = found(made, tmp_path)["model.policy"]
    assert first.content == {"revision": "a" * 40} and first.at == str(
        cached / "snapshots" / ("a" * 40)
    )
    (cached / "refs/main").write_text("b" * 40)
    held = found(made, tmp_path, {"model.policy": first})["model.policy"]
    assert held == first and difference(first, held) == ""
    (cached / "snapshots" / ("a" * 40)).rename(cached / "snapshots" / ("c" * 40))
    gone = found(made, tmp_path, {"model.policy": first})["model.policy"]
    assert difference(first, gone).startswith(
        f"model.policy owner/name has another content (revision {'a' * 12} -> "
    )


def test_a_dataset_of_the_hub_is_known_by_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def saved(text: str) -> Any:
        datasets.Dataset.from_list([{"prompt": text, "answer": "2"}]).save_to_disk(
            str(tmp_path / text)
        )
        return datasets.load_from_disk(str(tmp_path / text))

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    versions = {text: saved(text) for text in ("one", "two")}
    contents = []
    for text in ("one", "one", "two"):
        monkeypatch.setattr(datasets, "load_dataset", lambda *_, text=text, **__: versions[text])
        contents.append(found(plan(data__train="owner/data@test"), tmp_path)["data.train"].content)
    assert contents[0] == contents[1] != contents[2]


def test_a_folder_of_data_is_every_file_of_its_split(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for name in ("train-1.jsonl", "train-2.jsonl", "test.jsonl"):
        (folder / name).write_text('{"prompt": "1+1=", "answer": "2"}\n')
    made = plan(data__train=str(folder))
    first = found(made, tmp_path)["data.train"]
    assert set(first.content) == {"train-1.jsonl", "train-2.jsonl"}
    (folder / "test.jsonl").write_text("")
    assert difference(first, found(made, tmp_path)["data.train"]) == ""
    (folder / "train-3.jsonl").write_text('{"prompt": "1+2=", "answer": "3"}\n')
    words = difference(first, found(made, tmp_path)["data.train"])
    assert re.search(r"\(train-3.jsonl \(none\) -> [0-9a-f]{12}\)", words)


class Entry:
    def __init__(self, version: str) -> None:
        self.name, self.dist = (
            "theirs",
            type("Dist", (), {"name": "their-rewards", "version": version}),
        )


def test_what_another_package_brings_is_known_by_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = []
    for version in ("1.0", "1.1"):
        monkeypatch.setattr(importlib.metadata, "entry_points", lambda group, v=version: [Entry(v)])
        versions.append(found(plan(rewards=[{"use": "theirs"}]), tmp_path)["rewards[0].use"])
    assert versions[0].content == {"their-rewards": "1.0"}
    words = difference(*versions)
    assert words.startswith(
        "rewards[0].use reward theirs has another content (their-rewards 1.0 -> 1.1)"
    )


def test_a_server_cannot_be_checked_and_a_token_is_nobodys_business(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("swordfish")
    reward = {"use": "remote", "url": "http://localhost:9", "token_file": str(tmp_path / "token")}
    inputs = found(plan(rewards=[reward]), tmp_path)
    assert set(inputs) == {"model.policy", "data.train", "rewards[0].url"}
    assert unchecked(list(inputs.values())) == [
        "rewards[0].url http://localhost:9 cannot be checked: what it says may be another today"
    ]


def test_a_process_reward_model_is_an_input_by_its_option(tmp_path: Path) -> None:
    folder = create(tmp_path / "prm", **SMALL)
    made = plan(rewards=[{"use": "process_reward_model", "model": str(folder)}])
    first = found(made, tmp_path)
    assert "model.safetensors" in first["rewards[0].model"].content


def test_of_an_adapter_the_base_is_read_too(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    base = create(tmp_path / "base")
    attach(load(base), rank=2).save(tmp_path / "adapter")
    reader = FingerprintReader(tmp_path, 0)
    before = reader(InputName("model.policy", str(tmp_path / "adapter"), "model"))
    assert {"adapter_model.safetensors", "base/model.safetensors"} <= before.content.keys()
    other(base / "model.safetensors")
    after = FingerprintReader(tmp_path, 0)(
        InputName("model.policy", str(tmp_path / "adapter"), "model")
    )
    assert "has another content (base/model.safetensors " in difference(before, after)


def test_a_run_whose_checkpoint_is_damaged_is_no_model_to_start_from(tmp_path: Path) -> None:
    made = load(create(tmp_path / "made"))
    checkpoint = save(tmp_path / "run", 3, {}, {"model": made.save}).folder
    asked = InputName("model.policy", str(checkpoint / "model"), "model")
    assert FingerprintReader(tmp_path, 0)(asked).content
    (checkpoint / "model/notes.txt").write_text(
        "of one's own"
    )  # neither this nor another template are weights
    other(checkpoint / "model/config.json")
    assert FingerprintReader(tmp_path, 0)(asked).content
    weights = checkpoint / "model/model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(
        CheckpointError, match=r"model\.safetensors does not match its sha256 .* another checkpoint"
    ):
        FingerprintReader(tmp_path, 0)(asked)


@pytest.mark.parametrize(
    ("more", "start_only"),
    [
        ({"algorithm": "sft"}, {"model.policy"}),
        ({"algorithm": "sft", "model.lora": 2}, set()),
        ({"algorithm": "dpo"}, set()),
        ({"algorithm": "dpo", "model.reference": "tiny:qwen2"}, {"model.policy"}),
        ({"algorithm": "ppo", "model.critic_from": "tiny:qwen2"}, {"model.critic_from"}),
        ({"algorithm": "a2po"}, set()),
        ({"algorithm": "rlvr"}, {"model.policy"}),
    ],
)
def test_models_that_only_a_start_needs(more: dict[str, Any], start_only: set[str]) -> None:
    base = {"model.policy": "tiny:llama", "data.train": "sort_digits:4"}
    sampled = {} if more["algorithm"] in ("sft", "dpo") else {"rewards": [{"use": "verifier"}]}
    found = find_inputs(resolve(validate(nest_keys({**base, **sampled, **more}))))
    assert {each.key for each in found if each.start_only} == start_only


def test_a_file_is_hashed_once_and_the_speed_is_said_where_it_takes_long(tmp_path: Path) -> None:
    path = tmp_path / "big"
    path.write_bytes(b"x" * 2**20)
    hashing = HashProgress()
    first = hashing({"a": path})
    path.write_bytes(b"y" * 2**20)
    assert hashing({"b": path})["b"] == first["a"]  # of one start there is one content
    assert (hashing.bytes, hashing.words()) == (2**20, [])
    hashing.seconds = 2.0
    assert hashing.words() == ["1 MB of inputs hashed in 2.0 s (1 MB/s)"]


def test_what_cannot_be_read_is_said_by_whoever_uses_it_first(tmp_path: Path) -> None:
    reading = FingerprintReader(tmp_path, 0)
    missing = reading(InputName("data.train", str(tmp_path / "none.jsonl"), "data"))
    assert (missing.content, "no file or folder at" in missing.problem) == ({}, True)
    was = Input("data.train", missing.name, missing.at, {"none.jsonl": "0"})
    assert "cannot be read any more" in difference(was, missing)
    assert difference(None, was).endswith("is new: the run had no such input")
    assert difference(was, None).endswith("is gone from the recipe")


def test_inputs_are_written_as_json(tmp_path: Path) -> None:
    for each in found(plan(), tmp_path).values():
        assert Input(**json.loads(json.dumps(each.record()))) == each


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    yield
    data._made.cache_clear()
