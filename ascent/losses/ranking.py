"""Reward-model losses on scores: pairs, all pairs of a ranking, and a whole ranking at once.

Axes: B responses, P pairs, G prompts. A ranking's best response has the smallest `ranks_B`; equal ranks are ties, and a
tied pair says nothing. Worked example, scores [1.2, .3, -.5] best first: kwise .293347, plackett_luce .834365;
bradley_terry on the first two with margin .5: .513015.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ascent.losses.loss import ItemLosses
from ascent.maths.groups import Groups
from ascent.maths.metrics import Accumulator, mean_of
from ascent.parameter_ranges import NonNegative, checked


@checked
def bradley_terry(
    scores_B: Tensor,
    chosen_P: Tensor,
    rejected_P: Tensor,
    margins_P: Tensor | None = None,
    *,
    centering: NonNegative = 0.0,
) -> ItemLosses:
    """-log sigmoid(s_chosen - s_rejected - margin) + centering (s_chosen + s_rejected)^2."""
    won_P, lost_P = scores_B[chosen_P], scores_B[rejected_P]
    gap_P = won_P - lost_P if margins_P is None else won_P - lost_P - margins_P.detach()
    losses_P = -logsigmoid(gap_P) + centering * (won_P + lost_P) ** 2
    every_P = torch.ones_like(losses_P, dtype=torch.bool)
    metrics: dict[str, Accumulator] = {
        "preference/accuracy": mean_of(won_P > lost_P, every_P),
        "preference/margin": mean_of(won_P - lost_P, every_P),
        "preference/score": mean_of((won_P + lost_P) / 2, every_P),
    }
    return ItemLosses(losses_P, every_P, metrics)


def kwise(scores_B: Tensor, ranks_B: Tensor, groups: Groups) -> ItemLosses:
    """The mean over all untied pairs of a prompt's ranking, one loss per prompt (InstructGPT's K-wise loss).

    All pairs of a prompt weigh as one item, so a prompt ranked nine ways does not count 36 times.
    """
    better_BB = (groups.ids_B[:, None] == groups.ids_B[None, :]) & (
        ranks_B[:, None] < ranks_B[None, :]
    )
    won_P, lost_P = better_BB.nonzero(as_tuple=True)
    pairs = groups.gather(won_P)
    gap_P = scores_B[won_P] - scores_B[lost_P]
    every_P = torch.ones_like(won_P, dtype=torch.bool)
    losses_G = pairs.mean(-logsigmoid(gap_P), every_P)
    metrics: dict[str, Accumulator] = {
        "preference/accuracy": mean_of(gap_P > 0, every_P),
        "preference/margin": mean_of(gap_P, every_P),
    }
    return ItemLosses(losses_G, pairs.sum(every_P) > 0, metrics)


def plackett_luce(scores_B: Tensor, ranks_B: Tensor, groups: Groups) -> ItemLosses:
    """-log probability of the whole ranking: each place is won against all that follow. K = 2 is Bradley-Terry."""
    order_B = torch.argsort(ranks_B, stable=True)
    order_B = order_B[torch.argsort(groups.ids_B[order_B], stable=True)]
    ids_B, sorted_B = groups.ids_B[order_B], ranks_B[order_B]
    tied_B = (ids_B[1:] == ids_B[:-1]) & (sorted_B[1:] == sorted_B[:-1])
    if bool(tied_B.any()):
        raise ValueError(
            f"a ranking holds a tie (rank {int(sorted_B[1:][tied_B][0])} twice); plackett_luce needs a strict order: "
            "drop one of the tied responses, or use kwise, which skips tied pairs"
        )
    size_G = groups.sum(torch.ones_like(ids_B))
    start_G = size_G.cumsum(0) - size_G
    place_B = torch.arange(ids_B.numel(), device=ids_B.device) - start_G[ids_B]
    # Worst first, so that a running log-sum-exp along a row covers "this one and all that follow".
    table_GK = scores_B.new_full(
        (groups.count, int(size_G.max())), torch.finfo(scores_B.dtype).min / 2
    )
    table_GK = table_GK.index_put((ids_B, size_G[ids_B] - 1 - place_B), scores_B[order_B])
    ahead_B = table_GK.logcumsumexp(1)[ids_B, size_G[ids_B] - 1 - place_B]
    losses_G = groups.sum(
        torch.zeros_like(scores_B).index_copy(0, order_B, ahead_B - scores_B[order_B])
    )
    adjacent_B = ids_B[1:] == ids_B[:-1]
    gap_B = scores_B[order_B][:-1] - scores_B[order_B][1:]
    metrics: dict[str, Accumulator] = {
        "preference/accuracy": mean_of(gap_B > 0, adjacent_B),
        "preference/margin": mean_of(gap_B, adjacent_B),
    }
    return ItemLosses(losses_G, size_G > 1, metrics)
