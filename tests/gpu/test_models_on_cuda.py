"""The packed forward on a GPU: flash attention over packed sequences against the stock forward, one by one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from ascent.maths.segments import Segments
from ascent.models.load import load
from ascent.models.tiny import create

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

LENGTHS = [5, 1, 33, 64, 17]


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral", "gemma"])
@pytest.mark.parametrize(("dtype", "mean", "largest"), [("float32", 1e-4, 2e-3), ("bfloat16", 2e-2, 0.3)])
def test_packed_log_probs_equal_one_by_one(
    family: str, dtype: str, mean: float, largest: float, tmp_path: Path
) -> None:
    folder = create(tmp_path / family, family=family, hidden=256, heads=4, key_value_heads=2, seed=0)
    model = load(folder, dtype=dtype, device="cuda")
    tokens = torch.randint(2, 250, (sum(LENGTHS),), generator=torch.Generator().manual_seed(0)).cuda()
    segments = Segments.from_lengths(torch.tensor(LENGTHS, device="cuda"))
    batch = {
        "tokens_T": tokens,
        "positions_T": torch.cat([torch.arange(n, device="cuda") for n in LENGTHS]),
        "segments": segments,
        "trained_T": torch.ones_like(tokens, dtype=torch.bool),
    }
    with torch.no_grad():
        packed = model.outputs(batch, frozenset({"logprobs_T"}))["logprobs_T"]
    stock = AutoModelForCausalLM.from_pretrained(
        folder, dtype=getattr(torch, dtype), attn_implementation="eager"
    ).cuda()
    gaps = []
    for piece, found in zip(tokens.split(LENGTHS), packed.split(LENGTHS), strict=True):
        with torch.no_grad():
            logs = stock(piece[None]).logits[0].float().log_softmax(-1)
        expected = logs[:-1].gather(1, piece[1:, None]).squeeze(1)
        gaps.append((found[1:] - expected).abs())
    gap = torch.cat(gaps)
    assert float(gap.mean()) < mean and float(gap.max()) < largest, (float(gap.mean()), float(gap.max()))


def test_training_from_files_on_the_gpu_and_resuming(tmp_path: Path) -> None:
    from ascent.build.training import resume, train
    from tests.build.runs import tiny_plan, weights_of

    plan = tiny_plan(run={"steps": 4, "save_every": 2}, model={"dtype": "bfloat16"})
    train(plan, tmp_path / "run", say=lambda text: None)
    final = weights_of(tmp_path / "run", 4)
    import shutil

    shutil.rmtree(tmp_path / "run" / "checkpoints" / "4")
    resume(tmp_path / "run", say=lambda text: None)
    assert weights_of(tmp_path / "run", 4) == final
