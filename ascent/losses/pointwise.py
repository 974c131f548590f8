"""Preference losses that look at each side's own reward instead of the margin between the two.

Axes: B sequences, P pairs. u = log pi - log ref of a whole response. On the worked pair (u = 1 chosen, -2 rejected,
beta .1): nca 1.315664, bco_pair 1.242536, sppo 25.0, apo_zero .925187, apo_down .950537. A margin loss can be lowered
by letting both log-probs fall; these say where each should go.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ascent.losses.loss import ItemLosses
from ascent.losses.preferences import paired
from ascent.parameter_ranges import Positive, checked


@checked
def nca(
    logprobs_B: Tensor,
    ref_logprobs_B: Tensor,
    lengths_B: Tensor,
    chosen_P: Tensor,
    rejected_P: Tensor,
    *,
    beta: Positive = 0.1,
) -> ItemLosses:
    """Noise-contrastive alignment: -log sigmoid(r_w) - (log sigmoid(-r_w) + log sigmoid(-r_l)) / 2, r = beta u.

    NCA for pairs (arXiv 2402.05369): the chosen response's reward is pulled up, and both towards 0.
    """
    reward_B = beta * (logprobs_B - ref_logprobs_B.detach())
    won_P, lost_P = reward_B[chosen_P], reward_B[rejected_P]
    losses_P = -logsigmoid(won_P) - 0.5 * (logsigmoid(-won_P) + logsigmoid(-lost_P))
    return paired(losses_P, reward_B, logprobs_B, lengths_B, chosen_P, rejected_P)


@checked
def bco_pair(
    logprobs_B: Tensor,
    ref_logprobs_B: Tensor,
    lengths_B: Tensor,
    chosen_P: Tensor,
    rejected_P: Tensor,
    *,
    beta: Positive = 0.1,
) -> ItemLosses:
    """-log sigmoid(beta u_w) - log sigmoid(-beta u_l): a classifier of single responses, without BCO's shift."""
    reward_B = beta * (logprobs_B - ref_logprobs_B.detach())
    losses_P = -logsigmoid(reward_B[chosen_P]) - logsigmoid(-reward_B[rejected_P])
    return paired(losses_P, reward_B, logprobs_B, lengths_B, chosen_P, rejected_P)


@checked
def sppo(
    logprobs_B: Tensor,
    ref_logprobs_B: Tensor,
    lengths_B: Tensor,
    chosen_P: Tensor,
    rejected_P: Tensor,
    *,
    beta: Positive = 0.1,
) -> ItemLosses:
    """(u_w - 1/(2 beta))^2 + (u_l + 1/(2 beta))^2: self-play with hard labels (SPPO, arXiv 2405.00675)."""
    score_B = logprobs_B - ref_logprobs_B.detach()
    losses_P = (score_B[chosen_P] - 1 / (2 * beta)) ** 2 + (score_B[rejected_P] + 1 / (2 * beta)) ** 2
    return paired(losses_P, beta * score_B, logprobs_B, lengths_B, chosen_P, rejected_P)


@checked
def apo_zero(
    logprobs_B: Tensor,
    ref_logprobs_B: Tensor,
    lengths_B: Tensor,
    chosen_P: Tensor,
    rejected_P: Tensor,
    *,
    beta: Positive = 0.1,
) -> ItemLosses:
    """1 - sigmoid(beta u_w) + sigmoid(beta u_l): chosen up, rejected down (APO-zero, arXiv 2408.06266).

    For data better than the model; `apo_down` is for data worse than it.
    """
    reward_B = beta * (logprobs_B - ref_logprobs_B.detach())
    losses_P = 1 - torch.sigmoid(reward_B[chosen_P]) + torch.sigmoid(reward_B[rejected_P])
    return paired(losses_P, reward_B, logprobs_B, lengths_B, chosen_P, rejected_P)


@checked
def apo_down(
    logprobs_B: Tensor,
    ref_logprobs_B: Tensor,
    lengths_B: Tensor,
    chosen_P: Tensor,
    rejected_P: Tensor,
    *,
    beta: Positive = 0.1,
) -> ItemLosses:
    """sigmoid(beta u_w) + 1 - sigmoid(beta (u_w - u_l)): both down, the rejected more (APO-down, arXiv 2408.06266)."""
    reward_B = beta * (logprobs_B - ref_logprobs_B.detach())
    won_P, lost_P = reward_B[chosen_P], reward_B[rejected_P]
    losses_P = torch.sigmoid(won_P) + 1 - torch.sigmoid(won_P - lost_P)
    return paired(losses_P, reward_B, logprobs_B, lengths_B, chosen_P, rejected_P)
