"""Ten optimizer steps with the kernels of CUDA, against the same steps on a CPU in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ascent.algorithms import TABLE
from ascent.maths.batch import PackedBatch
from ascent.models import lora
from ascent.models.exact import device_problem
from ascent.models.load import load
from ascent.models.tiny import create
from ascent.update.learner import LocalLearner
from ascent.update.objective import objective_of
from ascent.update.optim import Adam
from ascent.update.schedule import Schedule
from tests.update.test_sharded_optim import text_batch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
STEPS, LEARNING_RATE = 10, 5e-3
STEADY = Adam(eps=1e-3)  # Adam's own amplifies the rounding of tiny gradients


def ten_steps(folder: Path, dtype: str, device: str) -> tuple[list[float], dict[str, Tensor]]:
    learner = LocalLearner(
        load(folder, dtype=dtype, device=device), Schedule(LEARNING_RATE), adam=STEADY
    )
    losses = []
    for step in range(STEPS):
        batches: list[PackedBatch] = [
            text_batch([37, 64, 5, 120], 2 * step),
            text_batch([80, 33], 2 * step + 1),
        ]
        losses.append(learner.step(batches, objective_of(TABLE["sft"]))["loss/total"].value())
    return losses, {
        name: weight.detach().double().cpu() for name, weight in learner.optimizer.masters.items()
    }


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama"])
@pytest.mark.parametrize(
    ("dtype", "loss", "moved"), [("float32", 1e-5, 1e-5), ("bfloat16", 1e-2, 0.1)]
)
def test_losses_and_weights_are_those_of_a_cpu(
    family: str, dtype: str, loss: float, moved: float, tmp_path: Path
) -> None:
    """Weights by the norm of their difference: in float32 of the weights themselves, in bfloat16 of their way."""
    create(tmp_path / "model", family=family, seed=0)
    before: dict[str, Any] = dict(
        load(tmp_path / "model", dtype="float32", device="cpu").named_parameters()
    )
    expected, weights = ten_steps(tmp_path / "model", "float32", "cpu")
    losses, found = ten_steps(tmp_path / "model", dtype, "cuda")
    assert losses == pytest.approx(expected, rel=loss)
    assert expected[-1] < 0.98 * expected[0]
    for name, weight in weights.items():
        size = (
            weight.norm()
            if dtype == "float32"
            else (weight - before[name].detach().double()).norm()
        )
        assert float((found[name] - weight).norm() / size.clamp(min=1e-9)) < moved, name


@pytest.mark.parametrize(("family", "window"), [("qwen2", None), ("llama", None), ("mistral", 300)])
def test_steps_repeat_to_the_bit_in_fast_arithmetic(
    family: str, window: int | None, tmp_path: Path
) -> None:
    """Sequences are longer than a block of keys: flash attention adds several blocks to the gradient of a query."""
    create(
        tmp_path / "model",
        family=family,
        seed=0,
        longest=1024,
        **({"sliding_window": window} if window else {}),
    )
    weights = []
    for _ in range(4):
        learner = LocalLearner(
            load(tmp_path / "model", dtype="bfloat16", device="cuda"), Schedule(LEARNING_RATE)
        )
        for step in range(3):
            batches = [
                text_batch([300, 800, 1000, 37], 2 * step),
                text_batch([640, 500], 2 * step + 1),
            ]
            learner.step(batches, objective_of(TABLE["sft"]))
        weights.append(
            {name: weight.detach().clone() for name, weight in learner.optimizer.masters.items()}
        )
    for other in weights[1:]:
        assert [
            name for name, weight in weights[0].items() if not torch.equal(other[name], weight)
        ] == []


@pytest.mark.parametrize("arithmetic", ["fast", "exact"])
@pytest.mark.parametrize("rank", [None, 4])
def test_recomputed_layers_have_the_gradients_of_kept_ones(
    arithmetic: str, rank: int | None, tmp_path: Path
) -> None:
    """To the bit in exact arithmetic, within rounding in fast."""
    if arithmetic == "exact" and (problem := device_problem(torch.device("cuda"))):
        pytest.skip(problem)
    create(tmp_path / "model", family="qwen2", seed=0)
    found: list[dict[str, Tensor]] = []
    for checkpointing in (False, True):
        options: dict[str, Any] = {
            "arithmetic": arithmetic,
            "gradient_checkpointing": checkpointing,
        }
        model = load(tmp_path / "model", dtype="bfloat16", device="cuda", **options)
        if rank is not None:
            model = lora.attach(model, rank=rank)
            for name, weight in model.named_parameters():
                if "lora_B" in name:  # zero at first, and then lora_A has no gradient
                    torch.nn.init.normal_(
                        weight, std=0.1, generator=torch.Generator("cuda").manual_seed(0)
                    )
        learner = LocalLearner(model, Schedule(LEARNING_RATE), adam=STEADY)
        learner.step([text_batch([37, 64, 5, 120], 0)], objective_of(TABLE["sft"]))
        found.append(
            {name: weight.detach().clone() for name, weight in learner.optimizer.masters.items()}
        )
    for name, weight in found[0].items():
        if arithmetic == "exact":
            assert torch.equal(found[1][name], weight), name
        torch.testing.assert_close(found[1][name], weight, rtol=0.02, atol=2e-4, msg=name)
