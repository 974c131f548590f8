"""Random rollout, example, pair and ranking batches in float64, holding all the vocabulary names; and cuts of them.

Suffixes say the axis (T tokens, B sequences, P pairs, X pretraining tokens), so a batch can be cut generically.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ascent.maths.groups import Groups
from ascent.maths.segments import Segments

Batch = dict[str, Any]
# What a backward pass reaches; everything else in a batch is data.
LEAVES = (
    "logprobs_T",
    "values_T",
    "entropy_T",
    "scores_B",
    "pretraining_logprobs_X",
    "logits_TV",
    "step_logits_TC",
)
PER_TOKEN = ("_T", "_TV", "_TC")


def random_batch(seed: int, *, groups: int = 4, largest_group: int = 4, longest: int = 6) -> Batch:
    """Ragged groups, ragged lengths (some 0), holes in the trained mask, garbage outside it."""
    rng = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    def whole(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=rng)

    sizes = whole(2, largest_group + 1, groups)
    ids_B = torch.repeat_interleave(torch.arange(groups), sizes)
    ids_B = ids_B[torch.randperm(ids_B.numel(), generator=rng)]
    count = ids_B.numel()
    segments = Segments.from_lengths(whole(0, longest + 1, count))
    tokens = segments.total
    loss_mask_T = torch.rand(tokens, generator=rng) < 0.8
    old_logprobs_T = -normal(tokens).abs() - 0.1
    batch: Batch = {
        "segments": segments,
        "groups": Groups.from_ids(ids_B),
        "loss_mask_T": loss_mask_T,
        "old_logprobs_T": old_logprobs_T,
        "logprobs_T": old_logprobs_T + 0.3 * normal(tokens),
        "ref_logprobs_T": old_logprobs_T + 0.3 * normal(tokens),
        "sampler_logprobs_T": old_logprobs_T + 0.1 * normal(tokens),
        "entropy_T": normal(tokens).abs(),
        "values_T": normal(tokens),
        "old_values_T": normal(tokens),
        "step_ends_T": torch.rand(tokens, generator=rng) < 0.4,
        "step_rewards_T": normal(tokens),
        "rewards_B": whole(0, 3, count).double() + 0.25 * normal(count),
        "correct_B": whole(0, 2, count).double(),
        "greedy_rewards_B": normal(count),
        "reward_components_BK": whole(0, 3, count, 3).double(),
        "truncated_B": torch.rand(count, generator=rng) < 0.3,
        "scores_B": normal(count),
        "desirable_B": torch.rand(count, generator=rng) < 0.5,
        "mismatched_score": normal(1)[0],
        "log_collision_T": -normal(tokens).abs(),
        "noise_T": torch.rand(tokens, generator=rng, dtype=torch.float64),
        "teacher_logprobs_T": old_logprobs_T + 0.3 * normal(tokens),
        "logits_TV": normal(tokens, 5),
        "teacher_TV": normal(tokens, 5),
        "step_logits_TC": normal(tokens, 2),
        "step_labels_T": whole(0, 2, tokens).double(),
        "optimal_values_B": normal(count),
        "from_reference_B": torch.rand(count, generator=rng) < 0.5,
        "gold_B": torch.rand(count, generator=rng) < 0.3,
        "pretraining_logprobs_X": -normal(9).abs(),
        "pretraining_trained_X": torch.rand(9, generator=rng) < 0.7,
    }
    batch["win_prob_B"] = (batch["rewards_B"] - 1).sigmoid()
    return {**batch, **_orders(batch["groups"], rng)}


def _orders(groups: Groups, rng: torch.Generator) -> Batch:
    """A strict ranking inside each group; its best and worst member form the group's pair."""
    ranks_B = torch.randperm(groups.ids_B.numel(), generator=rng)
    best = [
        int(torch.where(groups.ids_B == g, ranks_B, 10**6).argmin()) for g in range(groups.count)
    ]
    worst = [int(torch.where(groups.ids_B == g, ranks_B, -1).argmax()) for g in range(groups.count)]
    return {"ranks_B": ranks_B, "chosen_P": torch.tensor(best), "rejected_P": torch.tensor(worst)}


def rows_of(batch: Batch, rows: Tensor) -> Batch:
    """The batch made of the given sequences, in the given order; pairs stay where both members do."""
    segments: Segments = batch["segments"]
    starts_B = segments.offsets[:-1]
    pieces = [
        torch.arange(int(starts_B[r]), int(starts_B[r] + segments.lengths_B[r])) for r in rows
    ]
    tokens = torch.cat(pieces) if pieces else torch.zeros(0, dtype=torch.int64)
    cut: Batch = {"segments": Segments.from_lengths(segments.lengths_B[rows])}
    cut["groups"] = batch["groups"].select(rows)
    for name, value in batch.items():
        if name.endswith(PER_TOKEN):
            cut[name] = value[tokens]
        elif name.endswith(("_B", "_BK")):
            cut[name] = value[rows]
        elif name not in cut and not name.endswith("_P"):
            cut[name] = value
    place = {int(r): i for i, r in enumerate(rows)}
    pairs = zip(batch["chosen_P"].tolist(), batch["rejected_P"].tolist(), strict=True)
    kept = [(place[w], place[x]) for w, x in pairs if w in place and x in place]
    index = torch.tensor(kept, dtype=torch.int64).reshape(-1, 2)
    return {**cut, "chosen_P": index[:, 0], "rejected_P": index[:, 1]}


def with_padding(batch: Batch, extra: int, seed: int) -> Batch:
    """The same sequences, each followed by `extra` untrained tokens of NaN: padding that must not matter."""
    segments: Segments = batch["segments"]
    ids_T = torch.cat([segments.ids_T, torch.arange(segments.count).repeat_interleave(extra)])
    order_T = torch.argsort(ids_T, stable=True)
    padded: Batch = {**batch, "segments": Segments.from_ids(ids_T[order_T], count=segments.count)}
    for name, value in batch.items():
        if name.endswith(PER_TOKEN):
            fill = False if value.dtype == torch.bool else float("nan")
            blank = torch.full((segments.count * extra, *value.shape[1:]), fill, dtype=value.dtype)
            padded[name] = torch.cat([value, blank])[order_T]
    return padded


def require_grad(batch: Batch) -> dict[str, Tensor]:
    """Make the batch's leaves require gradients (in place) and return them."""
    leaves = {name: batch[name].clone().requires_grad_() for name in LEAVES}
    batch.update(leaves)
    return leaves


def moved(batch: Batch, device: str) -> Batch:
    """The batch on another device."""

    def move(value: Any) -> Any:
        if isinstance(value, Segments):
            return Segments(value.lengths_B.to(device), value.ids_T.to(device))
        if isinstance(value, Groups):
            return Groups(value.ids_B.to(device), value.count, value.uids_B.to(device))
        return value.to(device) if isinstance(value, Tensor) else value

    return {name: move(value) for name, value in batch.items()}
