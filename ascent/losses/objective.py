"""The loss half of a row: terms by name, each a (numerator, denominator, metrics), for one micro-batch.

L = Agg[w * gate] + kl.weight * Agg[KL] + entropy.weight * mean(-H) + value.weight * mean(value loss) + auxiliary terms

`available` holds everything known about the micro-batch and the step's statistics, by the vocabulary's names
(docs/decisions/0002); every cell picks what it needs. Axes: T flat tokens, B sequences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ascent.cells import Cell
from ascent.losses import aggregate as aggregation
from ascent.losses import kl as estimators
from ascent.losses import ratios
from ascent.losses.loss import Loss, Terms, summed
from ascent.maths import masked
from ascent.maths.segments import Segments
from ascent.maths.tally import Tally, average, largest, smallest


def policy_terms(
    available: Mapping[str, Any],
    *,
    mismatch: Cell,
    ratio: Cell,
    gate: Cell,
    aggregate: Cell,
    kl: Cell | None = None,
    entropy: Cell | None = None,
    value: Cell | None = None,
    auxiliary: Sequence[Cell] = (),
) -> Terms:
    """Every term of a policy-gradient row on one micro-batch."""
    known = dict(available)
    segments, trained_T = known["segments"], known["trained_T"]
    tokens_B = aggregation.tokens_per_sequence(trained_T, segments, known["logprobs_T"].dtype)
    weights = aggregate({**known, "tokens_B": tokens_B})

    def over_sequences(loss_T: Tensor, metrics: Mapping[str, Tally]) -> Loss:
        """The row's own aggregation, for the policy term and for KL."""
        return Loss(
            aggregation.numerator(loss_T, trained_T, weights.weight_B, segments), weights.share_B.sum(), metrics
        )

    def over_tokens(loss_T: Tensor, metrics: Mapping[str, Tally]) -> Loss:
        """The mean over trained tokens, whatever the row's aggregation."""
        return Loss(masked.total(loss_T, trained_T), tokens_B.sum(), metrics)

    known.setdefault("old_T", known["logprobs_T"].detach())
    correction = mismatch(known)
    known["old_T"] = correction.anchor_T
    known["log_ratio_T"] = ratio(known)
    gated = gate(known)
    marks = {**gated.marks, **correction.marks}
    terms = {"policy": over_sequences(correction.weight_T * gated.loss_T, _ratio_metrics(known, marks))}
    if kl is not None:
        kl_T = kl(known)
        terms["kl"] = over_sequences(kl_T, {"kl_loss": average(kl_T, trained_T)})
    if entropy is not None:
        minus_T = entropy(known)
        terms["entropy"] = over_tokens(minus_T, {"entropy": average(-minus_T, trained_T)})
    if value is not None:
        terms["value"] = over_tokens(value(known), _value_metrics(known, trained_T))
    terms.update({extra.name: summed(extra(known)) for extra in auxiliary})
    return terms


def file_terms(available: Mapping[str, Any], *, loss: Cell, auxiliary: Sequence[Cell] = ()) -> Terms:
    """Every term of a row that learns from files: supervised, preferences, rankings.

    Per-sequence sums of log-probs are taken here, once, so that preference losses need not know about tokens.
    """
    known = dict(available)
    if "logprobs_T" in known:
        segments, trained_T = known["segments"], known["trained_T"]
        known["logprobs_B"] = segments.sum(masked.kept(known["logprobs_T"], trained_T))
        known["lengths_B"] = segments.sum(trained_T)
    if "reference_T" in known:
        known["reference_B"] = known["segments"].sum(masked.kept(known["reference_T"].detach(), known["trained_T"]))
    if "chosen_P" in known and "segments" in known:
        chosen_B = torch.zeros(known["segments"].count, dtype=torch.bool, device=known["chosen_P"].device)
        known["chosen_B"] = chosen_B.index_fill(0, known["chosen_P"], True)
    terms = {loss.name: summed(loss(known))}
    terms.update({extra.name: summed(extra(known)) for extra in auxiliary})
    return terms


def mismatched_score(logprobs_T: Tensor, reference_T: Tensor, trained_T: Tensor, segments: Segments) -> Tensor:
    """KTO's step statistic, as (sum, count): the log-ratio of completions put behind other prompts' questions.

    Sum the pairs over all micro-batches and ranks, divide once, and pass the quotient to every micro-batch's loss.
    """
    score_B = segments.sum(ratios.differences(logprobs_T.detach(), reference_T, trained_T))
    counted_B = segments.sum(trained_T) > 0
    return torch.stack([masked.total(score_B, counted_B), counted_B.sum().to(score_B.dtype)])


def _ratio_metrics(known: Mapping[str, Any], marks: Mapping[str, Tensor]) -> dict[str, Tally]:
    trained_T = known["trained_T"]
    ratio_T = known["log_ratio_T"].detach().exp()
    logprobs_T = known["logprobs_T"].detach()
    metrics: dict[str, Tally] = {name: average(mark_T, trained_T) for name, mark_T in marks.items()}
    metrics["kl_to_old"] = average(estimators.to_old(logprobs_T, known["old_T"], trained_T), trained_T)
    metrics["ratio_largest"] = largest(ratio_T, trained_T)
    metrics["ratio_smallest"] = smallest(ratio_T, trained_T)
    metrics["ratio_guarded"] = average(ratios.guarded(logprobs_T, known["old_T"], trained_T), trained_T)
    if "reference_T" in known:
        metrics["kl_to_reference_k1"] = average(estimators.k1(logprobs_T, known["reference_T"], trained_T), trained_T)
        metrics["kl_to_reference_k3"] = average(estimators.k3(logprobs_T, known["reference_T"], trained_T), trained_T)
    if "rollout_T" in known:
        gap_T = torch.nan_to_num(known["old_T"] - known["rollout_T"], nan=0.0).abs()
        metrics["mismatch"] = average(gap_T, trained_T)
        metrics["mismatch_largest"] = largest(gap_T, trained_T)
    return metrics


def _value_metrics(known: Mapping[str, Any], trained_T: Tensor) -> dict[str, Tally]:
    """Sums from which explained variance 1 - Var(G - V) / Var(G) is formed over the whole step."""
    values_T, returns_T = known["values_T"].detach(), known["returns_T"]
    error_T = returns_T - values_T
    return {
        "return": average(returns_T, trained_T),
        "return_squared": average(returns_T**2, trained_T),
        "value_error": average(error_T, trained_T),
        "value_error_squared": average(error_T**2, trained_T),
    }
