"""Linear layers that read the same input (query, key, value; gate, up) as one product, on CUDA.

The weights of such layers are stored next to each other, so a single matrix covers them without a copy; the parameters
stay the modules' own. The model's code still calls the layers one by one: the first call computes all outputs, the
calls that follow with the same input take theirs. Where the weights cannot lie next to each other, because FSDP gathers
each into memory of its own, they are copied for every product, so that the bits are those of a model that is not
divided.

Axes: N tokens, D input size, E sum of the output sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

Recompute = tuple[
    tuple[Tensor, ...], Callable[..., Tensor]
]  # inputs, and the function that gives the tensor again
LinearForward = Callable[
    [Tensor, Tensor, Tensor | None], Tensor
]  # x @ weight.T + bias, without a gradient
GROUPS = (
    ("q_proj", "k_proj", "v_proj"),
    ("gate_proj", "up_proj"),
)  # layers that read one input, by name


class SharedInput:
    """Linear layers with a common input. `weights` and `biases` are those of all layers, in order.

    Weights that are not adjacent are joined by a copy if `copies`; otherwise the layers run one by one.
    """

    def __init__(self, layers: Sequence[nn.Linear], *, copies: bool = False) -> None:
        self.layers, self.copies = tuple(layers), copies
        self._call: tuple[Tensor, int, bool] | None = (
            None  # input of the last product, its version, gradient mode
        )
        self._outputs: dict[int, Tensor] = {}

    @property
    def weights(self) -> list[Tensor]:
        return [layer.weight for layer in self.layers]

    @property
    def biases(self) -> list[Tensor]:
        return [layer.bias for layer in self.layers if layer.bias is not None]

    @property
    def _forward(self) -> LinearForward:
        """The product of these layers; of layers that are not patched, torch's."""
        kernels: Any = getattr(self.layers[0], "kernels", None)
        return F.linear if kernels is None else kernels.forward

    def store_adjacent(self) -> None:
        """Move the weights next to each other, and the biases."""
        for tensors in (self.weights, self.biases):
            if tensors and adjacent(tensors) is None:
                merged = torch.cat([each.data for each in tensors])
                for each, part in zip(
                    tensors, merged.split([each.shape[0] for each in tensors]), strict=True
                ):
                    each.data = part

    def output(self, index: int, x: Tensor) -> Tensor | None:
        """The output of layer `index`; None if the layers must run one by one."""
        call = self._call
        same = (
            call is not None and call[0] is x and call[1:] == (x._version, torch.is_grad_enabled())
        )
        if not same or index not in self._outputs:
            weights, biases = self.weights, self.biases
            weight, bias = adjacent(weights), adjacent(biases) if biases else None
            if weight is None or (biases and bias is None):
                if not self.copies:
                    return None
                weight = bias = None
            self._call = (x, x._version, torch.is_grad_enabled())
            self._outputs = dict(
                enumerate(
                    _SharedLinear.apply(
                        x, weight, bias, self._forward, len(weights), *weights, *biases
                    )
                )
            )
        found = self._outputs.pop(index)
        if not self._outputs:
            self._call = None
        return found


def joins_copies(layer: nn.Module) -> bool:
    """Whether a layer is one product with others although their weights do not lie next to each other."""
    shared: Any = getattr(layer, "shared_input", None)
    return shared is not None and shared[0].copies


def recomputable(
    out: Tensor, inputs: tuple[Tensor, ...], function: Callable[..., Tensor]
) -> Tensor:
    """Mark a tensor as cheap to compute again, so that a backward pass that reads it need not keep it."""
    out.recompute = (inputs, function)  # type: ignore[attr-defined]
    return out


def to_keep(x: Tensor) -> Recompute:
    """What a forward pass must keep to have `x` in its backward pass."""
    found: Recompute = getattr(x, "recompute", None) or ((x,), lambda kept: kept)
    return found


def find_groups(
    part: nn.Module, is_linear: Callable[[nn.Module], bool], *, copies: bool = False
) -> list[SharedInput]:
    """The children of a module that share an input and can be one product."""
    found = []
    for names in GROUPS:
        layers: list[Any] = [getattr(part, name, None) for name in names]
        if all(isinstance(each, nn.Module) and is_linear(each) for each in layers):
            kinds = {
                (each.in_features, each.bias is None, each.weight.dtype, each.weight.device)
                for each in layers
            }
            if len(kinds) == 1:
                found.append(SharedInput(layers, copies=copies))
    return found


def adjacent(tensors: Sequence[Tensor]) -> Tensor | None:
    """The tensors as one, joined along their first axis, if they are stored next to each other; else None."""
    first = tensors[0]
    end = first.data_ptr()
    for each in tensors:
        if each.data_ptr() != end or not each.is_contiguous():
            return None
        end += each.numel() * each.element_size()
    storage = first.untyped_storage()
    if end > storage.data_ptr() + storage.nbytes():  # neighbors in memory by chance
        return None
    size = (sum(each.shape[0] for each in tensors), *first.shape[1:])
    return first.detach().as_strided(size, first.stride())


def join(tensors: Sequence[Tensor]) -> Tensor:
    """The tensors as one, copied unless it is one already."""
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))


class _SharedLinear(torch.autograd.Function):
    """x @ weight.T + bias, cut into the outputs of `count` layers, whose weights and biases get the gradients.

    Without `weight_ED`, weights and biases are joined here, and again in the backward pass: no copy is kept.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight_ED: Tensor | None,
        bias_E: Tensor | None,
        linear: LinearForward,
        count: int,
        *own: Tensor,
    ) -> tuple[Tensor, ...]:
        kept, ctx.recompute = to_keep(x)
        weights = own[:count] if weight_ED is None else (weight_ED,)
        ctx.save_for_backward(*weights, *kept)
        ctx.sizes, ctx.num_weights, ctx.has_bias = (
            [each.shape[0] for each in own[:count]],
            len(weights),
            len(own) > count,
        )
        if weight_ED is None and ctx.has_bias:
            bias_E = torch.cat(own[count:])
        return linear(x, join(weights), bias_E).split(ctx.sizes, -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *d_outs: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # once: recomputed layers refuse a second time
        weights, kept = saved[: ctx.num_weights], saved[ctx.num_weights :]
        d_NE = torch.cat([each.flatten(0, -2) for each in d_outs], -1)
        d_x = (
            (d_NE @ join(weights)).view(*d_outs[0].shape[:-1], -1)
            if ctx.needs_input_grad[0]
            else None
        )
        if not any(ctx.needs_input_grad[5:]):
            return d_x, *[None] * (len(ctx.needs_input_grad) - 1)
        d_weights = (d_NE.mT @ ctx.recompute(*kept).flatten(0, -2)).split(ctx.sizes)
        d_biases = d_NE.sum(0).split(ctx.sizes) if ctx.has_bias else ()
        return d_x, None, None, None, None, *d_weights, *d_biases
