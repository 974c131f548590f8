"""Preference losses on summed log-probs, one loss per pair (or per row, where rows are judged alone).

Axes: B sequences, P pairs. `logprobs_B` and `reference_B` are sums over a sequence's trained tokens, `lengths_B` counts
them, `chosen_P` and `rejected_P` say which sequences form pair p. With u = log pi - log ref of a sequence and
h = u_chosen - u_rejected, the worked pair of the tests (log pi -10 over 5 tokens against -14 over 8; ref -11 and -12;
beta .1) has u = 1 and -2, h = 3: dpo .554355, hinge .7, ipo_sum 4.0, ipo_mean 20.7025.

A pair with an empty member carries no information and is not counted. Reference log-probs never carry a gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ascent.bounds import BelowHalf, NonNegative, Positive, checked
from ascent.losses.loss import Each
from ascent.maths.logprobs import log1mexp
from ascent.maths.tally import Tally, average


@checked
def dpo(
    logprobs_B: Tensor,
    reference_B: Tensor,
    lengths_B: Tensor,
    chosen_P: Tensor,
    rejected_P: Tensor,
    *,
    beta: Positive = 0.1,
    label_smoothing: BelowHalf = 0.0,
) -> Each:
    """-log sigmoid(beta h), DPO (arXiv 2305.18290); label_smoothing e > 0 mixes in the flipped pair (cDPO)."""
    score_B = logprobs_B - reference_B.detach()
    losses_P = smoothed(beta * (score_B[chosen_P] - score_B[rejected_P]), label_smoothing)
    return _pairs(losses_P, beta * score_B, logprobs_B, lengths_B, chosen_P, rejected_P)


@checked
def reference_free(
    logprobs_B: Tensor,
    lengths_B: Tensor,
    chosen_P: Tensor,
    rejected_P: Tensor,
    *,
    beta: Positive = 0.1,
    label_smoothing: BelowHalf = 0.0,
) -> Each:
    """DPO with a uniform reference: -log sigmoid(beta (log pi_chosen - log pi_rejected)); CPO's first half."""
    losses_P = smoothed(beta * (logprobs_B[chosen_P] - logprobs_B[rejected_P]), label_smoothing)
    return _pairs(losses_P, beta * logprobs_B, logprobs_B, lengths_B, chosen_P, rejected_P)


@checked
def hinge(
    logprobs_B: Tensor,
    reference_B: Tensor,
    lengths_B: Tensor,
    chosen_P: Tensor,
    rejected_P: Tensor,
    *,
    beta: Positive = 0.1,
) -> Each:
    """max(0, 1 - beta h): the hinge of SLiC on DPO's log-ratios."""
    score_B = logprobs_B - reference_B.detach()
    losses_P = (1 - beta * (score_B[chosen_P] - score_B[rejected_P])).relu()
    return _pairs(losses_P, beta * score_B, logprobs_B, lengths_B, chosen_P, rejected_P)


@checked
def ipo_sum(
    logprobs_B: Tensor,
    reference_B: Tensor,
    lengths_B: Tensor,
    chosen_P: Tensor,
    rejected_P: Tensor,
    *,
    beta: Positive = 0.1,
) -> Each:
    """(h - 1/(2 beta))^2 on summed log-ratios: IPO as in the DPO authors' code and OpenRLHF."""
    score_B = logprobs_B - reference_B.detach()
    losses_P = (score_B[chosen_P] - score_B[rejected_P] - 1 / (2 * beta)) ** 2
    return _pairs(losses_P, beta * score_B, logprobs_B, lengths_B, chosen_P, rejected_P)


@checked
def ipo_mean(
    logprobs_B: Tensor,
    reference_B: Tensor,
    lengths_B: Tensor,
    chosen_P: Tensor,
    rejected_P: Tensor,
    *,
    beta: Positive = 0.1,
) -> Each:
    """IPO on log-ratios averaged over each response's tokens: the IPO authors' reading, and TRL's; the same beta means
    something very different from `ipo_sum`."""
    score_B = (logprobs_B - reference_B.detach()) / lengths_B.clamp(min=1)
    losses_P = (score_B[chosen_P] - score_B[rejected_P] - 1 / (2 * beta)) ** 2
    return _pairs(losses_P, beta * score_B, logprobs_B, lengths_B, chosen_P, rejected_P)


@checked
def simpo(
    logprobs_B: Tensor,
    lengths_B: Tensor,
    chosen_P: Tensor,
    rejected_P: Tensor,
    *,
    beta: Positive = 2.5,
    margin: NonNegative = 1.375,
    label_smoothing: BelowHalf = 0.0,
) -> Each:
    """-log sigmoid(beta (a_chosen - a_rejected) - margin), a = mean token log-prob, no reference (arXiv 2405.14734).

    `margin` is the paper's gamma itself; some configs give gamma / beta.
    """
    mean_B = logprobs_B / lengths_B.clamp(min=1)
    losses_P = smoothed(beta * (mean_B[chosen_P] - mean_B[rejected_P]) - margin, label_smoothing)
    return _pairs(losses_P, beta * mean_B, logprobs_B, lengths_B, chosen_P, rejected_P)


def odds_ratio(logprobs_B: Tensor, lengths_B: Tensor, chosen_P: Tensor, rejected_P: Tensor) -> Each:
    """-log sigmoid(log odds_chosen - log odds_rejected), odds from the mean token log-prob; ORPO's term."""
    mean_B = logprobs_B / lengths_B.clamp(min=1)
    odds_B = mean_B - log1mexp(mean_B)
    losses_P = -logsigmoid(odds_B[chosen_P] - odds_B[rejected_P])
    return _pairs(losses_P, mean_B, logprobs_B, lengths_B, chosen_P, rejected_P)


@checked
def kto(
    logprobs_B: Tensor,
    reference_B: Tensor,
    lengths_B: Tensor,
    desirable_B: Tensor,
    mismatched_score: Tensor,
    *,
    beta: Positive = 0.1,
    desirable_weight: NonNegative = 1.0,
    undesirable_weight: NonNegative = 1.0,
) -> Each:
    """Unpaired: weight * (1 - sigmoid(+-beta (u - z))) for desirable and undesirable rows (arXiv 2402.01306).

    z = max(0, mean u of completions paired with other prompts) is a step statistic: `mismatched_score` is that mean
    over the whole optimizer step, computed before any micro-batch is trained.
    """
    score_B = logprobs_B - reference_B.detach()
    point = torch.as_tensor(mismatched_score).detach().clamp(min=0)
    sign_B = torch.where(desirable_B, 1.0, -1.0).to(score_B.dtype)
    weight_B = torch.full_like(score_B, undesirable_weight).masked_fill(desirable_B, desirable_weight)
    losses_B = weight_B * (1 - torch.sigmoid(sign_B * beta * (score_B - point)))
    counted_B = lengths_B > 0
    reward_B = beta * score_B
    metrics: dict[str, Tally] = {
        "reward_desirable": average(reward_B, counted_B & desirable_B),
        "reward_undesirable": average(reward_B, counted_B & ~desirable_B),
    }
    return Each(losses_B, counted_B, metrics)


def smoothed(logits_P: Tensor, label_smoothing: float) -> Tensor:
    """-(1 - e) log sigmoid(z) - e log sigmoid(-z)."""
    return -(1 - label_smoothing) * logsigmoid(logits_P) - label_smoothing * logsigmoid(-logits_P)


def _pairs(
    losses_P: Tensor, reward_B: Tensor, logprobs_B: Tensor, lengths_B: Tensor, chosen_P: Tensor, rejected_P: Tensor
) -> Each:
    """The losses with their metrics; pairs with an empty member are not counted."""
    counted_P = (lengths_B[chosen_P] > 0) & (lengths_B[rejected_P] > 0)
    won_P, lost_P = reward_B[chosen_P], reward_B[rejected_P]
    metrics: dict[str, Tally] = {
        "accuracy": average(won_P > lost_P, counted_P),
        "margin": average(won_P - lost_P, counted_P),
        "reward_chosen": average(won_P, counted_P),
        "reward_rejected": average(lost_P, counted_P),
        "logprobs_chosen": average(logprobs_B[chosen_P], counted_P),
        "logprobs_rejected": average(logprobs_B[rejected_P], counted_P),
    }
    return Each(losses_P, counted_P, metrics)
