"""One forward pass over a packed batch: hidden states once, then the outputs computed from them.

Axes: T flat tokens, U computed tokens, B sequences, D hidden size, N tokens to score. Outputs per token are aligned
with the token they are about (decision 0003): `logprobs_T`, `entropy_T` and `log_collision_T` at a token come from the
distribution it was sampled from, `values_T` from the state before it; all are 0 at a sequence's first token. `scores_B`
is read at a sequence's last token, and is NaN for an empty sequence.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ascent.maths.batch import PackedBatch
from ascent.maths.segments import Segments
from ascent.models import shared_prefix
from ascent.models.attention import PackedContext, attention_context, packed_context
from ascent.models.chunked_logits import ChunkedLogits
from ascent.models.fused_logprobs import BUDGET_BYTES, fused_logprobs
from ascent.models.head import Head
from ascent.models.layer_patching import kernels_of
from ascent.models.routing import RoutingReplay, capture_contexts, routing
from ascent.models.shared_prefix import GatherIndex, gather, gather_index, upload

Batch = PackedBatch
CPU = torch.device("cpu")


@dataclass(frozen=True)
class ForwardPlan:
    """What a forward must know on the host: computed from a batch on the CPU, before its tensors move to a GPU.

    So no micro-batch waits for the GPU. `computed_U` are the tokens that run (None: all), `states_T` the row of the
    hidden states that holds each token's state. `targets_N` are the tokens to score; `target_states` gathers the state
    before each of them, `last_states` that of every sequence's last token.
    """

    context: PackedContext
    computed_U: Tensor | None
    states_T: GatherIndex | None
    targets_N: Tensor
    target_states: GatherIndex
    last_states: GatherIndex

    @property
    def num_tokens(self) -> int:
        """Tokens that run."""
        return self.context.total


def plan_forward(
    batch: Batch, device: torch.device, *, experts_TLC: Tensor | None = None
) -> ForwardPlan:
    """The plan of a batch for a forward on `device`."""
    segments = batch["segments"].cpu()
    segments.check(batch["tokens_T"], batch["positions_T"])
    prefixes = shared_prefix.find_shared_prefixes(batch["tokens_T"], segments, experts_TLC)
    context = packed_context(segments, CPU, prefixes)
    wanted_T = has_previous(segments)
    if "loss_mask_T" in batch:
        wanted_T = wanted_T & batch["loss_mask_T"].cpu()
    targets_N = wanted_T.nonzero()[:, 0]
    last_B = (segments.offsets[1:] - 1).clamp(min=0)
    if prefixes is None:
        computed_U, states_T, count, source_T = (
            None,
            None,
            segments.total,
            torch.arange(segments.total),
        )
    else:
        count, source_T = prefixes.computed_U.numel(), prefixes.source_T
        computed_U, states_T = prefixes.computed_U, gather_index(source_T, count)
    gathers = (gather_index(source_T[rows], count) for rows in (targets_N - 1, last_B))
    return upload(ForwardPlan(context, computed_U, states_T, targets_N, *gathers), device)


def hidden_states(
    decoder: nn.Module,
    batch: Batch,
    plan: ForwardPlan,
    *,
    max_len: int | None = None,
    replay: RoutingReplay | None = None,
) -> Tensor:
    """The decoder's last hidden states of the tokens that run, (U, D).

    `max_len` is the model's context length. `replay` forces the experts of every token.
    """
    tokens_T, positions_T = batch["tokens_T"], batch["positions_T"]
    context = plan.context
    if max_len is not None and context.max_len > max_len:
        raise ValueError(
            f"a sequence of {context.max_len} tokens for a model that holds {max_len}; shorten the texts "
            "or use a model with a longer context"
        )
    if plan.computed_U is not None:
        tokens_T, positions_T = tokens_T[plan.computed_U], positions_T[plan.computed_U]
        if replay is not None:
            replay.experts_TLC = replay.experts_TLC[plan.computed_U]
            replay.repeats_T = None if plan.states_T is None else plan.states_T.counts_U
    with attention_context(context), nullcontext() if replay is None else routing(replay):
        out = decoder(input_ids=tokens_T[None], position_ids=positions_T[None], use_cache=False)
    hidden_UD: Tensor = out.last_hidden_state[0]
    return hidden_UD


def has_previous(segments: Segments) -> Tensor:
    """True on every token but the first of each sequence."""
    first_T = torch.ones_like(segments.ids_T, dtype=torch.bool)
    first_T[1:] = segments.ids_T[1:] != segments.ids_T[:-1]
    return ~first_T


def token_outputs(
    hidden_UD: Tensor,
    batch: Batch,
    plan: ForwardPlan,
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
    scores = fused_logprobs(
        *(gather(hidden_UD, plan.target_states), batch["tokens_T"][plan.targets_N], head),
        temperature=temperature,
        entropy=entropy,
        collision=collision,
        budget_bytes=budget_bytes,
    )
    zeros_T = scores.logprobs_N.new_zeros(batch["tokens_T"].shape[0])
    return {
        name[:-1] + "T": zeros_T.index_copy(0, plan.targets_N, output_N)
        for name, output_N in scores._asdict().items()
    }


def chunked_logits(
    hidden_UD: Tensor,
    plan: ForwardPlan,
    head: Head,
    *,
    temperature: float = 1.0,
    budget_bytes: int = BUDGET_BYTES,
) -> ChunkedLogits:
    """The full distributions of the tokens to score, computed lazily."""
    return ChunkedLogits(gather(hidden_UD, plan.target_states), head, temperature, budget_bytes)


def _token_scores(hidden_UD: Tensor, plan: ForwardPlan, head: nn.Linear) -> Tensor:
    """The scalar head at every token, (T,)."""
    return gather(_apply_head(hidden_UD, head)[:, None], plan.states_T)[:, 0]


def values(hidden_UD: Tensor, plan: ForwardPlan, segments: Segments, head: nn.Linear) -> Tensor:
    """The value of the state before each token; 0 at a sequence's first token."""
    return torch.where(has_previous(segments), _token_scores(hidden_UD, plan, head).roll(1), 0)


def step_logits(hidden_UD: Tensor, plan: ForwardPlan, head: nn.Linear) -> Tensor:
    """(right, wrong) at every token: the score is the log-odds that the step which ends here is right."""
    scores_T = _token_scores(hidden_UD, plan, head)
    return torch.stack([scores_T, torch.zeros_like(scores_T)], 1)


def sequence_scores(
    hidden_UD: Tensor, plan: ForwardPlan, segments: Segments, head: nn.Linear
) -> Tensor:
    """One score per sequence, at its last token; NaN if it is empty."""
    return torch.where(
        segments.lengths_B > 0, _apply_head(gather(hidden_UD, plan.last_states), head), torch.nan
    )


def _apply_head(hidden_TD: Tensor, head: nn.Linear) -> Tensor:
    """In float32 at least: a reward rounded to bfloat16 has three digits."""
    return kernels_of(head).product(hidden_TD, head.weight.mT).squeeze(-1)


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
