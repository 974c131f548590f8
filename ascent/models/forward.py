"""One forward pass over a packed batch: hidden states once, then what is wanted from them.

Axes: T flat tokens, B sequences, D hidden size, N rows whose head is needed. Everything per token is aligned with the
token it speaks of (decision 0003): `logprobs_T`, `entropy_T` and `log_collision_T` at a token come from the
distribution it was drawn from, `values_T` from the state before it; all are 0 at a sequence's first token. `scores_B`
is read at a sequence's last token, and is NaN for a sequence of no tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ascent.maths.segments import Segments
from ascent.models import shared_prefix
from ascent.models.attention import attending, packed
from ascent.models.chunked_logits import ChunkedLogits
from ascent.models.fused_logprobs import BUDGET_BYTES, Head, fused_logprobs
from ascent.models.layer_patching import wide_product
from ascent.models.routing import Replay, as_now, routing

Batch = Mapping[str, Any]


def hidden_states(
    decoder: nn.Module, batch: Batch, *, longest: int | None = None, replay: Replay | None = None
) -> Tensor:
    """The decoder's last hidden states, (T, D). What sequences begin with alike is run once.

    `longest` is the length the model can hold. `replay` has the experts that every token is to take.
    """
    segments: Segments = batch["segments"]
    tokens_T: Tensor = batch["tokens_T"]
    positions_T: Tensor = batch["positions_T"]
    segments.check(tokens_T, positions_T)
    same = shared_prefix.find_shared_prefixes(tokens_T, segments, None if replay is None else replay.given_TLC)
    context = packed(segments, tokens_T.device, same)
    if longest is not None and context.longest > longest:
        raise ValueError(
            f"a sequence of {context.longest} tokens for a model that holds {longest}; shorten the texts "
            "or use a model with a longer context"
        )
    if same is not None:
        tokens_T, positions_T = tokens_T[same.kept_U], positions_T[same.kept_U]
        if replay is not None:
            replay.given_TLC = replay.given_TLC[same.kept_U]
    with attending(context), nullcontext() if replay is None else routing(replay):
        out = decoder(input_ids=tokens_T[None], position_ids=positions_T[None], use_cache=False)
    hidden_UD: Tensor = out.last_hidden_state[0]
    return (
        hidden_UD
        if same is None
        else shared_prefix.moved(hidden_UD, shared_prefix.moves(same.places_T, same.kept_U.numel()))
    )


def inside(segments: Segments) -> Tensor:
    """True on every token that has a token before it in its own sequence."""
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

    The head runs only where `loss_mask_T` (if the batch has one) asks for it; 0 elsewhere.
    """
    rows_N = predicted(batch)
    scores = fused_logprobs(
        *(hidden_TD[rows_N - 1], batch["tokens_T"][rows_N], head),
        temperature=temperature,
        entropy=entropy,
        collision=collision,
        budget_bytes=budget_bytes,
    )
    zeros_T = scores.logprobs_N.new_zeros(hidden_TD.shape[0])
    return {name[:-1] + "T": zeros_T.index_copy(0, rows_N, found_N) for name, found_N in scores._asdict().items()}


def predicted(batch: Batch) -> Tensor:
    """Places of the tokens whose distribution is wanted: the trained ones, or all that have a token before them."""
    wanted_T = inside(batch["segments"])
    if "loss_mask_T" in batch:
        wanted_T = wanted_T & batch["loss_mask_T"]
    return wanted_T.nonzero()[:, 0]


def chunked_logits(
    hidden_TD: Tensor, batch: Batch, head: Head, *, temperature: float = 1.0, budget_bytes: int = BUDGET_BYTES
) -> ChunkedLogits:
    """What each such token was drawn from, whole; nothing is computed before it is asked for."""
    return ChunkedLogits(hidden_TD[predicted(batch) - 1], head, temperature, budget_bytes)


def values(hidden_TD: Tensor, segments: Segments, head: nn.Linear) -> Tensor:
    """The value of the state before each token: read at the token before it; 0 at a sequence's first."""
    read_T = _read(hidden_TD, head)
    return torch.where(inside(segments), read_T.roll(1), 0)


def step_logits(hidden_TD: Tensor, head: nn.Linear) -> Tensor:
    """(right, wrong) at every token, itself read: the score is the log-odds that the step which ends here is right."""
    read_T = _read(hidden_TD, head)
    return torch.stack([read_T, torch.zeros_like(read_T)], 1)


def scores(hidden_TD: Tensor, segments: Segments, head: nn.Linear) -> Tensor:
    """One number per sequence, read at its last token; NaN where there is none."""
    full_B = segments.lengths_B > 0
    last_B = (segments.offsets[1:] - 1).clamp(min=0)
    return torch.where(full_B, _read(hidden_TD[last_B], head), torch.nan)


def _read(hidden_TD: Tensor, head: nn.Linear) -> Tensor:
    """The head in float32 at least: a reward rounded to bfloat16 has three digits."""
    return wide_product(hidden_TD, head.weight.mT).squeeze(-1)


def enable_gradient_checkpointing(module: PreTrainedModel) -> None:
    """Gradient checkpointing: a layer keeps its input alone and is run again in the backward pass.

    That second run happens outside the forward's contexts (on CUDA even in another thread), so it carries its own.
    """

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), as_now()

    if not module.supports_gradient_checkpointing:
        raise ValueError(
            f"{type(module).__name__} has no gradient checkpointing in transformers; use gradient_checkpointing=False"
        )
    module.gradient_checkpointing_enable({"use_reentrant": False, "context_fn": contexts})
