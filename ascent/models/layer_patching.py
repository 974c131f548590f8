"""Patches of a loaded model's layers: linear, norm, attention, head and routers.

There are two `KernelSet`s: "fast", the library's own arithmetic, and "exact", whose bits do not depend on the batch
(CUDA, bfloat16; see `exact`). The modules' code is not changed: a linear or norm module gets a subclass of its own
class whose forward calls the kernel set, so weights, names, copies and `isinstance` stay the same. Attention is
replaced by name (see `attention`), and the head's product gives float32 logits wherever log-probs are computed. Routers
can be recorded and replayed (see `routing`).

On CUDA norms, rotary embeddings and gated activations run in one kernel each way, with the stock rounding, if the stock
code is one of the known formulas, and layers that read the same input are one product (see `shared_input`). Without a
gradient, residual sums and norms are one kernel (see `residual_norm`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial, wraps
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from ascent.maths.blas import use_blas
from ascent.models import attention, quantize, residual_norm, routing, shared_input

ROTARY = "apply_rotary_pos_emb"  # its name in every architecture
GATED_MLP = ("gate_proj", "up_proj", "down_proj", "act_fn")  # the modules of a gated MLP
StockForward = Callable[
    [Any, Tensor], Tensor
]  # a module class's stock forward: (module, input) -> output


@dataclass(frozen=True)
class KernelSet:
    """An implementation of linear layers, norms, gated MLPs, the product that gives logits, and attention (by name).

    `linear` is differentiable; `forward` is the same without a gradient.
    """

    name: str
    linear: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    forward: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    norm: Callable[[StockForward, nn.Module, Tensor], Tensor]
    mlp: Callable[[StockForward, nn.Module, Tensor], Tensor]
    product: Callable[[Tensor, Tensor], Tensor]
    attention: str

    @property
    def exact(self) -> bool:
        return self.name == "exact"  # not `is`: modules are copied with it


class PatchedLayers(NamedTuple):
    """How many layers are patched, and the weight matrices outside of them."""

    kernels: str
    linears: int
    norms: int
    unpatched: tuple[str, ...]


def wide_product(a_NK: Tensor, b_KM: Tensor) -> Tensor:
    """a @ b, summed and returned in float32 at least.

    On CUDA a half-precision pair runs on the tensor cores, with exact products and float32 sums. Elsewhere, or where a
    gradient is needed (that product has none), both sides are widened.
    """
    half_precision = a_NK.dtype == b_KM.dtype and a_NK.dtype in (torch.bfloat16, torch.float16)
    needs_grad = torch.is_grad_enabled() and (a_NK.requires_grad or b_KM.requires_grad)
    if half_precision and a_NK.is_cuda and not needs_grad:
        return torch.mm(a_NK, b_KM, out_dtype=torch.float32)
    wide = torch.promote_types(torch.promote_types(a_NK.dtype, b_KM.dtype), torch.float32)
    return a_NK.to(wide) @ b_KM.to(wide)


def fast_norm(stock: StockForward, module: nn.Module, x: Tensor) -> Tensor:
    """The stock norm; on CUDA the same in one kernel, if its formula is known."""
    if not x.is_cuda:
        return stock(module, x)
    from ascent.models.norm_cuda import (
        known_formula,
        rms_norm,
    )  # triton exists on CUDA machines only

    formula = known_formula(stock, module)
    weight: Any = module.weight
    return stock(module, x) if formula is None else rms_norm(x, weight, formula[1], formula[0])


@cache
def fast_rotary(
    stock: Callable[..., tuple[Tensor, Tensor]],
) -> Callable[..., tuple[Tensor, Tensor]]:
    """transformers' rotary embedding; on CUDA the same bits in one kernel."""
    matches: list[bool] = []  # set at the first call: does `stock` equal the kernel?

    @wraps(stock)
    def rotary(
        q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *more: Any, **others: Any
    ) -> tuple[Tensor, Tensor]:
        if not q.is_cuda or more or others:
            return stock(q, k, cos, sin, *more, **others)
        from ascent.models.rotary_cuda import can_rotate, rotate

        if not can_rotate(q, k, cos) or matches == [False]:
            return stock(q, k, cos, sin)
        if not matches:
            with torch.no_grad():
                pairs = zip(stock(q, k, cos, sin), rotate(q, k, cos, sin), strict=True)
            matches.append(all(torch.equal(expected, rotated) for expected, rotated in pairs))
            return stock(q, k, cos, sin)
        return rotate(q, k, cos, sin)

    rotary.stock = stock  # type: ignore[attr-defined]
    return rotary


def fast_mlp(stock: StockForward, module: Any, x: Tensor) -> Tensor:
    """The stock MLP; on CUDA down(silu(gate) * up) with one kernel for the activation, if this is its formula."""
    if not x.is_cuda:
        return stock(module, x)
    from ascent.models.gated_mlp_cuda import gated_mlp, is_silu_mlp, silu_mul

    if not hasattr(module, "is_silu_mlp"):
        module.is_silu_mlp = is_silu_mlp(stock, module, x)
    if not module.is_silu_mlp:
        return stock(module, x)
    gate, up, down = (getattr(module, name) for name in GATED_MLP[:3])
    plain = all(_stock_class(each) is nn.Linear and each.bias is None for each in (gate, up, down))
    merged = shared_input.adjacent((gate.weight, up.weight)) if plain else None
    if merged is not None or (plain and shared_input.joins_copies(gate)):
        return gated_mlp(
            x, merged, gate.weight, up.weight, down.weight, getattr(module, "kernels", FAST).forward
        )
    out: Tensor = down(silu_mul(gate(x), up(x)))
    return out


def exact_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    from ascent.models.exact_linear_cuda import linear  # triton exists on CUDA machines only

    return linear(x, weight, bias)


def exact_forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    from ascent.models.exact_linear_cuda import forward

    return forward(x, weight, bias)


def exact_product(a_NK: Tensor, b_KM: Tensor) -> Tensor:
    from ascent.models.exact_linear_cuda import wide_linear

    return wide_linear(a_NK, b_KM.mT)


# The norm and the activation of "fast" run one row, or one number, at a time: their bits are those of any batch. Norms
# that keep their stock forward are refused (see `exact`).
FAST = KernelSet("fast", F.linear, F.linear, fast_norm, fast_mlp, wide_product, attention.NAME)
EXACT = KernelSet(
    "exact", exact_linear, exact_forward, fast_norm, fast_mlp, exact_product, attention.EXACT_NAME
)
KERNEL_SETS = {each.name: each for each in (FAST, EXACT)}


def kernels_of(module: nn.Module) -> KernelSet:
    """Those of a patched model, or of a patched layer; fast before it is patched."""
    for part in module.modules():
        kernels: Any = getattr(part, "kernels", None)
        if isinstance(kernels, KernelSet):
            return kernels
    return FAST


def patch_layers(module: PreTrainedModel, kernels: str | None = None) -> PatchedLayers:
    """Patch a model. Calling it again (after LoRA added layers, say) patches new layers, by default as the others."""
    kernels = kernels or kernels_of(module).name
    if kernels not in KERNEL_SETS:
        raise ValueError(
            f"kernels={kernels!r} does not exist; choose from {', '.join(KERNEL_SETS)}"
        )
    use_blas()
    module.set_attn_implementation(KERNEL_SETS[kernels].attention)
    counts = dict.fromkeys(("linear", "quantized", "norm", "mlp", "router", "decoder"), 0)
    unpatched = []
    for name, part in module.named_modules():
        kind = _kind(part)
        if kind in (None, "mlp", "router", "decoder"):
            unpatched += [
                f"{name}.{own}"
                for own, weight in part.named_parameters(recurse=False)
                if _matrix(part, weight)
            ]
        if kind is None:
            continue
        part.__class__ = _patched_class(_stock_class(part), kind)  # type: ignore[arg-type]
        part.kernels, part.router_index = KERNEL_SETS[kernels], counts[kind]
        counts[kind] += 1
    residual_norm.link_norms(
        module, lambda each: _kind(each) == "decoder", lambda each: _kind(each) == "norm"
    )
    if module.device.type == "cuda":
        merge_products(module)
    for source in {type(part).__module__ for part in module.modules()}:
        modeling = sys.modules[source]
        if callable(rotary := getattr(modeling, ROTARY, None)):
            setattr(modeling, ROTARY, fast_rotary(getattr(rotary, "stock", rotary)))
    return PatchedLayers(
        kernels, counts["linear"] + counts["quantized"], counts["norm"], tuple(unpatched)
    )


def merge_products(module: nn.Module, *, copies: bool = False) -> None:
    """Make one product of the linear layers that read the same input, of weights stored together or of their copies."""
    for part in module.modules():
        for group in shared_input.find_groups(
            part, lambda each: _stock_class(each) is nn.Linear, copies=copies
        ):
            if not copies:
                group.store_adjacent()
            for index, layer in enumerate(group.layers):
                layer.shared_input = (group, index)  # type: ignore[assignment]


def _stock_class(part: nn.Module) -> type[nn.Module]:
    """The class of a module before it was patched."""
    stock: type[nn.Module] = getattr(type(part), "stock", type(part))
    return stock


def _kind(part: nn.Module) -> str | None:
    stock = _stock_class(part)
    if stock is nn.Linear:
        return "linear"
    if quantize.is_quantized(part):
        return "quantized"
    # Every architecture brings its own class; all are called something like LlamaRMSNorm, LayerNorm, MixtralTopKRouter.
    if stock.__name__.endswith("Router"):
        return "router"
    if all(isinstance(getattr(part, name, None), nn.Module) for name in GATED_MLP):
        return "mlp"
    if residual_norm.is_pre_norm(part):
        children = [_kind(child) for child in part.children()]
        return "decoder" if children.count("norm") == 2 and "mlp" in children else None
    return "norm" if stock.__name__.endswith("Norm") else None


def _use_residual_norm(hidden_states: Tensor) -> bool:
    return hidden_states.is_cuda and not torch.is_grad_enabled()


def _matrix(part: nn.Module, weight: Tensor) -> bool:
    return weight.ndim >= 2 and not isinstance(part, nn.Embedding)


@cache
def _patched_class(stock: type[nn.Module], kind: str) -> type[nn.Module]:
    """A subclass of a module's class that differs only in its forward."""

    def linear(self: Any, input: Tensor) -> Tensor:
        out: Tensor | None = None
        if input.is_cuda and (shared := getattr(self, "shared_input", None)) is not None:
            group, index = shared
            out = group.output(index, input)
        return self.kernels.linear(input, self.weight, self.bias) if out is None else out

    def quantized(self: Any, x: Tensor) -> Tensor:
        return quantize.linear(self, x)

    def norm(self: Any, hidden_states: Tensor) -> Tensor:
        ahead = residual_norm.normed_ahead(self, hidden_states)
        out: Tensor = (
            self.kernels.norm(stock.forward, self, hidden_states) if ahead is None else ahead
        )
        return out

    def mlp(self: Any, x: Tensor) -> Tensor:
        out: Tensor = self.kernels.mlp(stock.forward, self, x)
        return out

    def router(self: Any, *args: Any, **options: Any) -> Any:
        return routing.route(
            partial(stock.forward, self, *args, **options), self.router_index, stock.__name__
        )

    def decoder(self: Any, hidden_states: Tensor, *args: Any, **options: Any) -> Tensor:
        if not args and _use_residual_norm(hidden_states):
            return residual_norm.forward(self, hidden_states, **options)
        out: Tensor = stock.forward(self, hidden_states, *args, **options)
        return out

    forwards: dict[str, Callable[..., Any]] = {
        "linear": linear,
        "quantized": quantized,
        "norm": norm,
        "mlp": mlp,
        "router": router,
        "decoder": decoder,
    }
    forward = forwards[kind]
    return type(
        f"Patched{stock.__name__}",
        (stock,),
        {"forward": forward, "stock": stock, "__module__": __name__},
    )
