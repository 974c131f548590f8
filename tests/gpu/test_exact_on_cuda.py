"""Exact arithmetic on a GPU: recorded log-probs are the trainer's, bit for bit, and a broken seam is seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ascent.engines.native.engine import NativeEngine
from ascent.maths.segments import Segments
from ascent.models import layer_patching, lora
from ascent.models.exact import device_problem
from ascent.models.heads import score_layer
from ascent.models.load import load
from ascent.models.model import LanguageModel
from ascent.models.tiny import create
from ascent.records import Completion, Request

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or bool(device_problem(torch.device("cuda"))),
    reason="needs an H100 or H200",
)

FAMILIES = ["llama", "qwen2", "qwen3", "mistral"]
Sampled = list[tuple[Request, Completion]]


def make(folder: Path, family: str = "qwen2", **shape: Any) -> LanguageModel:
    shape = {
        "hidden": 256,
        "heads": 4,
        "key_value_heads": 2,
        "initializer_range": 0.1,
        "seed": 0,
        **shape,
    }
    return load(
        create(folder / family, family=family, **shape),
        dtype="bfloat16",
        device="cuda",
        arithmetic="exact",
    )


def requests(prompts: int = 6, group: int = 8, longest: int = 90) -> list[Request]:
    """Ragged prompts, from one token to beyond two chunks of keys."""
    draw = np.random.default_rng(0)
    texts = [tuple(draw.integers(3, 250, size=1 + 33 * n).tolist()) for n in range(prompts)]
    return [
        Request(f"p{n}", sample, texts[n], int(draw.integers(2, longest)), 3)
        for n in range(prompts)
        for sample in range(group)
    ]


def sample(
    model: LanguageModel, asked: Sequence[Request], **options: Any
) -> tuple[Sampled, NativeEngine]:
    engine = NativeEngine(model, {1}, **{"max_num_seqs": 64, "max_model_len": 512, **options})
    done = {(each.prompt_id, each.sample): each for each in engine.sample(asked)}
    return [(each, done[each.prompt_id, each.sample]) for each in asked], engine


def batch_of(texts: Sequence[Sequence[int]]) -> dict[str, Any]:
    return {
        "tokens_T": torch.tensor([token for text in texts for token in text], device="cuda"),
        "positions_T": torch.cat([torch.arange(len(text)) for text in texts]).cuda(),
        "segments": Segments.from_lengths(
            torch.tensor([len(text) for text in texts], device="cuda")
        ),
    }


def trained(model: LanguageModel, sampled: Sampled, per_batch: int = 10**6) -> Tensor:
    """The trainer's log-probs of all completions, `per_batch` sequences at a time, with gradients."""
    found = []
    for start in range(0, len(sampled), per_batch):
        part = sampled[start : start + per_batch]
        texts = [request.tokens + done.tokens for request, done in part]
        logprobs = (
            model.outputs(batch_of(texts), frozenset({"logprobs_T"}))["logprobs_T"].detach().cpu()
        )
        pieces = logprobs.split([len(text) for text in texts])
        found += [
            piece[len(request.tokens) :] for piece, (request, _) in zip(pieces, part, strict=True)
        ]
    return torch.cat(found)


def recorded(sampled: Sampled) -> Tensor:
    return torch.cat([torch.tensor(done.logprobs) for _, done in sampled])


@pytest.mark.parametrize("family", FAMILIES)
def test_recorded_log_probs_are_the_trainers_bits(tmp_path: Path, family: str) -> None:
    model = make(tmp_path, family)
    sampled, _ = sample(model, requests())
    for per_batch in (1, 7, 10**6):
        assert torch.equal(trained(model, sampled, per_batch), recorded(sampled))


@pytest.mark.parametrize(
    "options", [{"block_size": 16}, {"block_size": 128}, {"max_num_seqs": 1}, {"max_num_seqs": 512}]
)
def test_blocks_and_batches_change_no_bit(tmp_path: Path, options: dict[str, int]) -> None:
    model = make(tmp_path)
    asked = requests(group=2 if options.get("max_num_seqs") == 1 else 8)
    assert sample(model, asked)[0] == sample(model, asked, **options)[0]


def test_a_thousand_rows_have_the_bits_of_few(tmp_path: Path) -> None:
    model, asked = make(tmp_path), requests(prompts=4, group=250)
    together, engine = sample(model, asked, max_num_seqs=None)
    assert engine.max_num_seqs == 1024
    assert together == sample(model, asked)[0]
    assert torch.equal(trained(model, together, 100), recorded(together))


def test_preemption_changes_no_bit(tmp_path: Path) -> None:
    model = make(tmp_path)
    sampled, engine = sample(model, requests(), block_size=16, num_blocks=60, max_model_len=384)
    assert engine.stats().preemptions > 0
    assert sampled == sample(model, requests())[0]
    assert torch.equal(trained(model, sampled), recorded(sampled))


def test_scores_and_values_do_not_depend_on_the_batch(tmp_path: Path) -> None:
    """Of reward models and critics: alone, and among answers to the same prompt, which run once."""
    folder = create(
        tmp_path / "m",
        family="qwen2",
        hidden=256,
        heads=4,
        key_value_heads=2,
        initializer_range=0.1,
    )
    model = load(folder, head="scalar", dtype="bfloat16", device="cuda", arithmetic="exact")
    torch.manual_seed(0)
    torch.nn.init.normal_(score_layer(model.module).weight)
    draw = np.random.default_rng(0)
    prompt = tuple(draw.integers(3, 250, size=150).tolist())
    texts = [prompt + tuple(draw.integers(3, 250, size=1 + 40 * n).tolist()) for n in range(8)]
    want = frozenset({"scores_B", "values_T"})
    together = model.outputs(batch_of(texts), want)
    alone = [model.outputs(batch_of([text]), want) for text in texts]
    assert together["scores_B"].unique().numel() == len(texts)
    for name in want:
        assert torch.equal(together[name], torch.cat([each[name] for each in alone]))


def test_products_that_cublas_splits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It sums 5,120 inputs in one piece for many rows and in several for few: there our own product runs."""
    from ascent.models import exact_linear_cuda  # triton exists on CUDA machines only

    monkeypatch.setattr(exact_linear_cuda, "_compared", {})
    model = make(tmp_path, "llama", intermediate=5120)
    sampled, _ = sample(model, requests(prompts=3))
    assert torch.equal(trained(model, sampled), recorded(sampled))
    found = {(shape.depth, equal) for (shape, _), equal in exact_linear_cuda._compared.items()}
    assert (5120, False) in found and (256, True) in found


@pytest.mark.parametrize("changes", [{"temperature": 0.7}, {"top_p": 0.9}, {"greedy": True}])
def test_how_tokens_are_chosen(tmp_path: Path, changes: dict[str, Any]) -> None:
    model = make(tmp_path)
    sampled, _ = sample(model, [replace(each, **changes) for each in requests(prompts=3)])
    if "temperature" not in changes:
        assert torch.equal(trained(model, sampled), recorded(sampled))
        return
    scaled = model.outputs
    model.outputs = lambda batch, want: scaled(batch, want, 0.7)  # type: ignore[method-assign,misc,assignment]
    assert torch.equal(trained(model, sampled), recorded(sampled))


def test_an_adapter_is_exact_too(tmp_path: Path) -> None:
    model = lora.attach(make(tmp_path), rank=4)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.05)
    sampled, _ = sample(model, requests(prompts=3))
    assert model.exact and torch.equal(trained(model, sampled), recorded(sampled))


def test_gradients_are_those_of_fast_arithmetic_and_deterministic(tmp_path: Path) -> None:
    model = make(tmp_path)
    sampled, _ = sample(model, requests(prompts=3))

    def gradients(which: LanguageModel) -> list[Tensor]:
        texts = [request.tokens + done.tokens for request, done in sampled]
        batch = {
            "tokens_T": torch.tensor([token for text in texts for token in text], device="cuda"),
            "positions_T": torch.cat([torch.arange(len(text)) for text in texts]).cuda(),
            "segments": Segments.from_lengths(
                torch.tensor([len(text) for text in texts], device="cuda")
            ),
        }
        loss = which.outputs(batch, frozenset({"logprobs_T"}))["logprobs_T"].mean()
        return list(torch.autograd.grad(loss, list(which.parameters())))

    first, second = gradients(model), gradients(model)
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    fast = gradients(load(model.origin, dtype="bfloat16", device="cuda"))
    for ours, theirs in zip(first, fast, strict=True):
        assert (
            float((ours.double() - theirs.double()).norm())
            < 0.05 * float(theirs.double().norm()) + 1e-6
        )


def _reversed_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The same sum in another order: the second half of K first."""
    half = x.shape[-1] // 2
    out = (
        x[..., half:].float() @ weight[:, half:].float().mT
        + x[..., :half].float() @ weight[:, :half].float().mT
    )
    return (out if bias is None else out + bias).to(x.dtype)


def _reversed_norm(stock: Any, module: Any, x: Tensor) -> Tensor:
    wide = x.float()
    scale = torch.rsqrt(
        wide.flip(-1).square().cumsum(-1)[..., -1:] / x.shape[-1] + module.formula[1]
    )
    return (wide * scale).to(x.dtype) * module.weight


def _break_linear(model: LanguageModel, patch: pytest.MonkeyPatch) -> None:
    _swap(model, replace(layer_patching.EXACT, linear=_reversed_linear, forward=_reversed_linear))


def _break_norm(model: LanguageModel, patch: pytest.MonkeyPatch) -> None:
    _swap(model, replace(layer_patching.EXACT, norm=_reversed_norm))


def _break_attention(model: LanguageModel, patch: pytest.MonkeyPatch) -> None:
    patch.setattr("ascent.models.exact_attention_cuda.CHUNK", 32)


def _break_head(model: LanguageModel, patch: pytest.MonkeyPatch) -> None:
    patch.setattr("ascent.models.exact_head_cuda.LANES", 512)


def _swap(model: LanguageModel, kernels: layer_patching.KernelSet) -> None:
    for part in model.modules():
        if hasattr(part, "kernels"):
            part.kernels = kernels  # type: ignore[assignment]


@pytest.mark.parametrize("breaks", [_break_linear, _break_norm, _break_attention, _break_head])
def test_a_broken_seam_is_seen(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    breaks: Callable[[LanguageModel, pytest.MonkeyPatch], None],
) -> None:
    """Training in another order of summation than sampling, one seam at a time."""
    model = make(tmp_path, "llama", vocab_size=2048)
    sampled, _ = sample(model, requests())
    assert torch.equal(trained(model, sampled), recorded(sampled))
    breaks(model, monkeypatch)
    assert not torch.equal(trained(model, sampled), recorded(sampled))
