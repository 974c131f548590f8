"""The optimizer's state in pinned host memory: the bits of the optimizer on the GPU, in less of its memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from ascent.api.train import train_plan
from ascent.models.host_memory import HostBuffer
from ascent.setup.unrounded import dithered
from ascent.update.offloaded_optim import OffloadedAdamW
from ascent.update.optim import Adam, AdamW
from tests.setup.runs import tiny_plan

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

ADAM = Adam(beta1=0.8, beta2=0.95, weight_decay=0.3)
SIZES = [
    (1023, 2047),
    (2047,),
    (4096, 1024),
    (7,),
    (3000, 1001),
    (1001,),
    (2048, 2048),
]  # 13.5 million weights


def weights(dtype: torch.dtype) -> dict[str, nn.Parameter]:
    rng = torch.Generator("cuda").manual_seed(0)
    drawn = [torch.randn(size, generator=rng, device="cuda").to(dtype) for size in SIZES]
    return {str(index): nn.Parameter(each) for index, each in enumerate(drawn)}


def accumulate(named: dict[str, nn.Parameter], step: int) -> None:
    rng = torch.Generator("cuda").manual_seed(step)
    for _ in range(2):
        for weight in named.values():
            random = torch.randn(weight.shape, generator=rng, device="cuda").to(weight.dtype)
            (weight * random).sum().backward()


def train(optimizer: AdamW, named: dict[str, nn.Parameter], steps: range) -> None:
    for step in steps:
        accumulate(named, step)
        optimizer.step(1e-3, norm=optimizer.norm(), max_norm=100.0)
        optimizer.clear()


def tensors(optimizer: AdamW) -> dict[str, Tensor]:
    return {name: weight.detach().cpu() for name, weight in optimizer.weights.items()} | {
        name: tensor.clone() for name, tensor in optimizer.state().items()
    }


def differing(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> list[str]:
    assert ours.keys() == theirs.keys()
    return [name for name in ours if not torch.equal(ours[name], theirs[name])]


@pytest.fixture(autouse=True)
def _empty() -> Iterator[None]:
    yield
    torch.cuda.empty_cache()


@pytest.mark.parametrize("bucket_size", [3 * 2**16, 2**20, 2**26])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_it_has_the_bits_of_the_optimizer_on_the_gpu(dtype: torch.dtype, bucket_size: int) -> None:
    """After every step, so that a copy that came too late is seen; then after a resume."""
    mine, theirs = weights(dtype), weights(dtype)
    ours, beside = (
        OffloadedAdamW(mine.items(), ADAM, bucket_size=bucket_size),
        AdamW(theirs.items(), ADAM),
    )
    for step in range(4):
        train(ours, mine, range(step, step + 1))
        train(beside, theirs, range(step, step + 1))
        assert differing(tensors(ours), tensors(beside)) == []
    saved = tensors(ours)
    train(ours, mine, range(4, 6))
    expected = tensors(ours)
    accumulate(mine, 9)
    ours.load_state({name: tensor for name, tensor in saved.items() if name not in mine})
    if dtype == torch.float32:  # weights that are their own masters are restored with the model
        for name, weight in mine.items():
            weight.data.copy_(saved[name])
    assert differing(tensors(ours), saved) == []
    train(ours, mine, range(4, 6))
    assert differing(tensors(ours), expected) == []


def test_nothing_is_read_or_written_too_early_while_the_gpu_is_busy() -> None:
    """Steps behind a queue of slow products, without a pause between step, skipped step and step."""
    mine, theirs = weights(torch.bfloat16), weights(torch.bfloat16)
    ours, beside = (
        OffloadedAdamW(mine.items(), ADAM, bucket_size=2**20),
        AdamW(theirs.items(), ADAM),
    )
    matrix = torch.randn(4096, 4096, device="cuda")
    for optimizer, named in ((ours, mine), (beside, theirs)):
        for step in range(6):
            accumulate(named, step)
            for _ in range(20):
                matrix = (matrix @ matrix).clamp(-1, 1)
            if step == 2:
                next(iter(optimizer.gradients().values())).view(-1)[0] = math.inf
                assert optimizer.non_finite_gradients() == ["0"]
            else:
                optimizer.step(1e-3, norm=optimizer.norm(), max_norm=100.0)
            optimizer.clear()
    assert differing(tensors(ours), tensors(beside)) == []


def test_twelve_bytes_a_weight_are_on_the_host() -> None:
    def used(make: type[AdamW], **options: int) -> int:
        named = weights(torch.bfloat16)
        before = torch.cuda.memory_allocated()
        optimizer = make(named.items(), ADAM, **options)
        train(optimizer, named, range(2))
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated() - before

    count = sum(math.prod(size) for size in SIZES)
    staging = 3 * 3 * 4 * 2**18
    assert used(AdamW) == pytest.approx(12 * count, rel=0.02)  # the allocator rounds up
    assert (
        staging <= used(OffloadedAdamW, bucket_size=2**18) <= staging + 2**21
    )  # the allocator rounds to 2 MB


def test_host_memory_is_pinned_without_rounding_and_unpinned_at_the_end() -> None:
    buffer = HostBuffer(3 * 2**20 + 5, torch.device("cuda"))
    values, part = buffer.values, buffer.values[7:]
    assert values.is_pinned() and part.is_pinned()
    assert values.untyped_storage().nbytes() == 4 * (3 * 2**20 + 5)
    del buffer
    assert not values.is_pinned()
    assert float(part.sum()) == 0.0


def test_a_run_has_the_same_weights(tmp_path: Path) -> None:
    for name, offload in (("beside", False), ("offloaded", True)):
        changes = {
            "model": {"dtype": "bfloat16"},
            "update": {"optimizer_offload": offload},
            "run": {"steps": 2},
        }
        train_plan(tiny_plan(**changes), tmp_path / name, say=lambda line: None)
    files = [
        tmp_path / name / "checkpoints/2/optimizer.safetensors" for name in ("beside", "offloaded")
    ]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_dithered_masters_are_the_same_on_every_device() -> None:
    for name, weight in weights(torch.bfloat16).items():
        found = dithered(name, weight.detach())
        assert found.is_cuda and torch.equal(found.cpu(), dithered(name, weight.detach().cpu()))
        assert torch.equal(found.bfloat16(), weight)
