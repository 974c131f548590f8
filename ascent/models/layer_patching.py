"""The four places where a model's arithmetic passes through our hands: linear, norm, attention, head. And routers.

They are put in place when a model is loaded. Each has one form today, called fast: the library's own arithmetic. An
exact form (the same bits whatever the batch) will be a second `Form` behind the same switch. The modules' code is left
alone: a linear or norm module is given a subclass of its own class whose forward asks the form, so weights, names,
copies and `isinstance` stay what they were. Attention is swapped by name (see `attention`), and `head` is what turns
hidden states into float32 logits wherever log-probs are computed. What routers choose can be noted and given (see
`routing`).

Where no gradient is wanted on CUDA, norms and rotary embeddings run in one kernel each instead of seven and ten, with
the stock roundings, if the stock code proves to be one of the formulas known here.
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

from ascent.models import attention, routing

ROTARY = "apply_rotary_pos_emb"  # the name under which every architecture has it
Bare = Callable[[Any, Tensor], Tensor]  # a module class's own forward: (module, input) -> output


@dataclass(frozen=True)
class Form:
    """One way to do the arithmetic: linear layers, norms, and the product that gives logits."""

    name: str
    linear: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    norm: Callable[[Bare, nn.Module, Tensor], Tensor]
    product: Callable[[Tensor, Tensor], Tensor]


class PatchedLayers(NamedTuple):
    """What a model's forward now passes through, and the weight matrices that it does not reach."""

    form: str
    linears: int
    norms: int
    beyond: tuple[str, ...]


def wide_product(a_NK: Tensor, b_KM: Tensor) -> Tensor:
    """a @ b, summed and returned in float32 at least.

    On CUDA a half-precision pair runs on the tensor cores, whose products are exact and whose sums are float32; the
    result is kept that way. Elsewhere, or where a gradient is wanted (that product has none), both sides are widened.
    """
    half = a_NK.dtype == b_KM.dtype and a_NK.dtype in (torch.bfloat16, torch.float16)
    trained = torch.is_grad_enabled() and (a_NK.requires_grad or b_KM.requires_grad)
    if half and a_NK.is_cuda and not trained:
        return torch.mm(a_NK, b_KM, out_dtype=torch.float32)
    wide = torch.promote_types(torch.promote_types(a_NK.dtype, b_KM.dtype), torch.float32)
    return a_NK.to(wide) @ b_KM.to(wide)


def fast_norm(bare: Bare, module: nn.Module, x: Tensor) -> Tensor:
    """The module's own norm; without gradient on CUDA the same in one kernel, where its formula is known."""
    if not x.is_cuda or torch.is_grad_enabled():
        return bare(module, x)
    from ascent.models.norm_cuda import formula_of, rms_norm  # triton exists on CUDA machines alone

    if not hasattr(module, "formula"):
        module.formula = formula_of(bare, module)  # type: ignore[assignment]
    known: Any = module.formula
    weight: Any = module.weight
    return bare(module, x) if known is None else rms_norm(x, weight, known[1], known[0])


@cache
def fast_rotary(bare: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., tuple[Tensor, Tensor]]:
    """transformers' function that rotates queries and keys; without gradient on CUDA the same bits in one kernel."""
    equal: list[bool] = []  # filled at the first call: is `bare` the formula that the kernel knows?

    @wraps(bare)
    def rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *more: Any, **others: Any) -> tuple[Tensor, Tensor]:
        if not q.is_cuda or torch.is_grad_enabled() or more or others:
            return bare(q, k, cos, sin, *more, **others)
        from ascent.models.rotary_cuda import can_rotate, rotate

        if not can_rotate(q, k, cos) or equal == [False]:
            return bare(q, k, cos, sin)
        if not equal:
            pairs = zip(bare(q, k, cos, sin), rotate(q, k, cos, sin), strict=True)
            equal.append(all(torch.equal(own, ours) for own, ours in pairs))
            return bare(q, k, cos, sin)
        return rotate(q, k, cos, sin)

    rotary.bare = bare  # type: ignore[attr-defined]
    return rotary


FAST = Form("fast", linear=F.linear, norm=fast_norm, product=wide_product)
FORMS = {FAST.name: FAST}


def patch_layers(module: PreTrainedModel, form: str = "fast") -> PatchedLayers:
    """Put the seams in place. Calling it again (after LoRA added layers, say) reaches what is new."""
    if form not in FORMS:
        raise ValueError(f"form={form!r} does not exist; the arithmetic comes in: {', '.join(FORMS)}")
    # On ARM, oneDNN takes float32 products over from the BLAS from 9 rows on: up to 6 times slower for small matrices,
    # never faster, and with another order of summation, so that a row's bits would depend on its batch.
    torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
    module.set_attn_implementation(attention.NAME)
    counts = {"linear": 0, "norm": 0, "router": 0}
    beyond = []
    for name, part in module.named_modules():
        kind = _kind(part)
        if kind not in ("linear", "norm"):
            beyond += [f"{name}.{own}" for own, weight in part.named_parameters(recurse=False) if _matrix(part, weight)]
        if kind is None:
            continue
        part.__class__ = _seamed(_bare(part), kind)  # type: ignore[arg-type]
        part.form, part.place = FORMS[form], counts[kind]
        counts[kind] += 1
    for source in {type(part).__module__ for part in module.modules()}:
        modelling = sys.modules[source]
        if callable(rotary := getattr(modelling, ROTARY, None)):
            setattr(modelling, ROTARY, fast_rotary(getattr(rotary, "bare", rotary)))
    return PatchedLayers(form, counts["linear"], counts["norm"], tuple(beyond))


def _bare(part: nn.Module) -> type[nn.Module]:
    """The class a module had before it was given seams."""
    bare: type[nn.Module] = getattr(type(part), "bare", type(part))
    return bare


def _kind(part: nn.Module) -> str | None:
    bare = _bare(part)
    if bare is nn.Linear:
        return "linear"
    # Every architecture brings its own class; all are called something like LlamaRMSNorm, LayerNorm, MixtralTopKRouter.
    if bare.__name__.endswith("Router"):
        return "router"
    return "norm" if bare.__name__.endswith("Norm") else None


def _matrix(part: nn.Module, weight: Tensor) -> bool:
    return weight.ndim >= 2 and not isinstance(part, nn.Embedding)


@cache
def _seamed(bare: type[nn.Module], kind: str) -> type[nn.Module]:
    """A subclass of a module's class that differs in its forward alone."""

    def linear(self: Any, input: Tensor) -> Tensor:
        out: Tensor = self.form.linear(input, self.weight, self.bias)
        return out

    def norm(self: Any, hidden_states: Tensor) -> Tensor:
        out: Tensor = self.form.norm(bare.forward, self, hidden_states)
        return out

    def router(self: Any, *args: Any, **options: Any) -> Any:
        return routing.route(partial(bare.forward, self, *args, **options), self.place, bare.__name__)

    forward = {"linear": linear, "norm": norm, "router": router}[kind]
    return type(f"Seamed{bare.__name__}", (bare,), {"forward": forward, "bare": bare, "__module__": __name__})
