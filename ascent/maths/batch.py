"""A packed batch: tensors by name, on one flat token axis (docs/decisions/0003).

The end of a name gives the axes: T flat tokens, B sequences, P pairs, K reward components, V vocabulary, C classes,
L layers with experts. So batches can be selected from, joined and split without a list of their fields.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, TypedDict, cast

import torch
from torch import Tensor

from ascent.maths.groups import Groups
from ascent.maths.segments import Segments, concat_ranges

TOKEN_AXIS, SEQUENCE_AXIS = ("_T", "_TV", "_TC", "_TLC"), ("_B", "_BK")
SEQUENCE_INDICES = ("chosen_P", "rejected_P")


class PackedBatch(TypedDict, total=False):
    """Every field that a batch may hold. Which of them it holds depends on the source and the algorithm."""

    # All batches.
    segments: Segments  # where each sequence lies on the token axis
    groups: Groups  # which sequences answer the same prompt
    tokens_T: Tensor  # token ids
    positions_T: Tensor  # position of each token in its sequence
    loss_mask_T: Tensor  # true on tokens that are trained

    # Rollouts, as sampled and scored.
    sampler_logprobs_T: Tensor  # log-probs that the sampler reported
    versions_T: Tensor  # policy version that sampled each token
    routed_experts_TLC: Tensor  # experts that each token was routed to
    rewards_B: Tensor  # reward of each rollout; NaN if it could not be scored
    correct_B: Tensor  # 1 right, 0 wrong, NaN unknown
    truncated_B: Tensor  # true where the token limit ended the completion
    reward_components_BK: Tensor  # weighted parts of the reward, one column each
    component_weights_BK: Tensor  # weight of each part
    step_rewards_T: Tensor  # rewards of steps, on each step's last token
    step_ends_T: Tensor  # true on each step's last token
    greedy_rewards_B: Tensor  # reward of the greedy completion of the same prompt
    optimal_values_B: Tensor  # estimated optimal value of the prompt
    opponent_rewards_B: Tensor  # reward of the opponent's completion (Nash-MD)
    win_prob_B: Tensor  # probability of beating the opponent's completion
    from_reference_B: Tensor  # true where the reference model sampled the completion
    chosen_B: Tensor  # true on the better completion of a pair
    rejected_B: Tensor  # true on the worse one
    rollout_index_B: Tensor  # index in the step's list of rollouts; -1 if that list is gone

    # Rollouts, as prepared for the loss.
    old_logprobs_T: Tensor  # log-probs under the policy that sampled
    ref_logprobs_T: Tensor  # log-probs under the reference model
    teacher_logprobs_T: Tensor  # log-probs under the teacher
    old_values_T: Tensor  # values before the update
    bootstrap_B: Tensor  # value after the last token of truncated completions, else 0
    advantages_T: Tensor
    noise_T: Tensor  # a random number in [0, 1) for each token, for losses that choose tokens
    returns_T: Tensor  # targets of the value loss

    # Data from files.
    chosen_P: Tensor  # index of each pair's better sequence
    rejected_P: Tensor  # index of the worse one
    margins_P: Tensor  # how much better it is
    gold_B: Tensor  # true on gold answers that follow a pair
    ranks_B: Tensor  # rank inside the group; 0 is best
    desirable_B: Tensor  # label of unpaired data
    step_labels_T: Tensor  # correctness of each step, on its last token; NaN unknown
    teacher_TV: Any  # the teacher's logits, computed a chunk at a time
    mismatched: PackedBatch  # the same completions behind other prompts (KTO)
    pretraining: tuple[PackedBatch, ...]  # text that is mixed into the update

    # On its way to a model.
    plan: Any  # a function that gives the `models.forward.ForwardPlan`

    # Model outputs.
    logprobs_T: Tensor
    entropy_T: Tensor
    log_collision_T: Tensor  # log of the sum of squared probabilities
    values_T: Tensor  # value of the state before each token
    scores_B: Tensor  # scalar head on the last token
    logits_TV: Any
    step_logits_TC: Tensor


def select(batch: PackedBatch, rows: Sequence[int]) -> PackedBatch:
    """Some sequences of a batch, in the given order, with the pairs among them and their part of inner batches."""
    segments = batch["segments"]
    rows_B = torch.tensor(list(rows))
    tokens_T = concat_ranges(segments.offsets[rows_B], segments.lengths_B[rows_B])
    found: dict[str, Any] = _select_pairs(batch, rows_B)
    for name, value in cast(dict[str, Any], batch).items():
        if name in found:
            continue
        if name == "segments":
            found[name] = Segments.from_lengths(segments.lengths_B[rows_B])
        elif name == "groups":
            found[name] = value.select(rows_B)
        elif name.endswith(TOKEN_AXIS):
            found[name] = value[tokens_T]
        elif name.endswith(SEQUENCE_AXIS):
            found[name] = value[rows_B]
        elif isinstance(value, Mapping):
            found[name] = select(cast(PackedBatch, value), rows)
        else:
            raise ValueError(f"{name} cannot be split by sequences; its name must end in its axes")
    return cast(PackedBatch, found)


def _select_pairs(batch: PackedBatch, rows_B: Tensor) -> dict[str, Any]:
    """The fields of the pairs whose two sequences are among the rows."""
    if "chosen_P" not in batch:
        return {}
    place_B = torch.full((batch["segments"].count,), -1)
    place_B[rows_B] = torch.arange(len(rows_B))
    chosen_P, rejected_P = place_B[batch["chosen_P"]], place_B[batch["rejected_P"]]
    keep_P = (chosen_P >= 0) & (rejected_P >= 0)
    if bool(((chosen_P >= 0) != (rejected_P >= 0)).any()):
        raise ValueError("only one sequence of a pair is selected; select both, or none")
    others = {
        name: value[keep_P]
        for name, value in cast(dict[str, Any], batch).items()
        if name.endswith("_P")
    }
    return others | {"chosen_P": chosen_P[keep_P], "rejected_P": rejected_P[keep_P]}


def concat(batches: Sequence[PackedBatch]) -> PackedBatch:
    """One batch of all sequences, with every tensor that all of the batches have. Equal group uids are one group."""
    pieces = cast(Sequence[dict[str, Any]], batches)
    found: dict[str, Any] = {
        "segments": Segments.from_lengths(
            torch.cat([each["segments"].lengths_B for each in pieces])
        )
    }
    for name in pieces[0]:
        if not all(isinstance(each.get(name), Tensor) for each in pieces):
            continue
        tensors = [each[name] for each in pieces]
        if name in SEQUENCE_INDICES:
            starts = accumulate((each["segments"].count for each in pieces), initial=0)
            tensors = [tensor + start for tensor, start in zip(tensors, starts, strict=False)]
        found[name] = torch.cat(tensors) if tensors[0].ndim else tensors[0]
    if all("groups" in each for each in pieces):
        found["groups"] = Groups.concat([each["groups"] for each in pieces])
    return cast(PackedBatch, found)


def split(tensors: Mapping[str, Tensor], batches: Sequence[PackedBatch]) -> list[dict[str, Tensor]]:
    """Tensors of a `concat` for each of its batches: its part of _T and _B, and all of everything else."""
    sizes = {
        "_T": [each["segments"].total for each in batches],
        "_B": [each["segments"].count for each in batches],
    }
    parts = {
        name: value.split(sizes[name[-2:]]) if name[-2:] in sizes else None
        for name, value in tensors.items()
    }
    return [
        {name: tensors[name] if part is None else part[index] for name, part in parts.items()}
        for index in range(len(batches))
    ]
