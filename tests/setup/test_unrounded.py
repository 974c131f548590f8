"""Masters start at the float32 values that bfloat16 weights are roundings of, where files have them; else dithered."""

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
from ascent.models.model import LanguageModel
from ascent.models.tiny import create
from ascent.runs.folder import read_run
from ascent.setup.unrounded import describe_masters, dithered, unrounded_weights
from ascent.update.offloaded_optim import OffloadedAdamW
from ascent.update.optim import AdamW, Unrounded

RATE = 1e-9  # a step of it moves no master by more than a float32 rounding
SFT = {
    "algorithm": "sft",
    "model.dtype": "bfloat16",
    "data.train": "sort_digits:16",
    "data.batch_size": 4,
    "run.steps": 1,
    "update.learning_rate": RATE,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return create(tmp_path_factory.mktemp("model"), family="llama")


def train(folder: Path, model: Path, keys: dict[str, Any] | None = None, **options: Any) -> Path:
    recipe = folder.with_suffix(".yaml")  # other processes read it
    recipe.write_text(
        f"algorithm: sft\nmodel:\n  policy: {model}\ndata:\n  train: sort_digits:16\n"
    )
    ascent.train(recipe, {**SFT, **(keys or {})}, run=folder, progress=False, **options)
    return folder


def masters(run: Path, learner: str = "policy") -> dict[str, torch.Tensor]:
    (checkpoint,) = (run / "checkpoints").iterdir()
    state = read_state(checkpoint)["learners"][learner]["optimizer"]
    return {
        name.removeprefix("master."): each
        for name, each in state.items()
        if name.startswith("master.")
    }


def assert_close(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    for name, each in found.items():
        torch.testing.assert_close(each, wanted[name], rtol=0, atol=2e-8, msg=name)


@pytest.mark.parametrize("optimizer", [AdamW, OffloadedAdamW])
def test_only_values_that_round_to_their_weight_are_taken(optimizer: type[AdamW]) -> None:
    values = torch.tensor([0.1, -0.2, 0.3])
    weights = {name: values.bfloat16().requires_grad_() for name in "abce"}
    found = optimizer(weights.items())
    found.start_from(
        {
            "a": [lambda: values],
            "b": [lambda: values * 1.1],
            "c": [lambda: values[:2]],
            "d": [lambda: values],
            "e": [lambda: values * 1.1, lambda: values],
        }
    )
    assert torch.equal(found.masters["a"], values) and torch.equal(found.masters["e"], values)
    rounded = values.bfloat16()
    assert torch.equal(found.masters["b"], rounded.float()) and torch.equal(
        found.masters["c"], rounded.float()
    )
    assert all(torch.equal(weight, rounded) for weight in weights.values())
    whole = torch.tensor([0.1]).requires_grad_()
    full = AdamW([("a", whole)])
    full.start_from({"a": [lambda: torch.tensor([5.0])]})
    assert whole.item() == pytest.approx(0.1)


def test_offloaded_masters_are_those_that_are_stepped() -> None:
    """The first buckets are on their way to the GPU as soon as there is an optimizer."""
    values = torch.linspace(-1, 1, 300)
    ends = []
    for optimizer in (AdamW, OffloadedAdamW):
        weight = values.bfloat16().requires_grad_()
        found = optimizer([("a", weight)])
        found.start_from({"a": [lambda: values]})
        (weight.float() * values).sum().backward()
        found.step(1e-3, norm=torch.tensor(1.0), max_norm=1.0)
        ends.append((weight.detach().clone(), found.state()["master.a"].clone()))
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


def test_a_run_starts_from_the_float32_values_of_its_model(folder: Path, tmp_path: Path) -> None:
    found = masters(train(tmp_path / "run", folder))
    files = {
        f"module.{name}": each for name, each in load_file(folder / "model.safetensors").items()
    }
    assert_close(found, files)
    rounded = [
        torch.equal(each, each.bfloat16().float()) for each in found.values() if each.ndim > 1
    ]
    assert rounded and not any(rounded)


def test_a_run_starts_from_the_masters_of_the_run_before(folder: Path, tmp_path: Path) -> None:
    first = train(tmp_path / "first", folder, {"update.learning_rate": 1e-3})
    ends = masters(first)
    stored = load_file(first / "checkpoints/1/model/model.safetensors")
    assert all(each.dtype == torch.bfloat16 for each in stored.values())
    assert_close(masters(train(tmp_path / "second", first)), ends)
    exported = ascent.export(
        first, tmp_path / "plain"
    )  # in bfloat16: there is nothing more to know
    spread = {name: dithered(name, each.bfloat16()) for name, each in ends.items()}
    assert_close(masters(train(tmp_path / "third", exported)), spread)
    keys = {
        **{name: value for name, value in SFT.items() if name != "data.batch_size"},
        "algorithm": "ppo",
        "model.policy": str(first),
        "model.critic": "separate",
        "rewards": [{"use": "verifier"}],
        "rollouts.prompts_per_step": 2,
        "rollouts.group_size": 1,
        "rollouts.max_new_tokens": 4,
        "update.epochs": 1,
    }
    ascent.train(keys, run=tmp_path / "ppo", progress=False)
    run = tmp_path / "ppo"
    assert_close(masters(run), ends)
    trunk = {
        name: each
        for name, each in masters(run, "critic").items()
        if name.startswith("module.model.")
    }
    assert len(trunk) > 5
    assert_close(trunk, ends)


@pytest.mark.parametrize("layout", ["replicated", "sharded"])
def test_several_ranks_start_from_the_same_values(
    folder: Path, tmp_path: Path, layout: Any
) -> None:
    run = train(tmp_path / "two", folder, processes=2, layout=layout)
    files = {
        f"module.{name}": each for name, each in load_file(folder / "model.safetensors").items()
    }
    assert_close(masters(run), files)
    assert_close(masters(train(tmp_path / "next", run)), masters(run))
    load(folder, dtype="bfloat16").save(tmp_path / "low")
    alone = masters(train(tmp_path / "alone", tmp_path / "low"))
    assert_close(
        masters(train(tmp_path / "low_two", tmp_path / "low", processes=2, layout=layout)), alone
    )


def test_what_has_no_such_values_is_dithered(folder: Path, tmp_path: Path) -> None:
    model = load(folder, dtype="bfloat16")
    assert unrounded_weights(load(folder)) == {}  # in float32 a weight is its own master
    for origin in ("nobody/nothing", ""):
        assert_dithered(unrounded_weights(replace(model, origin=origin)), model)
    load(folder, dtype="bfloat16").save(tmp_path / "low")
    low = load(tmp_path / "low", dtype="bfloat16")
    assert_dithered(unrounded_weights(low), low)
    count = len(dict(low.named_parameters()))
    assert describe_masters(low) == (
        f"float32 masters of {count} bfloat16 weights are dithered (docs/models.md)",
    )
    assert describe_masters(model) == describe_masters(load(folder)) == ()
    moved = {name: each * 2 for name, each in load_file(folder / "model.safetensors").items()}
    other = tmp_path / "other" / "model"
    load(folder, dtype="bfloat16").save(other)
    save_file(
        {f"learners/policy/optimizer/master.module.{name}": each for name, each in moved.items()},
        other.parent / "optimizer.safetensors",
    )
    found = masters(train(tmp_path / "run", other))  # another model's masters beside it
    assert_close(found, {name: dithered(name, each) for name, each in low.named_parameters()})
    assert any(not torch.equal(each, each.bfloat16().float()) for each in found.values())


def assert_dithered(found: Unrounded, model: LanguageModel) -> None:
    weights = dict(model.named_parameters())
    assert found.keys() == weights.keys()
    for name, (read,) in found.items():
        assert torch.equal(read(), dithered(name, weights[name])), name


def test_every_number_is_what_its_dithered_value_rounds_to() -> None:
    """All 65,536 patterns of bits, NaNs aside."""
    every = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.bfloat16)
    every = every[~every.isnan()]
    values = dithered("a", every)
    assert torch.equal(values.bfloat16().view(torch.int16), every.view(torch.int16))
    kept = values == every.float()
    fixed = (every == 0) | every.isinf()
    assert (
        bool(kept[fixed].all()) and int(kept[~fixed].sum()) < 8
    )  # of 65,280 about one hash gives 0


def test_dithered_values_are_spread_evenly_and_differ_by_name() -> None:
    weight = torch.full((2**17,), 1.5).bfloat16()  # its neighbors are 2^-7 away
    places = (dithered("a", weight) - 1.5) * 2**7
    counts = torch.histc(places, 16, -0.5, 0.5)
    assert torch.all((counts - 2**13).abs() < 5 * 2**6.5)  # five standard deviations
    other = (dithered("b", weight) - 1.5) * 2**7
    assert abs(float(torch.corrcoef(torch.stack([places, other]))[0, 1])) < 0.015
    halves = places.view(2, -1)
    assert abs(float(torch.corrcoef(halves)[0, 1])) < 0.02


def test_long_weights_are_dithered_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(7, 11, generator=torch.Generator().manual_seed(0)).bfloat16()
    whole = dithered("a", weight)
    monkeypatch.setattr("ascent.setup.unrounded.CHUNK", 10)
    assert torch.equal(dithered("a", weight), whole) and whole.shape == weight.shape


def test_from_bfloat16_files_the_first_steps_do_what_they_do_in_float32(
    folder: Path, tmp_path: Path
) -> None:
    """In five steps of 1e-5 loss falls as far as in float32; with masters that start at the weights, by less than half
    of that. A file in float32 with rounded values is such a start."""
    keys = {"data.batch_size": 16, "data.shuffle": False}
    warm = {"model.dtype": "float32", "update.learning_rate": 1e-3, "run.steps": 30}
    load(train(tmp_path / "warm", folder, {**keys, **warm}), dtype="bfloat16").save(
        tmp_path / "low"
    )
    load(tmp_path / "low").save(tmp_path / "middle")

    def fall(name: str, model: str, dtype: str) -> float:
        own = {**keys, "model.dtype": dtype, "update.learning_rate": 1e-5, "run.steps": 5}
        metrics = read_run(train(tmp_path / name, tmp_path / model, own)).metrics
        losses = [row["loss/total"] for row in metrics if "loss/total" in row]
        return float(losses[0] - losses[-1])

    exact = fall("exact", "low", "float32")
    assert exact > 0.002
    assert fall("dithered", "low", "bfloat16") == pytest.approx(exact, rel=0.25)
    assert fall("rounded", "middle", "bfloat16") < 0.5 * exact
