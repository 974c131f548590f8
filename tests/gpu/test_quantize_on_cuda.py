"""A 4-bit base on a GPU: loaded without a dense copy, sampled with the log-probs of training, run and merged."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ascent.api.export import export
from ascent.api.train import train_plan
from ascent.engines.native.engine import NativeEngine
from ascent.models import quantize
from ascent.models.load import load
from ascent.models.lora import attach
from ascent.models.model import LanguageModel
from ascent.models.tiny import create
from ascent.runs.folder import read_run
from ascent.setup.policy import load_policy
from ascent.update.device import to_device
from tests.gpu.test_engine_on_cuda import asked, run, trained
from tests.models.packing import batch_of
from tests.setup.runs import tiny_plan

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
pytest.importorskip("peft")
bnb = pytest.importorskip("bitsandbytes")


def make(tmp_path: Path, dtype: str) -> LanguageModel:
    folder = create(tmp_path / "base", hidden=256, heads=4, key_value_heads=2, seed=0)
    model = attach(load(folder, dtype=dtype, device="cuda", quantize="nf4"), rank=4)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.05 * torch.randn_like(weight)
    return model


def test_loading_never_holds_a_dense_copy(tmp_path: Path) -> None:
    folder = create(tmp_path / "base", hidden=1024, heads=8, key_value_heads=4, layers=8, seed=0)
    dense = (
        sum(path.stat().st_size for path in folder.glob("*.safetensors")) / 2
    )  # saved in float32
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    model = load(folder, dtype="bfloat16", device="cuda", quantize="nf4")
    peak = torch.cuda.max_memory_allocated() - before
    total, quantized = quantize.num_parameters(model.module)
    assert quantized > 0.9 * total
    # The probe of the model dequantizes one layer at a time, the head's logits are small.
    assert peak < 0.6 * dense, (peak, dense)
    assert torch.cuda.memory_allocated() - before < 0.35 * dense


@pytest.mark.parametrize("rows", [2, 64, 3000])  # one fused kernel, another, and dequantization
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-3), (torch.bfloat16, 4e-2)])
def test_products_and_gradients_are_those_of_the_dequantized_weights(
    rows: int, dtype: torch.dtype, tolerance: float
) -> None:
    torch.manual_seed(0)
    layer = bnb.nn.Linear4bit(256, 192, bias=False, quant_type="nf4", compute_dtype=dtype).cuda()
    x = torch.randn(rows, 256, dtype=dtype, device="cuda", requires_grad=True)
    upstream = torch.randn(rows, 192, dtype=dtype, device="cuda")
    out = quantize.linear(layer, x)
    (grad,) = torch.autograd.grad(out, x, upstream)
    weight = bnb.functional.dequantize_4bit(layer.weight.data, layer.weight.quant_state).double()
    exact, exact_grad = x.detach().double() @ weight.T, upstream.double() @ weight
    for found, wanted in ((out, exact), (grad, exact_grad)):
        assert float((found.detach().double() - wanted).norm() / wanted.norm()) < tolerance


@pytest.mark.parametrize(("dtype", "mean"), [("float32", 2e-3), ("bfloat16", 3e-2)])
def test_recorded_log_probs_are_the_trainers(tmp_path: Path, dtype: str, mean: float) -> None:
    model = make(tmp_path, dtype)
    requests = asked()
    engine = NativeEngine(model, frozenset({1}), max_num_seqs=16, max_model_len=128)
    done = run(engine, requests)
    gaps = []
    for request in requests:
        each = done[request.prompt_id, request.sample]
        gaps += (
            (trained(model, request, each) - torch.tensor(each.logprobs, device="cuda"))
            .abs()
            .tolist()
        )
    assert sum(gaps) / len(gaps) < mean


def test_an_update_of_the_adapter_is_sampled_without_a_new_graph(tmp_path: Path) -> None:
    model = make(tmp_path, "float32")
    engine = NativeEngine(model, frozenset({1}), max_num_seqs=16, max_model_len=128)
    before = run(engine, asked(seed=1))
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.3 * torch.randn_like(weight)
    engine.set_weights(1, {})
    requests = asked(seed=1)
    after = run(engine, requests)
    assert {key: each.tokens for key, each in before.items()} != {
        key: each.tokens for key, each in after.items()
    }
    each = after[requests[0].prompt_id, requests[0].sample]
    gap = trained(model, requests[0], each) - torch.tensor(each.logprobs, device="cuda")
    assert float(gap.abs().mean()) < 2e-3


def test_a_run_ends_well_and_is_exported(tmp_path: Path) -> None:
    settings = {"policy": "tiny:llama", "dtype": "bfloat16", "lora": 4, "quantize": "nf4"}
    plan = tiny_plan(
        model={**settings, "gradient_checkpointing": True}, run={"steps": 4, "save_every": 2}
    )
    train_plan(plan, tmp_path / "run", say=lambda text: None)
    losses = [row["loss/total"] for row in read_run(tmp_path / "run").metrics]
    assert losses[-1] < losses[0]
    target = export(tmp_path / "run", tmp_path / "plain")
    policy = load_policy(plan, tmp_path / "run", tmp_path / "run/checkpoints/4/model")
    plain = load(target, dtype="bfloat16", device="cuda")
    batch = to_device(batch_of(), torch.device("cuda"))
    with torch.no_grad():
        ours, theirs = (
            each.outputs(batch, frozenset({"logprobs_T"}))["logprobs_T"]
            for each in (policy.eval(), plain)
        )
    assert float((ours - theirs).abs().mean()) < 5e-2
