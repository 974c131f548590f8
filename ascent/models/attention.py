"""The one attention function of every model, and the context it reads.

It is registered with transformers under the name "ascent". What a call must know beyond queries, keys and values (which
tokens belong together) lies in a frozen context that the caller enters around the forward pass; a forward without one
is an error. `Packed` is the context of the mode called train: T tokens of several sequences on one axis, each token
seeing itself and what came before it in its own sequence. Prefill and decode are contexts of their own (see `paged`).

Axes: T flat tokens, H query heads, K key/value heads, D head size, N sequences of one length, L that length.
"""

from __future__ import annotations

from contextvars import ContextVar, Token
from dataclasses import dataclass
from inspect import signature
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface

from ascent.maths.segments import Segments

NAME = "ascent"
LARGEST_FLASH_HEAD = 256
# The flash kernel has always taken fewer key/value heads than query heads; torch 2.12 began to ask for a word about it.
GROUPED_HEADS: dict[str, Any] = {"enable_gqa": True} if "enable_gqa" in signature(varlen_attn).parameters else {}

# What models hand on to attention without any meaning for its result.
IGNORED = frozenset(
    {"position_ids", "position_embeddings", "cache_position", "use_cache", "output_hidden_states", "layer_idx"}
    | {"output_attentions", "return_dict", "output_router_logits", "logits_to_keep", "num_items_in_batch"}
)


class Context(Protocol):
    """What a forward runs under: how many tokens it holds, and how one layer attends."""

    @property
    def total(self) -> int: ...

    def attend(self, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, call: Call) -> Tensor: ...


@dataclass(frozen=True)
class Packed:
    """Mode train: where each sequence lies on the flat axis. Sequences of no tokens are left out."""

    offsets: Tensor  # cumulative lengths, int32, on the model's device: the form of the flash kernel
    longest: int
    blocks: tuple[tuple[int, int], ...]  # (how many sequences, their length), by length: what SDPA runs at once
    order_T: Tensor | None  # tokens sorted by the length of their sequence; None where they already are
    back_T: Tensor | None  # the inverse of `order_T`
    calls: list[Call] | None = None  # where given, each layer leaves what it asked for (the check at load reads it)

    @property
    def total(self) -> int:
        return sum(count * length for count, length in self.blocks)

    def attend(self, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, call: Call) -> Tensor:
        if self.calls is not None:
            self.calls.append(call)
        form = _flash if _flash_can(q_THD, v_TKD, call) else _by_length
        return form(q_THD, k_TKD, v_TKD, self, call)


@dataclass(frozen=True)
class Call:
    """What one layer asks of attention, besides its tensors."""

    scaling: float
    window: int | None  # a token sees at most this many, itself included
    softcap: float | None  # scores become softcap * tanh(score / softcap)
    dropout: float
    layer: int  # its number, by which a cache is kept
    heads: tuple[int, int, int]  # key/value heads, size of a key, size of a value: what a cache must hold


def packed(segments: Segments, device: torch.device) -> Packed:
    """The context for one packed batch. Reads the lengths once; nothing here depends on the layer."""
    lengths = [length for length in segments.lengths_B.tolist() if length > 0]
    if not lengths:
        raise ValueError("a packed batch of 0 tokens: nothing to run; drop batches in which every sequence is empty")
    offsets = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    blocks = tuple((lengths.count(length), length) for length in sorted(set(lengths)))
    if lengths == sorted(lengths):
        return Packed(offsets.to(device), max(lengths), blocks, None, None)
    by_length = sorted(range(len(lengths)), key=lambda i: lengths[i])
    starts = offsets.tolist()
    order_T = torch.cat([torch.arange(starts[i], starts[i + 1]) for i in by_length])
    back_T = torch.empty_like(order_T)
    back_T[order_T] = torch.arange(order_T.numel())
    return Packed(offsets.to(device), max(lengths), blocks, order_T.to(device), back_T.to(device))


_current: ContextVar[Context | None] = ContextVar("attention context", default=None)


class attending:  # reads as a statement: with attending(context)
    """Run forwards under this context; the one before is restored. May be entered again, as recomputation does."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self._tokens: list[Token[Context | None]] = []

    def __enter__(self) -> None:
        self._tokens.append(_current.set(self.context))

    def __exit__(self, *error: object) -> None:
        _current.reset(self._tokens.pop())


def current() -> Context:
    context = _current.get()
    if context is None:
        raise RuntimeError(
            "a forward pass without an attention context: the model cannot know which tokens belong together; "
            "go through LanguageModel.outputs, or enter ascent.models.attention.attending(packed(segments, device))"
        )
    return context


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """What transformers calls in every layer: (1, heads, T, D) in, (1, T, H, D) out."""
    _refuse(module, query, attention_mask, is_causal, others)
    context = current()
    if query.shape[:3:2] != (1, context.total) or key.shape[2] != context.total:
        raise ValueError(
            f"queries of shape {tuple(query.shape)} and {key.shape[2]} keys under a context of {context.total} tokens; "
            "the flat forward takes one row that holds all tokens of the batch, and no cache of transformers"
        )
    if query.shape[1] % key.shape[1]:
        raise ValueError(
            f"{query.shape[1]} query heads over {key.shape[1]} key/value heads; the first must be a multiple of the "
            "second: num_attention_heads and num_key_value_heads of the model's config do not fit"
        )
    heads = (key.shape[1], key.shape[-1], value.shape[-1])
    layer: Any = getattr(module, "layer_idx", None)
    call = Call(scaling or query.shape[-1] ** -0.5, sliding_window, softcap, dropout, layer, heads)
    q_THD, k_TKD, v_TKD = (x[0].transpose(0, 1) for x in (query, key, value))
    return context.attend(q_THD, k_TKD, v_TKD, call)[None], None


def _refuse(
    module: nn.Module, query: Tensor, mask: Tensor | None, is_causal: bool | None, others: dict[str, Any]
) -> None:
    """Whatever would change the result and is not honoured here is an error, by name."""
    owner = type(module).__name__
    if mask is not None:
        raise ValueError(
            f"{owner} passes an attention mask of shape {tuple(mask.shape)}; the context alone decides who sees whom: "
            "give the model tokens without padding and no attention_mask"
        )
    causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    if not causal:
        raise ValueError(f"{owner} attends in both directions; only causal (decoder-only) models can be trained here")
    unknown = sorted(name for name, given in others.items() if given is not None and name not in IGNORED)
    if unknown:
        raise ValueError(
            f"{owner} asks attention for {', '.join(unknown)}, which is not supported (supported: scaling, "
            "sliding_window, softcap, dropout); use a model without it"
        )


def _flash_can(q_THD: Tensor, v_TKD: Tensor, call: Call) -> bool:
    """The variable-length flash kernel takes half precision on CUDA, and neither dropout nor soft caps."""
    return (
        q_THD.is_cuda
        and q_THD.dtype in (torch.bfloat16, torch.float16)
        and q_THD.shape[-1] == v_TKD.shape[-1] <= LARGEST_FLASH_HEAD
        and call.softcap is None
        and call.dropout == 0
    )


def _flash(q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, context: Packed, call: Call) -> Tensor:
    left = -1 if call.window is None or call.window >= context.longest else call.window - 1
    q_THD, k_TKD, v_TKD = q_THD.contiguous(), k_TKD.contiguous(), v_TKD.contiguous()
    offsets, longest = context.offsets, context.longest
    tensors = (q_THD, k_TKD, v_TKD, offsets, offsets)
    out_THD = varlen_attn(*tensors, longest, longest, scale=call.scaling, window_size=(left, 0), **GROUPED_HEADS)
    assert isinstance(out_THD, Tensor)
    return out_THD


def _by_length(q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, context: Packed, call: Call) -> Tensor:
    """SDPA on all sequences of one length at a time. No score between two sequences is ever computed."""
    if context.order_T is not None:
        q_THD, k_TKD, v_TKD = (x.index_select(0, context.order_T) for x in (q_THD, k_TKD, v_TKD))
    sizes = [count * length for count, length in context.blocks]
    pieces = zip(context.blocks, q_THD.split(sizes), k_TKD.split(sizes), v_TKD.split(sizes), strict=True)
    out_THD = torch.cat([_block(block, q, k, v, call) for block, q, k, v in pieces])
    return out_THD if context.back_T is None else out_THD.index_select(0, context.back_T)


def _block(block: tuple[int, int], q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, call: Call) -> Tensor:
    count, length = block
    heads, repeats = q_THD.shape[1], q_THD.shape[1] // k_TKD.shape[1]
    q_NHLD = q_THD.unflatten(0, block).transpose(1, 2)
    k_NHLD, v_NHLD = (x.unflatten(0, block).transpose(1, 2).repeat_interleave(repeats, 1) for x in (k_TKD, v_TKD))
    seen_LL = None
    if call.softcap is not None or (call.window is not None and call.window < length):
        seen_LL = _visible(length, call.window, q_THD.device)
    if call.softcap is None:
        out_NHLD = F.scaled_dot_product_attention(
            *(q_NHLD, k_NHLD, v_NHLD),
            attn_mask=seen_LL,
            is_causal=seen_LL is None,
            dropout_p=call.dropout,
            scale=call.scaling,
        )
    else:
        assert seen_LL is not None
        scores_NHLL = (q_NHLD @ k_NHLD.mT) * call.scaling
        scores_NHLL = (scores_NHLL / call.softcap).tanh() * call.softcap
        weights_NHLL = scores_NHLL.masked_fill(~seen_LL, -torch.inf).float().softmax(-1).to(q_THD.dtype)
        out_NHLD = F.dropout(weights_NHLL, call.dropout) @ v_NHLD
    return out_NHLD.transpose(1, 2).reshape(count * length, heads, -1)


def _visible(length: int, window: int | None, device: torch.device) -> Tensor:
    """Row q, column k: true where token q sees token k of its own sequence."""
    ones_LL = torch.ones(length, length, dtype=torch.bool, device=device).tril()
    return ones_LL if window is None else ones_LL.triu(1 - window)


# Under a name that has no mask function, transformers builds no mask: nothing of size T x T exists.
AttentionInterface.register(NAME, attend)
