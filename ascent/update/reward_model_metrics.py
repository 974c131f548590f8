"""Metrics of a reward model on held-out data: calibration, Brier score, correlation with length.

`accumulate` sums in float64 over a micro-batch; `finalize` computes the metrics from the merged sums. Axes: T flat
tokens, B responses, P pairs, N bins.

The score difference of a pair is a log-odds, so the model says that the better-scored response wins with probability
sigmoid(|difference|), between 1/2 and 1. Expected calibration error: cut that range into ten bins of equal width; in
each, compare the mean probability with the share of pairs that were won; average the gaps, weighted by pairs. Brier
score: mean of (1 - sigmoid(chosen - rejected))^2; 1/4 for a model that knows nothing. A pair with equal scores is half
won. Worked example, differences [2, .1, -1]: probabilities .881, .525, .731 in the bins 8, 1 and 5, won 1, 1, 0:
error (.119 + .475 + .731) / 3 = .4418; Brier (.0142 + .2257 + .5344) / 3 = .2581.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ascent.losses.loss import Terms
from ascent.maths.metrics import Accumulator, Mean
from ascent.update.objective import Objective

BINS = 10
# Sums that are not metrics themselves.
_PARTS = "score_sums/"


@dataclass(frozen=True)
class _ScoredObjective(Objective):
    """An objective whose metrics also hold the sums that `finalize` needs."""

    def terms(self, batch: Mapping[str, Any]) -> Terms:
        found = dict(super().terms(batch))
        name, first = next(iter(found.items()))
        found[name] = first._replace(metrics={**first.metrics, **accumulate(batch)})
        return found


def with_reward_model_metrics(objective: Objective) -> Objective:
    """The same objective for evaluation, with the metrics of reward models where it reads scores."""
    if "scores_B" not in objective.want:
        return objective
    return _ScoredObjective(objective.row, objective.weights, objective.part)


def accumulate(batch: Mapping[str, Any]) -> dict[str, Accumulator]:
    """The sums of one micro-batch of pairs (`chosen_P`, `rejected_P`) or rankings (`ranks_B`, `groups`)."""
    scores_B = batch["scores_B"].detach().double()
    won_P, lost_P = _pairs(batch)
    gap_P = scores_B[won_P] - scores_B[lost_P]
    surplus_P = (
        torch.sigmoid(gap_P.abs()) - (gap_P.sign() + 1) / 2
    )  # probability given minus won or not
    bin_P = ((torch.sigmoid(gap_P.abs()) - 0.5) * (2 * BINS)).long().clamp(max=BINS - 1)
    in_NP = bin_P == torch.arange(BINS, device=bin_P.device)[:, None]
    total_N, over_N = torch.where(in_NP, surplus_P, 0.0).sum(1), in_NP.sum(1)
    found: dict[str, Accumulator] = {
        f"{_PARTS}bin{n}": Mean(total_N[n], over_N[n]) for n in range(BINS)
    }
    found["preference/brier"] = _mean(torch.sigmoid(-gap_P) ** 2)
    length_B = batch["segments"].sum(batch["loss_mask_T"]).double()
    products = {
        "s": scores_B,
        "l": length_B,
        "ss": scores_B**2,
        "ll": length_B**2,
        "sl": scores_B * length_B,
    }
    return found | {f"{_PARTS}{name}": _mean(each) for name, each in products.items()}


def finalize(stats: Mapping[str, Accumulator]) -> dict[str, float]:
    """The value of every metric."""
    plain = {name: each.value() for name, each in stats.items() if not name.startswith(_PARTS)}
    if f"{_PARTS}s" not in stats:
        return plain
    bins = [stats[f"{_PARTS}bin{n}"] for n in range(BINS)]
    pairs = sum(float(each.over) for each in bins if isinstance(each, Mean))
    gaps = sum(abs(float(each.total)) for each in bins if isinstance(each, Mean))
    moments = {name: stats[_PARTS + name].value() for name in ("s", "l", "ss", "ll", "sl")}
    return plain | {
        "preference/calibration_error": gaps / pairs if pairs else math.nan,
        "preference/length_correlation": _correlation(**moments),
    }


def _correlation(s: float, l: float, ss: float, ll: float, sl: float) -> float:  # noqa: E741 - score and length
    """Pearson's correlation from means of products; NaN where a variance is 0."""
    variances = (ss - s * s, ll - l * l)
    if min(variances[0] / max(ss, 1e-300), variances[1] / max(ll, 1e-300)) < 1e-12:
        return math.nan
    return (sl - s * l) / math.sqrt(variances[0] * variances[1])


def _pairs(batch: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """Which response beat which: the pairs of the data, or all untied pairs of each ranking."""
    if "chosen_P" in batch:
        return batch["chosen_P"], batch["rejected_P"]
    ids_B, ranks_B = batch["groups"].ids_B, batch["ranks_B"]
    better_BB = (ids_B[:, None] == ids_B[None, :]) & (ranks_B[:, None] < ranks_B[None, :])
    won_P, lost_P = better_BB.nonzero(as_tuple=True)
    return won_P, lost_P


def _mean(x: Tensor) -> Mean:
    return Mean(x.sum(), torch.tensor(x.numel(), device=x.device))
