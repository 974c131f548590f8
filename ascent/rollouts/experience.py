"""From scored rollouts to what the loss reads: log-probs, values and advantages.

The order is fixed: filter groups, model outputs, shape rewards, advantages, normalize. A filter that reads groups drops
whole groups before anything is compared. A filter that reads single completions leaves them in their group's baseline
and out of the loss; a group of which it leaves nothing is dropped as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch import Tensor

from ascent.advantages import filters
from ascent.advantages.estimate import estimate
from ascent.algorithms.row import Row
from ascent.cells import Cell
from ascent.maths.batch import PackedBatch, select
from ascent.maths.metrics import Accumulator
from ascent.parallel.ranks import SINGLE, Ranks
from ascent.progress import add_tokens, phase
from ascent.rollouts.config import FrozenModel, Models, RolloutConfig
from ascent.rollouts.microbatches import chunk_rows

# The fields that a model reads.
MODEL_INPUTS = (
    "tokens_T",
    "positions_T",
    "loss_mask_T",
    "segments",
    "groups",
    "routed_experts_TLC",
)


def model_outputs(
    model: FrozenModel, batch: PackedBatch, want: set[str], max_tokens: int, ranks: Ranks = SINGLE
) -> PackedBatch:
    """Outputs of a model for every sequence, a chunk at a time. Every rank runs some of the chunks."""
    inputs = cast(
        PackedBatch, {name: value for name, value in batch.items() if name in MODEL_INPUTS}
    )

    def infer(rows: Sequence[int]) -> Mapping[str, Tensor]:
        chunk = select(inputs, rows)
        add_tokens(len(chunk["tokens_T"]))
        working.done += 1
        return model.infer(chunk, frozenset(want))

    chunks = chunk_rows(batch, max_tokens, ranks.count)
    with phase("log-probs", -(-len(chunks) // ranks.count), "micro-batches") as working:
        found = ranks.map(infer, chunks, "the log-probs")
    return cast(
        PackedBatch, {name: torch.cat([each[name].cpu() for each in found]) for name in want}
    )


def logprobs_under(
    model: FrozenModel | None, batch: PackedBatch, max_tokens: int, ranks: Ranks = SINGLE
) -> Tensor:
    """The log-prob of every token under a model."""
    assert model is not None, "the row needs a model that was not given"
    return model_outputs(model, batch, {"logprobs_T"}, max_tokens, ranks)["logprobs_T"]


def rows_with_signal(batch: PackedBatch, row: Row) -> list[int]:
    """The rows that the group filters keep and of whose groups something is trained: all of a group or none of it."""
    groups, segments = batch["groups"], batch["segments"]
    # One of a user may read model outputs, or the whole step, which is smaller once groups are dropped.
    known = [each for each in row.filter if each.function is filters.not_truncated]
    trained_B = _trained_sequences(batch, known) & (segments.sum(batch["loss_mask_T"]) > 0)
    keep_B = groups.broadcast(groups.sum(trained_B) > 0)
    for each in row.filter:
        if "groups" in each.required:
            keep_B &= each(batch)
    rows: list[int] = keep_B.nonzero()[:, 0].tolist()
    return rows


def _trained_sequences(batch: PackedBatch, cells: Sequence[Cell]) -> Tensor:
    """Which completions were scored and pass the filters that read single ones."""
    keep_B = ~torch.isnan(batch["rewards_B"])
    for each in cells:
        if "groups" not in each.required:
            keep_B &= each(batch)
    return keep_B


def needs_old_logprobs(row: Row, config: RolloutConfig) -> bool:
    """Whether the sampling policy's log-probs are read outside the loss of a single update."""
    if config.epochs * config.minibatches > 1 or config.max_ref_kl is not None:
        return True
    before_loss = (*row.reward_shaping, row.advantage, row.advantage_norm)
    if any(each is not None and "old_logprobs_T" in each.required for each in before_loss):
        return True
    return row.rollout_correction is None or row.rollout_correction.name != "none"


def add_collision(batch: PackedBatch, models: Models, row: Row, max_tokens: int) -> None:
    """Add the sampling policy's collision probability, for rows that read it."""
    if "collision" in row.needs and "log_collision_T" not in batch:
        batch |= model_outputs(models.policy, batch, {"log_collision_T"}, max_tokens, models.ranks)


def add_model_outputs(
    batch: PackedBatch, models: Models, row: Row, config: RolloutConfig, *, old_logprobs: bool
) -> PackedBatch:
    """Add what the row reads of policy, reference, teacher and critic. A stale batch already has the policy's part,
    unless the row corrects for its age: then the old policy is that of now, and the correction's weight old / sampler.
    """
    max_tokens = config.tokens_per_microbatch
    if models.trust_sampler_logprobs and not (config.max_staleness and row.corrects_rollouts):
        batch["old_logprobs_T"] = batch["sampler_logprobs_T"]
    elif old_logprobs and "old_logprobs_T" not in batch:
        batch["old_logprobs_T"] = logprobs_under(models.policy, batch, max_tokens, models.ranks)
    if "reference" in row.needs:
        batch["ref_logprobs_T"] = logprobs_under(models.reference, batch, max_tokens, models.ranks)
    add_collision(batch, models, row, max_tokens)
    if "teacher" in row.needs:
        batch["teacher_logprobs_T"] = logprobs_under(
            models.teacher, batch, max_tokens, models.ranks
        )
    if "critic" in row.needs:
        assert models.critic is not None, f"row {row.name} needs a critic"
        if not config.bootstrap_truncated:
            batch |= model_outputs(models.critic, batch, {"values_T"}, max_tokens, models.ranks)
        else:  # a critic's score is its value after the last token
            batch |= model_outputs(
                models.critic, batch, {"values_T", "scores_B"}, max_tokens, models.ranks
            )
            batch = bootstrap_truncated(batch)
    return batch


def bootstrap_truncated(batch: PackedBatch) -> PackedBatch:
    """Replace the reward of truncated completions by the critic's value after the last token, from `scores_B`."""
    segments, cut_B = batch["segments"], batch["truncated_B"] & ~torch.isnan(batch["rewards_B"])
    found = batch.copy()
    scores_B = found.pop("scores_B")
    kept_B = torch.zeros_like(batch["rewards_B"])
    if "step_rewards_T" in batch:  # completed steps keep their rewards
        last_T = segments.last(batch["loss_mask_T"]) & segments.broadcast(cut_B)
        found["step_rewards_T"] = torch.where(last_T, 0, batch["step_rewards_T"])
        kept_B = segments.sum(found["step_rewards_T"])
    found["bootstrap_B"] = torch.where(cut_B, scores_B, 0)
    found["rewards_B"] = torch.where(cut_B, kept_B, batch["rewards_B"])
    return found


def add_advantages(batch: PackedBatch, row: Row) -> tuple[PackedBatch, dict[str, Accumulator]]:
    """The batch with advantages and value targets, and their metrics. Unscored completions are not trained."""
    assert row.advantage is not None and row.advantage_norm is not None, (
        f"row {row.name} has no advantage"
    )
    result = estimate(
        batch,
        reward_shaping=row.reward_shaping,
        advantage=row.advantage,
        advantage_norm=row.advantage_norm,
    )
    found: PackedBatch = {**batch, "advantages_T": result.advantages_T}
    if result.returns_T is not None:
        found["returns_T"] = result.returns_T.detach()
    if "values_T" in found:
        found["old_values_T"] = found.pop(
            "values_T"
        )  # from here on values_T is an output of the update
    keep_T = found["segments"].broadcast(_trained_sequences(batch, row.filter))
    found["loss_mask_T"] = found["loss_mask_T"] & keep_T
    return found, dict(result.metrics)
