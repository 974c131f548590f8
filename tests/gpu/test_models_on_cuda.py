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
@pytest.mark.parametrize(
    ("dtype", "mean", "largest"), [("float32", 1e-4, 2e-3), ("bfloat16", 2e-2, 0.3)]
)
def test_packed_log_probs_equal_one_by_one(
    family: str, dtype: str, mean: float, largest: float, tmp_path: Path
) -> None:
    folder = create(
        tmp_path / family, family=family, hidden=256, heads=4, key_value_heads=2, seed=0
    )
    model = load(folder, dtype=dtype, device="cuda")
    tokens = torch.randint(
        2, 250, (sum(LENGTHS),), generator=torch.Generator().manual_seed(0)
    ).cuda()
    segments = Segments.from_lengths(torch.tensor(LENGTHS, device="cuda"))
    batch = {
        "tokens_T": tokens,
        "positions_T": torch.cat([torch.arange(n, device="cuda") for n in LENGTHS]),
        "segments": segments,
        "loss_mask_T": torch.ones_like(tokens, dtype=torch.bool),
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
    assert float(gap.mean()) < mean and float(gap.max()) < largest, (
        float(gap.mean()),
        float(gap.max()),
    )


@pytest.mark.parametrize(
    ("head", "wanted"), [("both", "values_T"), ("scalar", "scores_B"), ("scalar", "step_logits_TC")]
)
def test_critics_and_reward_models_have_gradients_in_bfloat16(
    head: str, wanted: str, tmp_path: Path
) -> None:
    """The wide product on the tensor cores has no gradient in torch; heads that are trained must go around it."""
    folder = create(
        tmp_path / "tiny", family="qwen2", hidden=128, heads=4, key_value_heads=2, seed=0
    )
    tokens = torch.randint(2, 250, (sum(LENGTHS),), generator=torch.Generator().manual_seed(0))
    found = {}
    for device, dtype in (("cuda", "bfloat16"), ("cpu", "float32")):
        model = load(folder, head=head, dtype=dtype, device=device)  # type: ignore[arg-type]
        batch = {
            "tokens_T": tokens.to(device),
            "positions_T": torch.cat([torch.arange(n, device=device) for n in LENGTHS]),
            "segments": Segments.from_lengths(torch.tensor(LENGTHS, device=device)),
        }
        out = model.outputs(batch, frozenset({wanted}))[wanted]
        assert out.dtype == torch.float32
        weights = dict(model.named_parameters())
        (
            out * torch.linspace(0, 1, len(out), device=device).view(-1, *[1] * (out.ndim - 1))
        ).sum().backward()
        found[device] = {
            n: each.grad.float().cpu() for n, each in weights.items() if each.grad is not None
        }
    for name, expected in found["cpu"].items():
        close = torch.nn.functional.cosine_similarity(
            found["cuda"][name].flatten(), expected.flatten(), 0
        )
        assert expected.abs().max() == 0 or float(close) > 0.97, (name, float(close))


def test_training_from_files_on_the_gpu_and_resuming(tmp_path: Path) -> None:
    from ascent.api.train import resume_run, train_plan
    from tests.setup.runs import tiny_plan, weights_of

    plan = tiny_plan(run={"steps": 4, "save_every": 2}, model={"dtype": "bfloat16"})
    train_plan(plan, tmp_path / "run", say=lambda text: None)
    final = weights_of(tmp_path / "run", 4)
    import shutil

    shutil.rmtree(tmp_path / "run" / "checkpoints" / "4")
    resume_run(tmp_path / "run", say=lambda text: None)
    assert weights_of(tmp_path / "run", 4) == final
