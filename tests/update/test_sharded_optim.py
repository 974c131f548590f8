"""Ranks are another way to split a batch: any number of them gives the same weights, with 1/N of the optimizer each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from ascent.algorithms import TABLE
from ascent.checkpoints.resume import read_state
from ascent.checkpoints.save import save
from ascent.maths.segments import Segments
from ascent.models.load import load
from ascent.models.tiny import FAMILIES, create
from ascent.parallel.distributed import process_group
from ascent.parallel.ranks import SINGLE, Ranks
from ascent.update.fsdp import shard
from ascent.update.learner import LocalLearner
from ascent.update.objective import objective_of
from ascent.update.optim import Adam
from ascent.update.schedule import Schedule
from ascent.update.sharded_optim import ReplicatedAdamW
from tests.parallel.group import run_in_ranks
from tests.update.test_learner import COUPLED
from tests.update.test_learner import ROWS as PLAIN
from tests.update.toy import Toy, batch_of, cut, with_companion

ROWS = (*PLAIN, *COUPLED)
PIECES = [[0, 1], [2], [4], [3], [5]]  # not a multiple of 2 or 4


def trained(
    row: str, ranks: Ranks, dtype: torch.dtype = torch.float64
) -> tuple[dict[str, Tensor], list[Any]]:
    """The weights after two optimizer steps, and what each step and an evaluation reported."""
    model = Toy(dtype=dtype)
    learner = LocalLearner(model, Schedule(1e-2), adam=Adam(weight_decay=0.01), ranks=ranks)
    stats = []
    for step in range(2):
        batches = cut(with_companion(batch_of(step, dtype=dtype), step), PIECES)
        for found in (
            learner.step(batches, objective_of(TABLE[row])),
            learner.evaluate(batches, objective_of(TABLE[row])),
        ):
            stats.append({name: each.value() for name, each in found.items()})
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}, stats


def every_row() -> dict[str, Any]:
    with process_group(timeout=60) as ranks:
        return {row: trained(row, ranks) for row in ROWS}


@pytest.mark.parametrize("count", [2, 4])
def test_rows_are_the_same_on_any_number_of_ranks_in_float64(count: int, tmp_path: Path) -> None:
    (alone,) = run_in_ranks(1, tmp_path / "1", every_row)
    for several in run_in_ranks(count, tmp_path / "several", every_row):
        for row in ROWS:
            weights, stats = alone[row]
            found, others = several[row]
            for name, weight in weights.items():
                torch.testing.assert_close(
                    found[name], weight, rtol=1e-10, atol=1e-12, msg=f"{row} {name}"
                )
            for one, other in zip(stats, others, strict=True):
                assert one.keys() == other.keys(), row
                for name, value in one.items():
                    assert other[name] == pytest.approx(value, rel=1e-9, abs=1e-12, nan_ok=True), (
                        row,
                        name,
                    )


def optimizer_bytes(folder: Path, dtype: str) -> int:
    """Of masters and moments after one step, on this rank."""
    with process_group(timeout=60) as ranks:
        model = load(folder, dtype=dtype)
        learner = LocalLearner(model, Schedule(1e-2), ranks=ranks)
        learner.step([text_batch([7, 5], 0)], objective_of(TABLE["sft"]))
        optimizer = learner.optimizer
        moments = [
            each
            for state in optimizer._torch.state.values()
            for each in state.values()
            if each.ndim
        ]
        masters = [each for name, each in optimizer.masters.items() if optimizer.has_master(name)]
        return sum(each.numel() * each.element_size() for each in (*moments, *masters))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_optimizers_memory_falls_as_one_over_the_ranks(dtype: str, tmp_path: Path) -> None:
    create(tmp_path / "model", seed=0)
    (alone,) = run_in_ranks(1, tmp_path / "1", optimizer_bytes, tmp_path / "model", dtype)
    for count in (2, 4):
        found = run_in_ranks(
            count, tmp_path / str(count), optimizer_bytes, tmp_path / "model", dtype
        )
        assert sum(found) == alone
        assert max(found) <= alone / count + 64


LAYOUTS = ("single", "replicated", "sharded", "gathered once")


def one_rank_learner(layout: str, folder: Path, dtype: str, device: str) -> LocalLearner:
    """A learner of one rank, in the layouts of several."""
    adam = Adam(weight_decay=0.01)
    model, whole = load(folder, dtype=dtype, device=device), None
    if layout in ("sharded", "gathered once"):
        model, whole = load(folder, dtype=dtype, device="cpu"), model
        shard(model, SINGLE, torch.device(device), keeps_weights=layout == "gathered once")
    learner = LocalLearner(
        model, Schedule(1e-2), adam=adam, max_grad_norm=0.05, whole=whole, samples=True
    )
    if layout == "replicated":
        learner.optimizer.close()
        learner.optimizer = ReplicatedAdamW(model.named_parameters(), adam, SINGLE)
    return learner


def text_batch(lengths: list[int], seed: int, vocabulary: int = 64) -> Any:
    segments = Segments.from_lengths(lengths)
    tokens_T = torch.randint(
        3, vocabulary, (segments.total,), generator=torch.Generator().manual_seed(seed)
    )
    positions_T = torch.arange(segments.total) - segments.broadcast(segments.offsets[:-1])
    return {
        "segments": segments,
        "tokens_T": tokens_T,
        "positions_T": positions_T,
        "loss_mask_T": positions_T > 0,
    }


def one_rank(
    folder: Path, dtype: str, device: str
) -> dict[str, tuple[dict[str, Tensor], list[Any]]]:
    """The weights after three optimizer steps of two micro-batches, and what each step reported, by layout."""
    found = {}
    for layout in LAYOUTS:
        learner, stats = one_rank_learner(layout, folder, dtype, device), []
        for step in range(3):
            batches = [text_batch([9, 14], step), text_batch([5], step + 9)]
            metrics = learner.step(batches, objective_of(TABLE["sft"]))
            stats.append({name: each.value() for name, each in metrics.items()})
        found[layout] = (
            {name: weight.cpu().clone() for name, weight in learner.weights().items()},
            stats,
        )
        learner.close()
    return found


def check_one_rank(found: dict[str, tuple[dict[str, Tensor], list[Any]]]) -> None:
    weights, stats = found["single"]
    assert stats[0]["optim/grad_norm"] > 0.05  # clipped, so that the norm's bits count
    for layout in LAYOUTS[1:]:
        others, their_stats = found[layout]
        assert stats == their_stats, layout
        assert [name for name in weights if not torch.equal(weights[name], others[name])] == [], (
            layout
        )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_one_rank_has_the_bits_of_one_process_in_both_layouts(dtype: str, tmp_path: Path) -> None:
    create(tmp_path / "model", seed=0)
    check_one_rank(run_in_ranks(1, tmp_path / "log", one_rank, tmp_path / "model", dtype, "cpu")[0])


def two_ranks(folder: Path, keeps_weights: bool) -> tuple[list[Any], dict[str, Tensor], list[int]]:
    """Log-probs before each of three steps and after them, the weights, and how many layers a step gathered."""
    with process_group(timeout=60) as ranks:
        model = load(folder, device="cpu", gradient_checkpointing=True)
        shard(model, ranks, torch.device("cpu"), keeps_weights=keeps_weights)
        learner = LocalLearner(model, Schedule(1e-2), ranks=ranks, whole=load(folder), samples=True)
        gathers, logprobs = [], []
        for step in range(3):
            batches = [text_batch([9, 14], step + place) for place in (0, 9, 20, 31)]
            logprobs.append(learner.logprobs(batches[0]))
            with torch.profiler.profile(
                activities=[torch.profiler.ProfilerActivity.CPU]
            ) as profile:
                learner.step(batches, objective_of(TABLE["sft"]))
            gathers.append(
                sum(
                    each.count
                    for each in profile.key_averages()
                    if each.key == "fsdp::all_gather_copy_in"
                )
            )
            assert all(
                isinstance(weight, DTensor) for _, weight in model.named_parameters()
            )  # given back
        logprobs.append(learner.logprobs(batches[0]))
        found = {name: weight.clone() for name, weight in learner.weights().items()}
        learner.close()
        return logprobs, found, gathers


def test_weights_that_are_gathered_once_a_step_give_the_same_bits_with_fewer_gathers(
    tmp_path: Path,
) -> None:
    create(tmp_path / "model", seed=0)
    each, once = (
        run_in_ranks(2, tmp_path / str(keeps), two_ranks, tmp_path / "model", keeps)
        for keeps in (0, 1)
    )
    for (logprobs, weights, many), (others, their_weights, few) in zip(each, once, strict=True):
        assert all(torch.equal(one, other) for one, other in zip(logprobs, others, strict=True))
        assert (
            len({tuple(one.tolist()) for one in logprobs}) == 4
        )  # no step saw the weights of the one before
        assert [
            name for name in weights if not torch.equal(weights[name], their_weights[name])
        ] == []
        assert 0 < few[1] == few[2] and 3 * few[2] <= many[2], (few, many)


def divided_modules(folder: Path) -> dict[str, list[str]]:
    """By family of models."""
    found = {}
    for family in FAMILIES:
        model = load(create(folder / family, family=family, seed=0, layers=3), device="cpu")
        shard(model, SINGLE, torch.device("cpu"))
        assert model.root is not None
        found[family] = [
            name for name, each in model.root.named_modules() if isinstance(each, FSDPModule)
        ]
    return found


def test_every_layer_is_divided_by_itself(tmp_path: Path) -> None:
    """Else a device holds the whole model as soon as it needs one weight."""
    (found,) = run_in_ranks(1, tmp_path / "log", divided_modules, tmp_path)
    expected = ["", *(f"module.model.layers.{layer}" for layer in range(3))]
    assert all(names == expected for names in found.values()), found


def saved(folder: Path, steps: int, resume: bool) -> dict[str, Tensor]:
    """Some steps from the start, or from a checkpoint; the checkpoint holds the state and not the weights."""
    with process_group(timeout=60) as ranks:
        model = Toy()
        learner = LocalLearner(model, Schedule(1e-2), ranks=ranks)
        if resume:
            model.load_state_dict(torch.load(folder / "weights.pt"))
            learner.load_state(read_state(folder / "1", lazily=ranks.count > 1)["learner"])
        for step in range(steps):
            learner.step(cut(batch_of(step), PIECES), objective_of(TABLE["sft"]))
        if not resume:
            save(folder, 1, {"learner": learner.state()}, {}, ranks=ranks)
            if ranks.is_first:
                torch.save(model.state_dict(), folder / "weights.pt")
        return {name: weight.detach().clone() for name, weight in model.named_parameters()}


@pytest.mark.parametrize(("writers", "readers"), [(1, 2), (2, 1), (2, 3)])
def test_a_state_does_not_know_how_many_ranks_wrote_it(
    writers: int, readers: int, tmp_path: Path
) -> None:
    root = tmp_path / "checkpoints"
    run_in_ranks(writers, tmp_path / "log", saved, root, 2, False)
    (expected,) = run_in_ranks(1, tmp_path / "log-1", saved, root, 2, True)
    for found in run_in_ranks(readers, tmp_path / "log-2", saved, root, 2, True):
        for name, weight in expected.items():
            torch.testing.assert_close(found[name], weight, rtol=1e-5, atol=1e-7, msg=name)
