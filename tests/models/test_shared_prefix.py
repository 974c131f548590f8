"""Shared prefixes are computed once: the same numbers and gradients as when every sequence runs alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ascent.maths.segments import Segments
from ascent.models import shared_prefix
from ascent.models.load import load
from ascent.models.tiny import FAMILIES, create

PROMPT, OTHER = list(range(10, 22)), list(range(30, 39))  # 12 and 9 tokens


def packed(*sequences: list[int]) -> tuple[Tensor, Segments]:
    tokens_T = torch.tensor([token for each in sequences for token in each])
    return tokens_T, Segments.from_lengths([len(each) for each in sequences])


def test_what_is_run_and_where_it_lies() -> None:
    found = shared_prefix.find_shared_prefixes(
        *packed([*PROMPT, 1, 2], [*PROMPT, 3], [*PROMPT, 1, 4], OTHER)
    )
    assert found is not None
    assert found.shared_lens == [
        0,
        12,
        12,
        0,
    ]  # the third has 13 in common with the first; a run shares one length
    assert found.computed_U.tolist() == [*range(14), 26, 39, 40, *range(41, 50)]
    states_T = found.source_T.tolist()
    assert states_T[:14] == list(range(14))
    assert states_T[14:27] == [*range(12), 14]
    assert states_T[27:41] == [*range(12), 15, 16]
    assert states_T[41:] == list(range(17, 26))


@pytest.mark.parametrize(
    ("sequences", "shared_lens"),
    [
        ([[*PROMPT, 1], [*PROMPT, 1]], [0, 13]),  # the same to the end: the second runs nothing
        ([[*PROMPT, 1], PROMPT], [0, 12]),
        ([[*PROMPT, 1], [], [*PROMPT, 2]], None),  # not neighbours
        ([[5] * 7 + [1], [5] * 7 + [2]], None),  # fewer than 8
        (
            [[*PROMPT, 1], [*PROMPT, 2], *([n] * 40 for n in range(50, 54))],
            None,
        ),  # 12 of 186 tokens
        # two groups that begin with the same 8 tokens: each shares its own prompt, not those 8
        (
            [[*PROMPT[:8], *[n] * 20, last] for n in (1, 4) for last in (2, 3)],
            [0, 28, 0, 28],
        ),
    ],
)
def test_runs(sequences: list[list[int]], shared_lens: list[int] | None) -> None:
    found = shared_prefix.find_shared_prefixes(*packed(*sequences))
    assert (None if found is None else found.shared_lens) == shared_lens


def test_rows_that_are_taken_twice_get_the_sum_of_their_gradients() -> None:
    x_U = torch.randn(4, 2, 3, dtype=torch.float64, requires_grad=True)
    source_T = torch.tensor([2, 0, 2, 2, 3])
    index = shared_prefix.gather_index(source_T, 4)
    assert torch.autograd.gradcheck(lambda x: shared_prefix.gather(x, index), (x_U,))
    weights = torch.randn(5, 2, 3, dtype=torch.float64)
    (found,) = torch.autograd.grad((shared_prefix.gather(x_U, index) * weights).sum(), x_U)
    (expected,) = torch.autograd.grad((x_U.index_select(0, source_T) * weights).sum(), x_U)
    torch.testing.assert_close(found, expected)
    assert found[1].eq(0).all()
    halves = x_U.detach().bfloat16().requires_grad_()
    (found,) = torch.autograd.grad(shared_prefix.gather(halves, index).sum(), halves)
    assert found.dtype == torch.bfloat16 and found[2].eq(3).all()
    assert shared_prefix.gather_index(torch.tensor([1, 0, 2]), 3).counts_U is None


def group() -> dict[str, Any]:
    """Two groups and a lone sequence, ragged, one of them the same to the end as another."""
    endings = [[1, 2, 3], [1, 2, 4, 5, 6], [7], [1, 2, 3]]
    tokens_T, segments = packed(
        *([*PROMPT, *end] for end in endings), *([*OTHER, *end] for end in endings), [40, 41]
    )
    positions_T = torch.arange(segments.total) - segments.broadcast(segments.offsets[:-1])
    loss_mask_T = positions_T >= 9
    return {
        "tokens_T": tokens_T,
        "positions_T": positions_T,
        "segments": segments,
        "loss_mask_T": loss_mask_T,
    }


def outputs(model: Any, batch: dict[str, Any]) -> dict[str, Any]:
    found = model.outputs(batch, frozenset({"logprobs_T", "entropy_T"}))
    weights_T = torch.linspace(-1, 1, batch["segments"].total).to(found["logprobs_T"])
    parameters = dict(model.named_parameters())
    loss = (found["logprobs_T"] * weights_T + 0.1 * found["entropy_T"]).sum()
    gradients = torch.autograd.grad(loss, list(parameters.values()))
    return {
        **{name: each.detach() for name, each in found.items()},
        **dict(zip(parameters, gradients, strict=True)),
    }


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("gradient_checkpointing", [False, True])
def test_the_same_numbers_and_gradients_as_without(
    tmp_path: Path, family: str, gradient_checkpointing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Families include grouped heads, sliding windows, capped scores, sinks and experts. In float64, except that norms
    and routers stay float32."""
    model = load(
        create(tmp_path / family, family=family, seed=0),
        gradient_checkpointing=gradient_checkpointing,
    ).train()
    model.module.double()
    if model.module.config._experts_implementation != "eager":
        model.module.set_experts_implementation("eager")  # the grouped product takes no float64
    batch = group()
    found = shared_prefix.find_shared_prefixes(batch["tokens_T"], batch["segments"])
    assert found is not None and found.computed_U.numel() < 0.55 * batch["segments"].total
    together = outputs(model, batch)
    monkeypatch.setattr(shared_prefix, "MIN_SAVED_FRAC", 2.0)
    assert shared_prefix.find_shared_prefixes(batch["tokens_T"], batch["segments"]) is None
    apart = outputs(model, batch)
    for name, expected in apart.items():
        assert float((together[name] - expected).abs().max()) <= 1e-6 * float(
            expected.abs().max()
        ), name


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the flash kernel needs CUDA")
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_on_cuda_the_same_within_its_precision(
    tmp_path: Path, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """bfloat16 runs the flash kernel with more keys than queries, float32 SDPA; twice the same bits."""
    folder = create(tmp_path / "tiny", family="qwen2", seed=0)
    model = load(folder, dtype=dtype, device="cuda").train()
    batch = {
        name: each.cuda() if isinstance(each, Tensor) else each for name, each in group().items()
    }
    segments = batch["segments"]
    batch["segments"] = Segments(segments.lengths_B.cuda(), segments.ids_T.cuda())
    together, again = outputs(model, batch), outputs(model, batch)
    assert all(torch.equal(together[name], again[name]) for name in together)
    monkeypatch.setattr(shared_prefix, "MIN_SAVED_FRAC", 2.0)
    near = 0.03 if dtype == "bfloat16" else 1e-4
    for name, expected in outputs(model, batch).items():
        assert float((together[name] - expected).abs().max()) <= near * float(
            expected.abs().max()
        ), name
