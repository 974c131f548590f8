"""The attention function of every model, and the context it reads.

It is registered with transformers under the name "ascent", and as "ascent_exact" with the kernels of
`exact_attention_cuda`. What it must know beyond queries, keys and values (which
tokens form a sequence) is in a frozen context that the caller enters around the forward; a forward without one is an
error. `PackedContext` is for training: T tokens of several sequences on one axis, with causal attention inside each
sequence. Prefill and decode have their own contexts (see `paged_attention`).

Axes: T flat tokens, H query heads, K key/value heads, D head size, N sequences of one size, Q their queries, L their
keys.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

from ascent.maths.segments import Segments
from ascent.models.flash_attention import FlashAttention
from ascent.models.shared_prefix import GatherIndex, SharedPrefixes, gather, gather_index, upload

NAME, EXACT_NAME = "ascent", "ascent_exact"
LARGEST_FLASH_HEAD, FLASH_HEAD_STEP = 256, 8  # sizes of heads that the flash kernel takes

# Arguments of models that do not change the result of attention.
IGNORED = frozenset(
    {
        "position_ids",
        "position_embeddings",
        "cache_position",
        "use_cache",
        "output_hidden_states",
        "layer_idx",
    }
    | {
        "output_attentions",
        "return_dict",
        "output_router_logits",
        "logits_to_keep",
        "num_items_in_batch",
    }
)


class Context(Protocol):
    """The context of a forward: how many tokens it runs, and how a layer attends."""

    @property
    def total(self) -> int: ...

    def attend(
        self, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, call: AttentionCall
    ) -> Tensor: ...


@dataclass(frozen=True)
class PackedContext:
    """Training: the offsets of each sequence on the flat axis. Empty sequences are left out.

    With shared prefixes a sequence runs only its own tokens, so it has more keys than queries.
    """

    offsets: Tensor  # cumulative numbers of queries, int32, on the model's device, as the flash kernel takes them
    key_offsets: Tensor  # and of keys
    groups: tuple[
        tuple[int, int, int], ...
    ]  # (sequences, queries and keys of each): one SDPA call per group
    flash_keys: GatherIndex | None  # gathers every sequence's keys; None without shared prefixes
    sdpa_queries: GatherIndex | None  # sorts by group; None if already sorted
    sdpa_keys: GatherIndex | None
    calls: list[AttentionCall] | None = (
        None  # if given, filled with one call per layer (see `probe`)
    )
    masks: dict[tuple[int, int, int | None], Tensor] = field(
        default_factory=dict
    )  # those of SDPA, for all layers

    @property
    def total(self) -> int:
        return sum(count * queries for count, queries, _ in self.groups)

    @property
    def max_len(self) -> int:
        return max(keys for _, _, keys in self.groups)

    def mask(self, queries: int, length: int, window: int | None, device: torch.device) -> Tensor:
        """Row q, column k: true where the last `queries` tokens of a sequence attend to its token k."""
        key = queries, length, window
        if key not in self.masks:
            self.masks[key] = _visible_mask(length, window, device)[-queries:]
        return self.masks[key]

    def attend(self, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, call: AttentionCall) -> Tensor:
        if self.calls is not None:
            self.calls.append(call)
        if call.exact:
            return _exact(q_THD, k_TKD, v_TKD, self, call)
        kernel = _flash if _flash_supports(q_THD, v_TKD, call) else _sdpa
        return kernel(q_THD, k_TKD, v_TKD, self, call)


@dataclass(frozen=True)
class AttentionCall:
    """The parameters of one layer's attention, besides its tensors."""

    scaling: float
    window: int | None  # a token attends to at most this many, itself included
    softcap: float | None  # scores become softcap * tanh(score / softcap)
    dropout: float
    layer: int  # its index in the KV cache
    heads: tuple[int, int, int]  # key/value heads, size of a key, size of a value
    sinks_H: Tensor | None = None  # per head: the score of an extra key whose value is 0
    exact: bool = False  # in one order of summation, for training and sampling alike


def packed_context(
    segments: Segments, device: torch.device, prefixes: SharedPrefixes | None = None
) -> PackedContext:
    """The context of one packed batch, for all layers."""
    lengths = segments.lengths_B.tolist()
    shared_lens = prefixes.shared_lens if prefixes else [0] * len(lengths)
    if not any(lengths):
        raise ValueError(
            "a packed batch of 0 tokens: nothing to run; drop batches in which every sequence is empty"
        )
    sizes = [(keys - shared, keys) for keys, shared in zip(lengths, shared_lens, strict=True)]
    rows = [row for row, (queries, _) in enumerate(sizes) if queries]
    offsets, key_offsets = (_offsets([sizes[row][n] for row in rows]) for n in (0, 1))
    by_size = sorted(rows, key=lambda row: (sizes[row][1], sizes[row][0]))
    counts = Counter(sizes[row] for row in by_size)
    groups = tuple((count, *size) for size, count in counts.items())
    flash_keys = sdpa_queries = sdpa_keys = None
    if by_size != rows:
        query_lens = [queries for queries, _ in sizes]
        sdpa_queries = sdpa_keys = gather_index(_ranges(query_lens, by_size), sum(query_lens))
    if prefixes is not None:
        flash_keys, sdpa_keys = (
            gather_index(prefixes.source_T[_ranges(lengths, order)], prefixes.computed_U.numel())
            for order in (rows, by_size)
        )
    return upload(
        PackedContext(offsets, key_offsets, groups, flash_keys, sdpa_queries, sdpa_keys), device
    )


def _offsets(lengths: Sequence[int]) -> Tensor:
    return torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)


def _ranges(lengths: Sequence[int], rows: Sequence[int]) -> Tensor:
    """The indices of these rows' tokens, row after row."""
    starts = _offsets(lengths).tolist()
    return torch.cat([torch.arange(starts[row], starts[row + 1]) for row in rows])


_current: ContextVar[Context | None] = ContextVar("attention context", default=None)
ContextEntry = tuple[ContextVar[Any], Any]  # a variable, and its value in the scope


class ContextVarScope:
    """Sets context variables and restores them on exit. Gradient checkpointing enters it again in the backward pass."""

    def __init__(self, *entries: ContextEntry) -> None:
        self._entries = entries
        self._tokens: list[list[Token[Any]]] = []

    def __enter__(self) -> None:
        self._tokens.append([variable.set(value) for variable, value in self._entries])

    def __exit__(self, *error: object) -> None:
        for token in self._tokens.pop():
            token.var.reset(token)


def context_entry(context: Context) -> ContextEntry:
    return _current, context


def attention_context(context: Context) -> ContextVarScope:
    """Run forwards in this context: with attention_context(context)."""
    return ContextVarScope(context_entry(context))


def current_context() -> Context:
    context = _current.get()
    if context is None:
        raise RuntimeError(
            "a forward pass without an attention context: the model cannot know which tokens form a sequence; "
            "go through LanguageModel.outputs, or enter attention_context(packed_context(segments, device))"
        )
    return context


def attention_forward(
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
    s_aux: Tensor | None = None,
    exact: bool = False,
    **extra: Any,
) -> tuple[Tensor, None]:
    """The attention function of transformers: (1, heads, T, D) in, (1, T, H, D) out."""
    _check_supported(module, attention_mask, is_causal, extra)
    context = current_context()
    if query.shape[:3:2] != (1, context.total) or key.shape[2] != context.total:
        raise ValueError(
            f"queries of shape {tuple(query.shape)} and {key.shape[2]} keys in a context of {context.total} tokens; "
            "the flat forward takes one row that holds all tokens of the batch, and no cache of transformers"
        )
    if query.shape[1] % key.shape[1]:
        raise ValueError(
            f"{query.shape[1]} query heads over {key.shape[1]} key/value heads; the first must be a multiple of the "
            "second: num_attention_heads and num_key_value_heads of the model's config do not fit"
        )
    heads = (key.shape[1], key.shape[-1], value.shape[-1])
    layer: Any = getattr(module, "layer_idx", None)
    scaling = scaling or query.shape[-1] ** -0.5
    call = AttentionCall(scaling, sliding_window, softcap, dropout, layer, heads, s_aux, exact)
    if softcap is not None and s_aux is not None:
        raise ValueError(
            f"{type(module).__name__} asks attention for sinks and a soft cap at once; use one of them"
        )
    q_THD, k_TKD, v_TKD = (x[0].transpose(0, 1) for x in (query, key, value))
    return context.attend(q_THD, k_TKD, v_TKD, call)[None], None


def _check_supported(
    module: nn.Module, mask: Tensor | None, is_causal: bool | None, extra: dict[str, Any]
) -> None:
    """Arguments that would change the result but are not supported are an error."""
    owner = type(module).__name__
    if mask is not None:
        raise ValueError(
            f"{owner} passes an attention mask of shape {tuple(mask.shape)}; the context alone defines the mask: "
            "give the model tokens without padding and no attention_mask"
        )
    causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    if not causal:
        raise ValueError(
            f"{owner} attends in both directions; only causal (decoder-only) models can be trained here"
        )
    unknown = sorted(
        name for name, value in extra.items() if value is not None and name not in IGNORED
    )
    if unknown:
        raise ValueError(
            f"{owner} asks attention for {', '.join(unknown)}, which is not supported (supported: scaling, "
            "sliding_window, softcap, sinks, dropout); use a model without it"
        )


def _flash_supports(q_THD: Tensor, v_TKD: Tensor, call: AttentionCall) -> bool:
    """The variable-length flash kernel takes half precision on CUDA, without dropout, soft caps or sinks."""
    return (
        q_THD.is_cuda
        and q_THD.dtype in (torch.bfloat16, torch.float16)
        and q_THD.shape[-1] == v_TKD.shape[-1] <= LARGEST_FLASH_HEAD
        and q_THD.shape[-1] % FLASH_HEAD_STEP == 0
        and call.softcap is None
        and call.sinks_H is None
        and call.dropout == 0
    )


def _flash(
    q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, context: PackedContext, call: AttentionCall
) -> Tensor:
    """The kernel aligns a sequence's queries with its last keys."""
    max_len = context.max_len
    left = -1 if call.window is None or call.window >= max_len else call.window - 1
    if context.flash_keys is not None:
        k_TKD, v_TKD = (gather(x, context.flash_keys) for x in (k_TKD, v_TKD))
    tensors = (q_THD.contiguous(), k_TKD, v_TKD, context.offsets, context.key_offsets)
    max_queries = max(queries for _, queries, _ in context.groups)
    out_THD: Tensor = FlashAttention.apply(*tensors, max_queries, max_len, call.scaling, left)
    return out_THD


def _exact(
    q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, context: PackedContext, call: AttentionCall
) -> Tensor:
    from ascent.models.exact_attention_cuda import (
        packed_attention,
    )  # triton exists on CUDA machines only

    if context.flash_keys is not None:
        k_TKD, v_TKD = (gather(x, context.flash_keys) for x in (k_TKD, v_TKD))
    return packed_attention(
        *(q_THD, k_TKD, v_TKD, context.offsets, context.key_offsets),
        max_queries=max(queries for _, queries, _ in context.groups),
        max_len=context.max_len,
        scaling=call.scaling,
    )


def _sdpa(
    q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, context: PackedContext, call: AttentionCall
) -> Tensor:
    """SDPA on all sequences of one size at a time. No score between two sequences is computed."""
    q_THD, repeats = gather(q_THD, context.sdpa_queries), q_THD.shape[1] // k_TKD.shape[1]
    k_THD, v_THD = (
        gather(x, context.sdpa_keys).repeat_interleave(repeats, 1) for x in (k_TKD, v_TKD)
    )
    queries, keys = ([count * size[n] for count, *size in context.groups] for n in (0, 1))
    pieces = zip(
        context.groups, q_THD.split(queries), k_THD.split(keys), v_THD.split(keys), strict=True
    )
    out_THD = torch.cat([_sdpa_group(group, q, k, v, context, call) for group, q, k, v in pieces])
    back = context.sdpa_queries
    return (
        out_THD
        if back is None
        else gather(out_THD, back._replace(source_T=back.sorted_T, sorted_T=back.source_T))
    )


def _sdpa_group(
    group: tuple[int, int, int],
    q_THD: Tensor,
    k_THD: Tensor,
    v_THD: Tensor,
    context: PackedContext,
    call: AttentionCall,
) -> Tensor:
    count, queries, length = group
    q_NHQD = q_THD.unflatten(0, (count, queries)).transpose(1, 2)
    k_NHLD, v_NHLD = (x.unflatten(0, (count, length)).transpose(1, 2) for x in (k_THD, v_THD))
    visible_QL = None
    needs_scores = call.softcap is not None or call.sinks_H is not None
    if queries < length or needs_scores or (call.window is not None and call.window < length):
        visible_QL = context.mask(queries, length, call.window, q_THD.device)
    if call.sinks_H is not None:
        assert visible_QL is not None
        q_NHQD, k_NHLD, v_NHLD = with_sink(
            q_NHQD, k_NHLD, v_NHLD, call.sinks_H[:, None, None] / call.scaling
        )
        visible_QL = F.pad(visible_QL, (0, 1), value=True)
    if call.softcap is None:
        out_NHQD = F.scaled_dot_product_attention(
            *(q_NHQD, k_NHLD, v_NHLD),
            attn_mask=visible_QL,
            is_causal=visible_QL is None,
            dropout_p=call.dropout,
            scale=call.scaling,
        )
    else:
        assert visible_QL is not None
        scores_NHQL = (q_NHQD @ k_NHLD.mT) * call.scaling
        scores_NHQL = (scores_NHQL / call.softcap).tanh() * call.softcap
        weights_NHQL = (
            scores_NHQL.masked_fill(~visible_QL, -torch.inf).float().softmax(-1).to(q_THD.dtype)
        )
        out_NHQD = F.dropout(weights_NHQL, call.dropout) @ v_NHLD
    return out_NHQD.transpose(1, 2).flatten(0, 1)


def with_sink(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values (..., tokens, size) with one more key, whose score is `sinks` and whose value is 0.

    Queries get a coordinate that holds the sink, keys one that is 0 in all but the last, so any kernel can be used.
    """
    last = F.pad(torch.ones_like(k[..., :1, :1]), (k.shape[-1], 0))
    q = torch.cat([q, sinks.to(q.dtype).expand(*q.shape[:-1], 1)], -1)
    return q, torch.cat([F.pad(k, (0, 1)), last], -2), F.pad(v, (0, 0, 0, 1))


def _visible_mask(length: int, window: int | None, device: torch.device) -> Tensor:
    """Row q, column k: true where token q attends to token k of its own sequence."""
    ones_LL = torch.ones(length, length, dtype=torch.bool, device=device).tril()
    return ones_LL if window is None else ones_LL.triu(1 - window)


# For a name without a mask function transformers builds no mask of size T x T.
AttentionInterface.register(NAME, attention_forward)
AttentionInterface.register(EXACT_NAME, partial(attention_forward, exact=True))
