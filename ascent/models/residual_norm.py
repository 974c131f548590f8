"""Decoder layers in which a residual sum and the norm that reads it are one kernel: on CUDA, without a gradient.

A pre-norm layer adds the output of its attention, and then that of its MLP, to what it was given. The norm behind its
last sum is the next layer's first one, or the model's last. It is computed with the sum and travels with it as an
attribute; the norm takes it from there if it is called with this very tensor. So the sum is an ordinary tensor for
whoever else reads it. The bits are those of the stock layer, in which these are two kernels.

Whether a layer is wired like this is found by running its code with toys in place of its four modules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

PARTS = (
    "self_attn",
    "mlp",
    "input_layernorm",
    "post_attention_layernorm",
)  # the modules of a pre-norm layer
LAST_NORM = "norm"  # of the model, beside its `layers`


class _Toy(nn.Module):
    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, hidden_states: Tensor, *_: Any, **__: Any) -> Any:
        return self.function(hidden_states)


def is_pre_norm(layer: nn.Module) -> bool:
    """Whether the layer's own code is x += attention(norm(x)); x += mlp(norm(x)), and nothing else."""
    if set(layer._modules) != set(PARTS) or any(True for _ in layer.parameters(recurse=False)):
        return False
    stock: Any = getattr(type(layer), "stock", type(layer))
    probe = stock.__new__(stock)
    probe.__dict__.update(layer.__dict__)  # factors and flags of this layer
    toys = (lambda x: (x * x - 1, None), lambda x: x**3, lambda x: 2 * x + 1, lambda x: 3 * x - 0.5)
    probe._modules = {name: _Toy(toy) for name, toy in zip(PARTS, toys, strict=True)}
    x = torch.linspace(-1, 1, 64, dtype=torch.float64).view(1, 4, 16)
    attend, mlp, first, second = toys
    middle = x + attend(first(x))[0]
    expected = middle + mlp(second(middle))
    for probe.training in (False, True):  # dropout shows in training
        try:
            found = stock.forward(probe, x)
        except (
            Exception
        ):  # other people's code that expects more than the four parts: not wired as known
            return False
        if not isinstance(found, Tensor) or not torch.equal(found, expected):
            return False
    return True


def link_norms(
    module: nn.Module, is_decoder: Callable[[nn.Module], bool], is_norm: Callable[[nn.Module], bool]
) -> None:
    """Tell every layer which norm reads its output."""
    for part in module.modules():
        layers: Any = getattr(part, "layers", None)
        for index, layer in enumerate(layers if isinstance(layers, nn.ModuleList) else ()):
            last = index + 1 == len(layers)
            norm = (
                getattr(part, LAST_NORM, None)
                if last
                else getattr(layers[index + 1], "input_layernorm", None)
            )
            if is_decoder(layer):
                known = isinstance(norm, nn.Module) and is_norm(norm)
                layer.next_norm = (norm,) if known else ()  # type: ignore[assignment]  # in a tuple: it is no child


def forward(layer: Any, hidden_states: Tensor, **options: Any) -> Tensor:
    """A pre-norm layer without a gradient."""
    attended, _ = layer.self_attn(hidden_states=layer.input_layernorm(hidden_states), **options)
    hidden_states, normed = add_norm(attended, hidden_states, layer.post_attention_layernorm)
    mlp_out = layer.mlp(normed)
    for norm in getattr(layer, "next_norm", ()):
        if (
            type(norm.weight) is nn.Parameter and norm.weight.device == mlp_out.device
        ):  # not a shard of FSDP's
            hidden_states, normed = add_norm(mlp_out, hidden_states, norm)
            hidden_states.normed_ahead = (norm, normed, hidden_states._version)  # type: ignore[attr-defined]
            return hidden_states
    return hidden_states + mlp_out


def normed_ahead(norm: nn.Module, x: Tensor) -> Tensor | None:
    """The output of `norm` on x, if it was computed together with x."""
    ahead: tuple[nn.Module, Tensor, int] | None = getattr(x, "normed_ahead", None)
    if ahead is None or ahead[0] is not norm or ahead[2] != x._version or torch.is_grad_enabled():
        return None
    return ahead[1]


def add_norm(x: Tensor, residual: Tensor, norm: Any) -> tuple[Tensor, Tensor]:
    """residual + x, and its norm."""
    if x.is_cuda:
        from ascent.models.norm_cuda import (
            add_rms_norm,
            known_formula,
        )  # triton exists on CUDA machines only

        formula = known_formula(type(norm).stock.forward, norm)
        if formula is not None and x.dtype == residual.dtype == norm.weight.dtype:
            return add_rms_norm(x, residual, norm.weight, formula[1], formula[0])
    total = residual + x
    return total, norm(total)
