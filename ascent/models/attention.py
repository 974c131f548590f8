"""The one attention function of every model, and the context it reads.

It is registered with transformers under the name "ascent". What a call must know beyond queries, keys and values (which
tokens belong together) lies in a frozen context that the caller enters around the forward pass; a forward without one
is an error. `Packed` is the context of the mode called train: T tokens of several sequences on one axis, each token
seeing itself and what came before it in its own sequence. Prefill and decode are contexts of their own (see `paged`).

Axes: T flat tokens, H query heads, K key/value heads, D head size, N sequences of one size, Q their queries, L their
keys.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
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
from ascent.models.shared_prefix import Moves, SharedPrefixes, moved, moves

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
    """Mode train: where each sequence lies on the flat axis. Sequences of no tokens are left out.

    Where sequences begin alike (see `alike`), each runs what it has of its own, so it has more keys than queries.
    """

    offsets: Tensor  # cumulative numbers of queries, int32, on the model's device: the form of the flash kernel
    key_offsets: Tensor  # and of keys
    blocks: tuple[tuple[int, int, int], ...]  # (how many sequences, their queries, their keys): what SDPA runs at once
    keys: Moves | None  # gather every sequence's keys; None where each has its own
    queries_by_block: Moves | None  # sort by block; None where they already are
    keys_by_block: Moves | None
    calls: list[Call] | None = None  # where given, each layer leaves what it asked for (the check at load reads it)

    @property
    def total(self) -> int:
        """How many tokens are run."""
        return sum(count * queries for count, queries, _ in self.blocks)

    @property
    def longest(self) -> int:
        return max(keys for _, _, keys in self.blocks)

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
    sinks_H: Tensor | None = None  # the score, one a head, of a key that every token sees and whose value is 0


def packed(segments: Segments, device: torch.device, alike: SharedPrefixes | None = None) -> Packed:
    """The context for one packed batch. Reads the lengths once; nothing here depends on the layer."""
    every = segments.lengths_B.tolist()
    taken = alike.taken if alike else [0] * len(every)
    if not any(every):
        raise ValueError("a packed batch of 0 tokens: nothing to run; drop batches in which every sequence is empty")
    sizes = [(keys - less, keys) for keys, less in zip(every, taken, strict=True)]
    rows = [row for row, (queries, _) in enumerate(sizes) if queries]
    offsets, key_offsets = (_offsets([sizes[row][n] for row in rows]) for n in (0, 1))
    by_block = sorted(rows, key=lambda row: (sizes[row][1], sizes[row][0]))
    counts = Counter(sizes[row] for row in by_block)
    blocks = tuple((count, *size) for size, count in counts.items())
    keys = None if alike is None else moves(alike.places_T[_ranges(every, rows).to(device)], alike.kept_U.numel())
    queries_by_block = keys_by_block = None
    if by_block != rows:
        run = [queries for queries, _ in sizes]
        queries_by_block = moves(_ranges(run, by_block).to(device), sum(run))
        keys_by_block = queries_by_block
    if alike is not None:
        keys_by_block = moves(alike.places_T[_ranges(every, by_block).to(device)], alike.kept_U.numel())
    return Packed(offsets.to(device), key_offsets.to(device), blocks, keys, queries_by_block, keys_by_block)


def _offsets(lengths: Sequence[int]) -> Tensor:
    return torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)


def _ranges(lengths: Sequence[int], rows: Sequence[int]) -> Tensor:
    """The places of these rows' tokens, row after row."""
    starts = _offsets(lengths).tolist()
    return torch.cat([torch.arange(starts[row], starts[row + 1]) for row in rows])


_current: ContextVar[Context | None] = ContextVar("attention context", default=None)


Entry = tuple[ContextVar[Any], Any]  # a variable, and what it holds inside


class Entered:
    """Variables that hold something inside; then what was before is restored. Recomputation enters it again."""

    def __init__(self, *entries: Entry) -> None:
        self._entries = entries
        self._tokens: list[list[Token[Any]]] = []

    def __enter__(self) -> None:
        self._tokens.append([variable.set(value) for variable, value in self._entries])

    def __exit__(self, *error: object) -> None:
        for token in self._tokens.pop():
            token.var.reset(token)


def entry(context: Context) -> Entry:
    return _current, context


def attending(context: Context) -> Entered:
    """Run forwards under this context: with attending(context)."""
    return Entered(entry(context))


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
    s_aux: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """What transformers calls in every layer: (1, heads, T, D) in, (1, T, H, D) out."""
    _refuse(module, attention_mask, is_causal, others)
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
    call = Call(scaling or query.shape[-1] ** -0.5, sliding_window, softcap, dropout, layer, heads, s_aux)
    if softcap is not None and s_aux is not None:
        raise ValueError(f"{type(module).__name__} asks attention for sinks and a soft cap at once; use one of them")
    q_THD, k_TKD, v_TKD = (x[0].transpose(0, 1) for x in (query, key, value))
    return context.attend(q_THD, k_TKD, v_TKD, call)[None], None


def _refuse(module: nn.Module, mask: Tensor | None, is_causal: bool | None, others: dict[str, Any]) -> None:
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
            "sliding_window, softcap, sinks, dropout); use a model without it"
        )


def _flash_can(q_THD: Tensor, v_TKD: Tensor, call: Call) -> bool:
    """The variable-length flash kernel takes half precision on CUDA, and neither dropout nor soft caps nor sinks."""
    return (
        q_THD.is_cuda
        and q_THD.dtype in (torch.bfloat16, torch.float16)
        and q_THD.shape[-1] == v_TKD.shape[-1] <= LARGEST_FLASH_HEAD
        and call.softcap is None
        and call.sinks_H is None
        and call.dropout == 0
    )


def _flash(q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, context: Packed, call: Call) -> Tensor:
    """A sequence's queries are its last tokens: the kernel aligns them with its last keys."""
    longest = context.longest
    left = -1 if call.window is None or call.window >= longest else call.window - 1
    k_TKD, v_TKD = (moved(x.contiguous(), context.keys) for x in (k_TKD, v_TKD))
    tensors = (q_THD.contiguous(), k_TKD, v_TKD, context.offsets, context.key_offsets)
    most = max(queries for _, queries, _ in context.blocks)
    out_THD = varlen_attn(*tensors, most, longest, scale=call.scaling, window_size=(left, 0), **GROUPED_HEADS)
    assert isinstance(out_THD, Tensor)
    return out_THD


def _by_length(q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, context: Packed, call: Call) -> Tensor:
    """SDPA on all sequences of one size at a time. No score between two sequences is ever computed."""
    q_THD = moved(q_THD, context.queries_by_block)
    k_TKD, v_TKD = (moved(x, context.keys_by_block) for x in (k_TKD, v_TKD))
    queries, keys = ([count * size[n] for count, *size in context.blocks] for n in (0, 1))
    pieces = zip(context.blocks, q_THD.split(queries), k_TKD.split(keys), v_TKD.split(keys), strict=True)
    out_THD = torch.cat([_block(block, q, k, v, call) for block, q, k, v in pieces])
    back = context.queries_by_block
    return out_THD if back is None else moved(out_THD, Moves(back.back_T, back.places_T, None))


def _block(block: tuple[int, int, int], q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, call: Call) -> Tensor:
    count, queries, length = block
    heads, repeats = q_THD.shape[1], q_THD.shape[1] // k_TKD.shape[1]
    q_NHQD = q_THD.unflatten(0, (count, queries)).transpose(1, 2)
    k_NHLD, v_NHLD = (
        x.unflatten(0, (count, length)).transpose(1, 2).repeat_interleave(repeats, 1) for x in (k_TKD, v_TKD)
    )
    seen_QL = None
    scored = call.softcap is not None or call.sinks_H is not None
    if queries < length or scored or (call.window is not None and call.window < length):
        seen_QL = _visible(length, call.window, q_THD.device)[-queries:]
    if call.sinks_H is not None:
        assert seen_QL is not None
        q_NHQD, k_NHLD, v_NHLD = with_sink(q_NHQD, k_NHLD, v_NHLD, call.sinks_H[:, None, None] / call.scaling)
        seen_QL = F.pad(seen_QL, (0, 1), value=True)
    if call.softcap is None:
        out_NHQD = F.scaled_dot_product_attention(
            *(q_NHQD, k_NHLD, v_NHLD),
            attn_mask=seen_QL,
            is_causal=seen_QL is None,
            dropout_p=call.dropout,
            scale=call.scaling,
        )
    else:
        assert seen_QL is not None
        scores_NHQL = (q_NHQD @ k_NHLD.mT) * call.scaling
        scores_NHQL = (scores_NHQL / call.softcap).tanh() * call.softcap
        weights_NHQL = scores_NHQL.masked_fill(~seen_QL, -torch.inf).float().softmax(-1).to(q_THD.dtype)
        out_NHQD = F.dropout(weights_NHQL, call.dropout) @ v_NHLD
    return out_NHQD.transpose(1, 2).reshape(count * queries, heads, -1)


def with_sink(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values (..., tokens, size) with one key more, whose score is `sinks` and whose value is 0.

    Queries get a coordinate that holds the sink, and keys one that is 0 in all but the last: so any attention will do.
    """
    last = F.pad(torch.ones_like(k[..., :1, :1]), (k.shape[-1], 0))
    q = torch.cat([q, sinks.to(q.dtype).expand(*q.shape[:-1], 1)], -1)
    return q, torch.cat([F.pad(k, (0, 1)), last], -2), F.pad(v, (0, 0, 0, 1))


def _visible(length: int, window: int | None, device: torch.device) -> Tensor:
    """Row q, column k: true where token q sees token k of its own sequence."""
    ones_LL = torch.ones(length, length, dtype=torch.bool, device=device).tril()
    return ones_LL if window is None else ones_LL.triu(1 - window)


# Under a name that has no mask function, transformers builds no mask: nothing of size T x T exists.
AttentionInterface.register(NAME, attend)
