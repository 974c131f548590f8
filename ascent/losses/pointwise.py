"""Preference losses on each response's own reward instead of the margin between the two.

Axes: B sequences, P pairs. u = log pi - log ref of a whole response. On the worked pair (u = 1 chosen, -2 rejected,
beta .1): nca 1.315664, bco_pair 1.242536, sppo 25.0, apo_zero .925187, apo_down .950537. A margin loss can be lowered
by letting both log-probs fall; these say where each should go.
"""

from __future__ import annotations

import torch
from torch.nn.functional import logsigmoid

from ascent.cells import from_inputs
from ascent.losses.loss import ItemLosses
from ascent.losses.pairs import ReferencePairs
from ascent.parameter_ranges import Positive, checked


@checked
@from_inputs(ReferencePairs)
def nca(pairs: ReferencePairs, *, beta: Positive = 0.1) -> ItemLosses:
    """Noise-contrastive alignment: -log sigmoid(r_w) - (log sigmoid(-r_w) + log sigmoid(-r_l)) / 2, r = beta u.

    NCA for pairs (arXiv 2402.05369): the chosen response's reward is pulled up, and both towards 0.
    """
    reward_B = beta * pairs.log_ratio_B
    chosen_P, rejected_P = pairs.sides(reward_B)
    losses_P = -logsigmoid(chosen_P) - 0.5 * (logsigmoid(-chosen_P) + logsigmoid(-rejected_P))
    return pairs.losses(losses_P, reward_B)


@checked
@from_inputs(ReferencePairs)
def bco_pair(pairs: ReferencePairs, *, beta: Positive = 0.1) -> ItemLosses:
    """-log sigmoid(beta u_w) - log sigmoid(-beta u_l): a classifier of single responses, without BCO's shift."""
    reward_B = beta * pairs.log_ratio_B
    chosen_P, rejected_P = pairs.sides(reward_B)
    return pairs.losses(-logsigmoid(chosen_P) - logsigmoid(-rejected_P), reward_B)


@checked
@from_inputs(ReferencePairs)
def sppo(pairs: ReferencePairs, *, beta: Positive = 0.1) -> ItemLosses:
    """(u_w - 1/(2 beta))^2 + (u_l + 1/(2 beta))^2: self-play with hard labels (SPPO, arXiv 2405.00675)."""
    chosen_P, rejected_P = pairs.sides(pairs.log_ratio_B)
    losses_P = (chosen_P - 1 / (2 * beta)) ** 2 + (rejected_P + 1 / (2 * beta)) ** 2
    return pairs.losses(losses_P, beta * pairs.log_ratio_B)


@checked
@from_inputs(ReferencePairs)
def apo_zero(pairs: ReferencePairs, *, beta: Positive = 0.1) -> ItemLosses:
    """1 - sigmoid(beta u_w) + sigmoid(beta u_l): chosen up, rejected down (APO-zero, arXiv 2408.06266).

    For data better than the model; `apo_down` is for data worse than it.
    """
    reward_B = beta * pairs.log_ratio_B
    chosen_P, rejected_P = pairs.sides(reward_B)
    return pairs.losses(1 - torch.sigmoid(chosen_P) + torch.sigmoid(rejected_P), reward_B)


@checked
@from_inputs(ReferencePairs)
def apo_down(pairs: ReferencePairs, *, beta: Positive = 0.1) -> ItemLosses:
    """sigmoid(beta u_w) + 1 - sigmoid(beta (u_w - u_l)): both down, the rejected more (APO-down, arXiv 2408.06266)."""
    reward_B = beta * pairs.log_ratio_B
    chosen_P, rejected_P = pairs.sides(reward_B)
    return pairs.losses(
        torch.sigmoid(chosen_P) + 1 - torch.sigmoid(chosen_P - rejected_P), reward_B
    )
