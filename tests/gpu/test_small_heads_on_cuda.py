"""Heads below 16, such as those of `ascent quickstart`: Triton's products and torch's flash kernel have least sizes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ascent.models.exact import device_problem
from ascent.models.load import load
from ascent.models.model import LanguageModel
from ascent.models.tiny import create
from tests.gpu.test_exact_on_cuda import batch_of, recorded, requests, sample, trained

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
needs_exact = pytest.mark.skipif(
    torch.cuda.is_available() and bool(device_problem(torch.device("cuda"))),
    reason="needs an H100 or H200",
)


def make_model(folder: Path, size: int, dtype: str, arithmetic: str = "fast") -> LanguageModel:
    create(folder, family="llama", hidden=4 * size, heads=4, key_value_heads=2, seed=0)
    return load(folder, dtype=dtype, device="cuda", arithmetic=arithmetic)


@pytest.mark.parametrize(("dtype", "mean"), [("float32", 2e-3), ("bfloat16", 2e-2)])
@pytest.mark.parametrize("size", [4, 8, 12])
def test_recorded_logprobs_of_small_heads_are_the_trainers(
    tmp_path: Path, size: int, dtype: str, mean: float
) -> None:
    model = make_model(tmp_path, size, dtype)
    sampled, _ = sample(model, requests())
    assert (trained(model, sampled) - recorded(sampled)).abs().mean() < mean


@needs_exact
def test_exact_logprobs_of_heads_of_8_are_the_trainers_bits(tmp_path: Path) -> None:
    model = make_model(tmp_path, 8, "bfloat16", "exact")
    sampled, _ = sample(model, requests())
    for per_batch in (1, 7, 10**6):
        assert torch.equal(trained(model, sampled, per_batch), recorded(sampled))


@needs_exact
def test_exact_arithmetic_refuses_heads_that_are_no_multiple_of_8(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"heads of size \[12\]; it must be a multiple of 8"):
        make_model(tmp_path, 12, "bfloat16", "exact")


@pytest.mark.parametrize(
    ("size", "arithmetic"), [(4, "fast"), (8, "fast"), (8, "exact"), (12, "fast")]
)
def test_gradients_of_small_heads_in_bfloat16_are_near_those_of_float32(
    tmp_path: Path, size: int, arithmetic: str
) -> None:
    if arithmetic == "exact" and device_problem(torch.device("cuda")):
        pytest.skip("needs an H100 or H200")
    texts = [request.tokens for request in requests(group=1)]
    gradients = []
    for dtype, form in (("float32", "fast"), ("bfloat16", arithmetic)):
        model = make_model(tmp_path / dtype, size, dtype, form)
        model.outputs(batch_of(texts), frozenset({"logprobs_T"}))["logprobs_T"].sum().backward()
        weights = dict(model.module.named_parameters())
        gradients.append(
            torch.cat(
                [weights[name].grad.double().flatten() for name in weights if "self_attn" in name]  # type: ignore[union-attr]
            )
        )
    error = (gradients[1] - gradients[0]).norm() / gradients[0].norm()
    assert error < 0.05
