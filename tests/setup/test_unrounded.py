"""Masters start at the float32 values that bfloat16 weights are roundings of, where files have them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import ascent
from ascent.checkpoints.resume import read_state
from ascent.models.load import load
from ascent.models.tiny import create
from ascent.setup.unrounded import unrounded_weights
from ascent.update.offloaded_optim import OffloadedAdamW
from ascent.update.optim import AdamW

RATE = 1e-9  # a step of it moves no master by more than a float32 rounding
SFT = {
    "algorithm": "sft", "model.dtype": "bfloat16", "data.train": "sort_digits:16", "data.batch_size": 4, "run.steps": 1,
    "update.learning_rate": RATE,
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return create(tmp_path_factory.mktemp("model"), family="llama")


def train(folder: Path, model: Path, keys: dict[str, Any] | None = None, **options: Any) -> Path:
    recipe = folder.with_suffix(".yaml")  # other processes read it
    recipe.write_text(f"algorithm: sft\nmodel:\n  policy: {model}\ndata:\n  train: sort_digits:16\n")
    ascent.train(recipe, {**SFT, **(keys or {})}, run=folder, progress=False, **options)
    return folder


def masters(run: Path, learner: str = "policy") -> dict[str, torch.Tensor]:
    (checkpoint,) = (run / "checkpoints").iterdir()
    state = read_state(checkpoint)["learners"][learner]["optimizer"]
    return {name.removeprefix("master."): each for name, each in state.items() if name.startswith("master.")}


def assert_close(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    for name, each in found.items():
        torch.testing.assert_close(each, wanted[name], rtol=0, atol=2e-8, msg=name)


@pytest.mark.parametrize("optimizer", [AdamW, OffloadedAdamW])
def test_only_values_that_round_to_their_weight_are_taken(optimizer: type[AdamW]) -> None:
    values = torch.tensor([0.1, -0.2, 0.3])
    weights = {name: values.bfloat16().requires_grad_() for name in "abc"}
    found = optimizer(weights.items())
    found.start_from({"a": lambda: values, "b": lambda: values * 1.1, "c": lambda: values[:2], "d": lambda: values})
    assert torch.equal(found.masters["a"], values)
    rounded = values.bfloat16()
    assert torch.equal(found.masters["b"], rounded.float()) and torch.equal(found.masters["c"], rounded.float())
    assert all(torch.equal(weight, rounded) for weight in weights.values())
    whole = torch.tensor([0.1]).requires_grad_()
    full = AdamW([("a", whole)])
    full.start_from({"a": lambda: torch.tensor([5.0])})
    assert whole.item() == pytest.approx(0.1)


def test_offloaded_masters_are_those_that_are_stepped() -> None:
    """The first buckets are on their way to the GPU as soon as there is an optimizer."""
    values = torch.linspace(-1, 1, 300)
    ends = []
    for optimizer in (AdamW, OffloadedAdamW):
        weight = values.bfloat16().requires_grad_()
        found = optimizer([("a", weight)])
        found.start_from({"a": lambda: values})
        (weight.float() * values).sum().backward()
        found.step(1e-3, norm=torch.tensor(1.0), max_norm=1.0)
        ends.append((weight.detach().clone(), found.state()["master.a"].clone()))
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


def test_a_run_starts_from_the_float32_values_of_its_model(folder: Path, tmp_path: Path) -> None:
    found = masters(train(tmp_path / "run", folder))
    files = {f"module.{name}": each for name, each in load_file(folder / "model.safetensors").items()}
    assert_close(found, files)
    rounded = [torch.equal(each, each.bfloat16().float()) for each in found.values() if each.ndim > 1]
    assert rounded and not any(rounded)


def test_a_run_starts_from_the_masters_of_the_run_before(folder: Path, tmp_path: Path) -> None:
    first = train(tmp_path / "first", folder, {"update.learning_rate": 1e-3})
    ends = masters(first)
    stored = load_file(first / "checkpoints/1/model/model.safetensors")
    assert all(each.dtype == torch.bfloat16 for each in stored.values())
    assert_close(masters(train(tmp_path / "second", first)), ends)
    exported = ascent.export(first, tmp_path / "plain")  # in bfloat16: there is nothing more to know
    rounded = {name: each.bfloat16().float() for name, each in ends.items()}
    assert_close(masters(train(tmp_path / "third", exported)), rounded)
    keys = {
        **{name: value for name, value in SFT.items() if name != "data.batch_size"}, "algorithm": "ppo",
        "model.policy": str(first), "model.critic": "separate", "rewards": [{"use": "verifier"}],
        "rollouts.prompts_per_step": 2, "rollouts.group_size": 1, "rollouts.max_new_tokens": 4, "update.epochs": 1,
    }  # fmt: skip
    ascent.train(keys, run=tmp_path / "ppo", progress=False)
    run = tmp_path / "ppo"
    assert_close(masters(run), ends)
    trunk = {name: each for name, each in masters(run, "critic").items() if name.startswith("module.model.")}
    assert len(trunk) > 5
    assert_close(trunk, ends)


@pytest.mark.parametrize("layout", ["replicated", "sharded"])
def test_several_ranks_start_from_the_same_values(folder: Path, tmp_path: Path, layout: Any) -> None:
    run = train(tmp_path / "two", folder, processes=2, layout=layout)
    files = {f"module.{name}": each for name, each in load_file(folder / "model.safetensors").items()}
    assert_close(masters(run), files)
    assert_close(masters(train(tmp_path / "next", run)), masters(run))


def test_what_has_no_such_values(folder: Path, tmp_path: Path) -> None:
    model = load(folder, dtype="bfloat16")
    assert unrounded_weights(model)
    for origin in ("nobody/nothing", ""):
        assert unrounded_weights(replace(model, origin=origin)) == {}
    assert unrounded_weights(load(folder)) == {}  # in float32 a weight is its own master
    low = tmp_path / "low"
    load(folder, dtype="bfloat16").save(low)
    assert unrounded_weights(load(low, dtype="bfloat16")) == {}
    adapter = train(tmp_path / "lora", folder, {"model.lora": 4})
    assert unrounded_weights(load(adapter, dtype="bfloat16")) == {}
    moved = {name: each * 2 for name, each in load_file(folder / "model.safetensors").items()}
    other = tmp_path / "other" / "model"
    load(folder, dtype="bfloat16").save(other)
    save_file({f"learners/policy/optimizer/master.module.{name}": each for name, each in moved.items()},
              other.parent / "optimizer.safetensors")  # fmt: skip
    files = load_file(other / "model.safetensors")
    found = masters(train(tmp_path / "run", other))  # another model's masters beside it
    assert_close(found, {f"module.{name}": each.float() for name, each in files.items()})
