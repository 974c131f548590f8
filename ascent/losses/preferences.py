"""Preference losses on the margin between two responses, one loss per pair.

Axes: B sequences, P pairs. With u = log pi - log ref of a sequence and h = u_chosen - u_rejected, the worked pair of
the tests (log pi -10 over 5 tokens against -14 over 8; ref -11 and -12; beta .1) has u = 1 and -2, h = 3:

  dpo .554355       dpo_mean .670900     robust (e .1) .516855   exo (e .001) 2.258199   discopop (tau .05) .740357
  hinge .7          ipo_sum 4.0          ipo_mean 20.7025        reference_free_hinge .6
  reference_free_ipo 27.5625

`divergence` puts another f-divergence in the place of the reverse KL (f-DPO, arXiv 2309.16240): h becomes the
difference of phi(u), each a function of the whole response's log-ratio.

  reverse_kl u   forward_kl 1 - e^-u   jensen_shannon log 2 + log sigmoid(u)   alpha (e^((a - 1) u) - 1) / (a - 1)

Losses on each response's own reward are in `pointwise`, losses without pairs in `kto_bco`.
"""

from __future__ import annotations

import math
from typing import Annotated

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ascent.cells import from_inputs
from ascent.losses.loss import ItemLosses
from ascent.losses.pairs import Pairs, ReferencePairs
from ascent.maths.logprobs import log1mexp
from ascent.parameter_ranges import RARE, BelowHalf, NonNegative, OneOf, Positive, Range, checked

Divergence = Annotated[str, OneOf(("reverse_kl", "forward_kl", "jensen_shannon", "alpha"))]
Smoothing = Annotated[float, Range(above=0, below=0.5)]


@checked
@from_inputs(ReferencePairs)
def dpo(
    pairs: ReferencePairs,
    *,
    beta: Positive = 0.1,
    label_smoothing: BelowHalf = 0.0,
    divergence: Divergence = "reverse_kl",
    alpha: float = 0.5,
) -> ItemLosses:
    """-log sigmoid(beta h), DPO (arXiv 2305.18290); label_smoothing e > 0 mixes in the flipped pair (cDPO)."""
    losses_P = smoothed(
        beta * pairs.margin(phi(pairs.log_ratio_B, divergence, alpha)), label_smoothing
    )
    return pairs.losses(losses_P, beta * pairs.log_ratio_B)


@checked
@from_inputs(ReferencePairs)
def dpo_mean(
    pairs: ReferencePairs,
    *,
    beta: Positive = 0.1,
    divergence: Divergence = "reverse_kl",
    alpha: float = 0.5,
) -> ItemLosses:
    """DPO on scores divided by each response's length: -log sigmoid(beta (phi(u_w) / n_w - phi(u_l) / n_l)).

    The length-normalized DPO of Tulu 3 (arXiv 2411.15124); beta is larger there (5), for means are small.
    """
    score_B = pairs.per_token(phi(pairs.log_ratio_B, divergence, alpha))
    return pairs.losses(-logsigmoid(beta * pairs.margin(score_B)), beta * pairs.log_ratio_B)


@checked
@from_inputs(ReferencePairs)
def robust(
    pairs: ReferencePairs,
    *,
    beta: Positive = 0.1,
    label_smoothing: BelowHalf = 0.1,
    divergence: Divergence = "reverse_kl",
    alpha: float = 0.5,
) -> ItemLosses:
    """DPO's loss made unbiased when a share e of the labels is wrong: [(1 - e) l(z) - e l(-z)] / (1 - 2e).

    Robust DPO (arXiv 2403.00409). e is `label_smoothing`; at 0 this is DPO. The loss can be negative.
    """
    logits_P = beta * pairs.margin(phi(pairs.log_ratio_B, divergence, alpha))
    wrong = label_smoothing
    losses_P = (wrong * logsigmoid(-logits_P) - (1 - wrong) * logsigmoid(logits_P)) / (
        1 - 2 * wrong
    )
    return pairs.losses(losses_P, beta * pairs.log_ratio_B)


@checked
@from_inputs(ReferencePairs)
def exo(
    pairs: ReferencePairs,
    *,
    beta: Positive = 0.1,
    label_smoothing: Smoothing = 1e-3,
    divergence: Divergence = "reverse_kl",
    alpha: float = 0.5,
) -> ItemLosses:
    """KL from the model's distribution over the pair to the labels' (1 - e, e): the reverse of DPO's direction.

    EXO (arXiv 2402.00856). label_smoothing must be above 0: the KL to a hard label is infinite.
    """
    logits_P = beta * pairs.margin(phi(pairs.log_ratio_B, divergence, alpha))
    losses_P = torch.sigmoid(logits_P) * (logsigmoid(logits_P) - math.log1p(-label_smoothing))
    losses_P = losses_P + torch.sigmoid(-logits_P) * (
        logsigmoid(-logits_P) - math.log(label_smoothing)
    )
    return pairs.losses(losses_P, beta * pairs.log_ratio_B)


@checked
@from_inputs(ReferencePairs)
def discopop(
    pairs: ReferencePairs,
    *,
    beta: Positive = 0.1,
    tau: Annotated[Positive, RARE] = 0.05,
    divergence: Divergence = "reverse_kl",
    alpha: float = 0.5,
) -> ItemLosses:
    """A loss found by a language model: the logistic loss blended into e^-z by sigmoid(z / tau), z = beta h.

    DiscoPOP (arXiv 2406.08414). Not convex; the blend carries a gradient too. At z = 0 the slope in z is
    (1 - log 2) / (4 tau) - 3/4, which is +.784 at tau .05: there the loss falls when the rejected response gains.
    """
    logits_P = beta * pairs.margin(phi(pairs.log_ratio_B, divergence, alpha))
    blend_P = torch.sigmoid(logits_P / tau)
    # blend * e^-z in one exponent: far below 0 it would be 0 times infinity.
    losses_P = -(1 - blend_P) * logsigmoid(logits_P) + torch.exp(
        logsigmoid(logits_P / tau) - logits_P
    )
    return pairs.losses(losses_P, beta * pairs.log_ratio_B)


@checked
@from_inputs(ReferencePairs)
def hinge(
    pairs: ReferencePairs,
    *,
    beta: Positive = 0.1,
    divergence: Divergence = "reverse_kl",
    alpha: float = 0.5,
) -> ItemLosses:
    """max(0, 1 - beta h): the hinge of SLiC on DPO's log-ratios."""
    losses_P = (1 - beta * pairs.margin(phi(pairs.log_ratio_B, divergence, alpha))).relu()
    return pairs.losses(losses_P, beta * pairs.log_ratio_B)


@checked
@from_inputs(ReferencePairs)
def ipo_sum(pairs: ReferencePairs, *, beta: Positive = 0.1) -> ItemLosses:
    """(h - 1/(2 beta))^2 on summed log-ratios: IPO as in the DPO authors' code and OpenRLHF."""
    return pairs.losses(
        (pairs.margin(pairs.log_ratio_B) - 1 / (2 * beta)) ** 2, beta * pairs.log_ratio_B
    )


@checked
@from_inputs(ReferencePairs)
def ipo_mean(
    pairs: ReferencePairs,
    *,
    beta: Positive = 0.1,
    divergence: Divergence = "reverse_kl",
    alpha: float = 0.5,
) -> ItemLosses:
    """IPO on log-ratios averaged over each response's tokens: the IPO authors' reading, and TRL's.

    The same beta means something very different from `ipo_sum`.
    """
    score_B = pairs.per_token(phi(pairs.log_ratio_B, divergence, alpha))
    return pairs.losses((pairs.margin(score_B) - 1 / (2 * beta)) ** 2, beta * score_B)


@checked
@from_inputs(Pairs)
def reference_free(
    pairs: Pairs, *, beta: Positive = 0.1, label_smoothing: BelowHalf = 0.0
) -> ItemLosses:
    """DPO with a uniform reference: -log sigmoid(beta (log pi_chosen - log pi_rejected)); CPO's first half."""
    return pairs.losses(
        smoothed(beta * pairs.margin(pairs.logprobs_B), label_smoothing), beta * pairs.logprobs_B
    )


@checked
@from_inputs(Pairs)
def reference_free_hinge(pairs: Pairs, *, beta: Positive = 0.1) -> ItemLosses:
    """max(0, 1 - beta (log pi_chosen - log pi_rejected)): SLiC-HF's own hinge (arXiv 2305.10425), CPO's and TPO's.

    The paper's margin delta is 1 / beta, its loss this one over beta. -10 against -14 at beta .1: 1 - .1 * 4 = .6.
    """
    return pairs.losses((1 - beta * pairs.margin(pairs.logprobs_B)).relu(), beta * pairs.logprobs_B)


@checked
@from_inputs(Pairs)
def reference_free_ipo(pairs: Pairs, *, beta: Positive = 0.1) -> ItemLosses:
    """(a_chosen - a_rejected - 1/(2 beta))^2, a = mean token log-prob, no reference: IPO in CPO and TPO.

    The gap it wants is one of means: 5 nats per token at beta .1, half a nat at 1, which leaves a model more itself.
    -10 over 5 tokens against -14 over 8, beta .1: (-2 + 1.75 - 5)^2 = 27.5625.
    """
    return pairs.losses((pairs.margin(pairs.mean_B) - 1 / (2 * beta)) ** 2, beta * pairs.mean_B)


@checked
@from_inputs(Pairs)
def simpo(
    pairs: Pairs,
    *,
    beta: Positive = 2.5,
    margin: NonNegative = 1.375,
    label_smoothing: BelowHalf = 0.0,
) -> ItemLosses:
    """-log sigmoid(beta (a_chosen - a_rejected) - margin), a = mean token log-prob, no reference (arXiv 2405.14734).

    `margin` is the paper's gamma itself; some configs give gamma / beta.
    """
    return pairs.losses(
        smoothed(beta * pairs.margin(pairs.mean_B) - margin, label_smoothing), beta * pairs.mean_B
    )


@checked
@from_inputs(Pairs)
def alphapo(
    pairs: Pairs,
    *,
    beta: Positive = 2.5,
    margin: NonNegative = 0.3,
    alpha: float = 0.25,
    label_smoothing: BelowHalf = 0.0,
) -> ItemLosses:
    """SimPO with a bent reward r(a) = (1 - e^(-alpha a)) / alpha of the mean token log-prob a (arXiv 2501.03884).

    alpha 0 is SimPO. Alpha .25, a = -2 against -1.75, beta 2.5, margin .3: r = -2.594885, -2.195321, loss 1.540152.
    """
    score_B = bent(pairs.mean_B, alpha)
    return pairs.losses(
        smoothed(beta * pairs.margin(score_B) - margin, label_smoothing), beta * score_B
    )


@from_inputs(Pairs)
def odds_ratio(pairs: Pairs) -> ItemLosses:
    """-log sigmoid(log odds_chosen - log odds_rejected), odds from the mean token log-prob; ORPO's term."""
    mean_B = pairs.mean_B
    log_odds_B = mean_B - log1mexp(mean_B)
    return pairs.losses(-logsigmoid(pairs.margin(log_odds_B)), mean_B)


def smoothed(logits_P: Tensor, label_smoothing: float) -> Tensor:
    """-(1 - e) log sigmoid(z) - e log sigmoid(-z)."""
    return -(1 - label_smoothing) * logsigmoid(logits_P) - label_smoothing * logsigmoid(-logits_P)


def bent(mean_B: Tensor, alpha: float) -> Tensor:
    """AlphaPO's reward (1 - e^(-alpha a)) / alpha; a itself at alpha 0."""
    return mean_B if alpha == 0 else -torch.expm1(-alpha * mean_B) / alpha


def phi(log_ratio_B: Tensor, divergence: str, alpha: float) -> Tensor:
    """phi(u) of the named f-divergence (module docstring); exponents are clamped to 80 against overflow."""
    if divergence == "forward_kl":
        return 1 - torch.exp((-log_ratio_B).clamp(max=80))
    if divergence == "jensen_shannon":
        return math.log(2) + logsigmoid(log_ratio_B)
    if divergence == "alpha" and abs(alpha - 1) > 1e-6:
        return torch.expm1(((alpha - 1) * log_ratio_B).clamp(max=80)) / (alpha - 1)
    return log_ratio_B
