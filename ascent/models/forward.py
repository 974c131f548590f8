"""One forward pass over a packed batch: hidden states once, then the outputs computed from them.

Axes: T flat tokens, B sequences, D hidden size, N rows whose head is needed. Outputs per token are aligned with the
token they are about (decision 0003): `logprobs_T`, `entropy_T` and `log_collision_T` at a token come from the
distribution it was sampled from, `values_T` from the state before it; all are 0 at a sequence's first token. `scores_B`
is read at a sequence's last token, and is NaN for an empty sequence.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ascent.maths.batch import PackedBatch
from ascent.maths.segments import Segments
from ascent.models import shared_prefix
from ascent.models.attention import attention_context, packed_context
from ascent.models.chunked_logits import ChunkedLogits
from ascent.models.fused_logprobs import BUDGET_BYTES, Head, fused_logprobs
from ascent.models.layer_patching import wide_product
from ascent.models.routing import RoutingReplay, capture_contexts, routing

Batch = PackedBatch


def hidden_states(
    decoder: nn.Module, batch: Batch, *, max_len: int | None = None, replay: RoutingReplay | None = None
) -> Tensor:
    """The decoder's last hidden states, (T, D). Shared prefixes are computed once.

    `max_len` is the model's context length. `replay` forces the experts of every token.
    """
    segments: Segments = batch["segments"]
    tokens_T: Tensor = batch["tokens_T"]
    positions_T: Tensor = batch["positions_T"]
    segments.check(tokens_T, positions_T)
    prefixes = shared_prefix.find_shared_prefixes(tokens_T, segments, None if replay is None else replay.experts_TLC)
    context = packed_context(segments, tokens_T.device, prefixes)
    if max_len is not None and context.max_len > max_len:
        raise ValueError(
            f"a sequence of {context.max_len} tokens for a model that holds {max_len}; shorten the texts "
            "or use a model with a longer context"
        )
    if prefixes is not None:
        tokens_T, positions_T = tokens_T[prefixes.computed_U], positions_T[prefixes.computed_U]
        if replay is not None:
            replay.experts_TLC = replay.experts_TLC[prefixes.computed_U]
    with attention_context(context), nullcontext() if replay is None else routing(replay):
        out = decoder(input_ids=tokens_T[None], position_ids=positions_T[None], use_cache=False)
    hidden_UD: Tensor = out.last_hidden_state[0]
    if prefixes is None:
        return hidden_UD
    return shared_prefix.gather(hidden_UD, shared_prefix.gather_index(prefixes.source_T, prefixes.computed_U.numel()))


def has_previous(segments: Segments) -> Tensor:
    """True on every token but the first of each sequence."""
    first_T = torch.ones_like(segments.ids_T, dtype=torch.bool)
    first_T[1:] = segments.ids_T[1:] != segments.ids_T[:-1]
    return ~first_T


def token_outputs(
    hidden_TD: Tensor,
    batch: Batch,
    head: Head,
    *,
    temperature: float = 1.0,
    entropy: bool = False,
    collision: bool = False,
    budget_bytes: int = BUDGET_BYTES,
) -> dict[str, Tensor]:
    """Log-probs, entropy and collision on the flat axis, by name.

    The head runs only where `loss_mask_T` (if the batch has one) is set; 0 elsewhere.
    """
    rows_N = target_positions(batch)
    scores = fused_logprobs(
        *(hidden_TD[rows_N - 1], batch["tokens_T"][rows_N], head),
        temperature=temperature,
        entropy=entropy,
        collision=collision,
        budget_bytes=budget_bytes,
    )
    zeros_T = scores.logprobs_N.new_zeros(hidden_TD.shape[0])
    return {name[:-1] + "T": zeros_T.index_copy(0, rows_N, output_N) for name, output_N in scores._asdict().items()}


def target_positions(batch: Batch) -> Tensor:
    """Indices of the tokens to score: those in `loss_mask_T`, or all but the first of each sequence."""
    wanted_T = has_previous(batch["segments"])
    if "loss_mask_T" in batch:
        wanted_T = wanted_T & batch["loss_mask_T"]
    return wanted_T.nonzero()[:, 0]


def chunked_logits(
    hidden_TD: Tensor, batch: Batch, head: Head, *, temperature: float = 1.0, budget_bytes: int = BUDGET_BYTES
) -> ChunkedLogits:
    """The full distributions of these tokens, computed lazily."""
    return ChunkedLogits(hidden_TD[target_positions(batch) - 1], head, temperature, budget_bytes)


def values(hidden_TD: Tensor, segments: Segments, head: nn.Linear) -> Tensor:
    """The value of the state before each token; 0 at a sequence's first token."""
    score_T = _apply_head(hidden_TD, head)
    return torch.where(has_previous(segments), score_T.roll(1), 0)


def step_logits(hidden_TD: Tensor, head: nn.Linear) -> Tensor:
    """(right, wrong) at every token: the score is the log-odds that the step which ends here is right."""
    score_T = _apply_head(hidden_TD, head)
    return torch.stack([score_T, torch.zeros_like(score_T)], 1)


def scores(hidden_TD: Tensor, segments: Segments, head: nn.Linear) -> Tensor:
    """One score per sequence, at its last token; NaN if it is empty."""
    nonempty_B = segments.lengths_B > 0
    last_B = (segments.offsets[1:] - 1).clamp(min=0)
    return torch.where(nonempty_B, _apply_head(hidden_TD[last_B], head), torch.nan)


def _apply_head(hidden_TD: Tensor, head: nn.Linear) -> Tensor:
    """In float32 at least: a reward rounded to bfloat16 has three digits."""
    return wide_product(hidden_TD, head.weight.mT).squeeze(-1)


def enable_gradient_checkpointing(module: PreTrainedModel) -> None:
    """A layer keeps only its input and is recomputed in the backward pass.

    The recomputation happens outside the forward's contexts (on CUDA in another thread), so it enters them again.
    """

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), capture_contexts()

    if not module.supports_gradient_checkpointing:
        raise ValueError(
            f"{type(module).__name__} has no gradient checkpointing in transformers; use gradient_checkpointing=False"
        )
    module.gradient_checkpointing_enable({"use_reentrant": False, "context_fn": contexts})
