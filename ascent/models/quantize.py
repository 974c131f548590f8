"""A frozen 4-bit base for LoRA (QLoRA, arXiv 2305.14314), through bitsandbytes.

Linear layers are stored as NF4: 16 levels, one scale for 64 weights, the scales in 8 bits (4.13 bits per weight).
Weights are quantized one tensor at a time while they are loaded, so the device never holds a dense copy. The head, the
embeddings and the norms keep the model's dtype.

A product dequantizes inside its kernel, or one layer at a time, in the dtype of its input; the backward pass
dequantizes again. bitsandbytes' own layer would repack the weights of a model in eval mode for CPUs with bfloat16
instructions and then round a float32 model to bfloat16 while sampling, so `layer_patching` calls `linear` instead.
"""

from __future__ import annotations

import importlib.util
import logging
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ascent.distribution import install_hint

if TYPE_CHECKING:
    from transformers import BitsAndBytesConfig

SCHEMES = ("nf4",)
# peft imports bitsandbytes wherever it is installed; it then warns that a CPU kernel is missing, which we never use.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)

LAYER = "bitsandbytes.nn.modules", "Linear4bit"  # peft's layer around one has the same name


def quantization(scheme: str, dtype: torch.dtype) -> BitsAndBytesConfig:
    """What transformers needs to quantize while loading."""
    if scheme not in SCHEMES:
        raise ValueError(
            f"quantize={scheme!r} is not supported; use {' or '.join(SCHEMES)}, or null for dense weights"
        )
    missing = [
        name for name in ("bitsandbytes", "accelerate") if importlib.util.find_spec(name) is None
    ]
    if missing:
        raise ImportError(
            f"4-bit weights need the package {' and '.join(missing)}; install with: {install_hint('qlora')}"
        )
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=scheme,
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
    )


def is_quantized(part: nn.Module) -> bool:
    """Is it a quantized layer, patched or not?"""
    return any((each.__module__, each.__name__) == LAYER for each in type(part).__mro__)


def scheme_of(module: PreTrainedModel) -> str | None:
    """How a model is quantized; None if it is dense."""
    config: Any = getattr(module.config, "quantization_config", None)
    return None if config is None else str(config.bnb_4bit_quant_type)


def linear(layer: Any, x: Tensor) -> Tensor:
    """The product of a quantized layer."""
    from bitsandbytes import matmul_4bit

    out: Tensor = matmul_4bit(
        x, layer.weight, quant_state=layer.weight.quant_state, bias=layer.bias
    )
    return out


def num_parameters(module: nn.Module) -> tuple[int, int]:
    """(all weights, those of them that are quantized); packed ones count as what they stand for."""
    layers: list[Any] = [each for each in module.modules() if is_quantized(each)]
    quantized = sum(each.in_features * each.out_features for each in layers)
    packed = sum(each.weight.numel() for each in layers)
    total = sum(each.numel() for each in module.parameters())
    return total - packed + quantized, quantized


def note(module: PreTrainedModel, scheme: str) -> str:
    total, quantized = num_parameters(module)
    if not quantized:
        raise ValueError(
            f"quantize={scheme!r}: {type(module).__name__} has no linear layers to quantize; use dense weights"
        )
    return (
        f"{quantized / 1e6:,.1f} of {total / 1e6:,.1f} million weights are quantized ({scheme}); the others are "
        f"{str(module.dtype).removeprefix('torch.')}"
    )
