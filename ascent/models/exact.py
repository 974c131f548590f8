"""Exact arithmetic: sampling and training compute the same log-probs, bit for bit, in bfloat16 on CUDA.

The kernels are in `exact_linear_cuda`, `exact_attention_cuda` and `exact_head_cuda`. Here is what they are refused for,
with the reason: devices, and models, for which nobody has shown that the bits agree (docs/exact.md).
"""

from __future__ import annotations

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from ascent.models.attention import FLASH_HEAD_STEP, AttentionCall
from ascent.models.layer_patching import PatchedLayers
from ascent.models.probe import attention_calls

ARITHMETICS = ("fast", "exact")
HOPPER = 9  # the major compute capability whose tensor cores (wgmma) the kernels rely on
LARGEST_HEAD = 128
PROVEN = (
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
)  # model types of which bench/exact.py has compared the tokens


def device_problem(device: torch.device) -> str:
    """Why this device cannot; empty where it can."""
    if device.type == "cpu":
        return "there is nothing to switch on a CPU, where float32 already gives equal log-probs"
    if device.type != "cuda" or torch.version.hip is not None:
        return f"its kernels are for NVIDIA GPUs, not for {device.type}"
    major, minor = torch.cuda.get_device_capability(device)
    if major != HOPPER:
        return (
            f"its kernels rely on one tensor-core instruction (wgmma) of compute capability {HOPPER}.0 (H100, H200); "
            f"on {major}.{minor} ({torch.cuda.get_device_name(device)}) equal bits are not proven"
        )
    return ""


def refuse(why: str) -> ValueError:
    return ValueError(f"model.arithmetic=exact: {why}; use fast")


def check_request(
    arithmetic: str, *, device: str | torch.device, dtype: str, quantize: str | None, dropout: bool
) -> None:
    """Refuse what can be known before a model is loaded."""
    if arithmetic not in ARITHMETICS:
        raise ValueError(
            f"arithmetic={arithmetic!r} does not exist; use {' or '.join(ARITHMETICS)}"
        )
    if arithmetic == "fast":
        return
    if problem := device_problem(torch.device(device)):
        raise refuse(problem)
    if dtype != "bfloat16":
        raise refuse(f"its kernels compute in bfloat16, not in {dtype}")
    if quantize is not None:
        raise refuse(
            f"products with quantized weights (quantize={quantize}) round by their number of rows"
        )
    if dropout:
        raise refuse("with dropout no two forwards agree")


def is_proven(config: PreTrainedConfig) -> bool:
    """Whether tokens of such models were compared; `check_model` is for those that were not, too."""
    layers = getattr(config, "layer_types", None) or ["full_attention"]
    full = {"full_attention"} == set(layers) and getattr(config, "sliding_window", None) is None
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return (
        config.model_type in PROVEN
        and full
        and head <= LARGEST_HEAD
        and head % FLASH_HEAD_STEP == 0
        and config.hidden_size % 8 == 0
    )


def check_model(module: PreTrainedModel, patched: PatchedLayers) -> None:
    """Refuse architectures without a proof. The model has run once, so the formulas of its norms are known."""
    if patched.kernels == "fast":
        return
    if problem := model_problem(module, patched.unpatched, attention_calls(module)):
        raise refuse(f"{type(module).__name__} {problem}")


def model_problem(
    module: PreTrainedModel, unpatched: tuple[str, ...], calls: list[AttentionCall]
) -> str:
    """Why this model's bits may depend on the batch; empty where they do not."""
    config = module.config.get_text_config()
    names = [name for name, part in module.named_modules() if _has_experts(part)]
    if names:
        return f"is a mixture of experts ({names[0]}), whose rows are grouped by expert"
    if unpatched:
        return f"has weight matrices outside of linear layers ({unpatched[0]}), whose products are not ours"
    if getattr(config, "final_logit_softcapping", None) or any(
        call.softcap is not None for call in calls
    ):
        return "has soft caps, which are not proven"
    if any(call.window is not None for call in calls):
        return "has sliding windows, which are not proven"
    if any(call.sinks_H is not None for call in calls):
        return "has attention sinks, which are not proven"
    sizes = {size for call in calls for size in call.heads[1:]}
    if len(sizes) > 1 or max(sizes, default=0) > LARGEST_HEAD:
        return (
            f"has attention heads of size {sorted(sizes)}; proven is one size up to {LARGEST_HEAD}"
        )
    if any(size % FLASH_HEAD_STEP for size in sizes):
        return f"has attention heads of size {sorted(sizes)}; it must be a multiple of {FLASH_HEAD_STEP}"
    if config.hidden_size % 8:
        return f"has hidden_size={config.hidden_size}; it must be a multiple of 8"
    odd = [name for name, part in module.named_modules() if getattr(part, "formula", "") is None]
    if odd:
        return f"has a norm of unknown formula ({odd[0]}), which runs torch's kernels"
    return ""


def _has_experts(part: nn.Module) -> bool:
    stock = getattr(type(part), "stock", type(part)).__name__
    return stock.endswith(("Router", "Experts"))
