"""The loss terms of a row on one micro-batch, by name, each a (numerator, denominator, metrics).

L = Agg[correction * token_weights * policy_loss] + kl.weight * Agg[KL] + entropy_bonus.weight * mean(-H)
    + value_loss.weight * mean(value loss) + extra losses

`available` holds the fields of the micro-batch, the model outputs and the step's statistics by name
(docs/decisions/0002); every cell picks its inputs. Axes: T flat tokens, B sequences, P pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ascent.cells import Cell
from ascent.losses import kl as estimators
from ascent.losses import length_desensitized, ratios
from ascent.losses.aggregation import numerator, tokens_per_sequence
from ascent.losses.loss import ItemLosses, Loss, Terms, summed
from ascent.losses.rollout_correction import log_weights
from ascent.maths import masked
from ascent.maths.metrics import (
    Accumulator,
    EffectiveSampleFraction,
    ExplainedVariance,
    max_of,
    mean_of,
    min_of,
    std_of,
)
from ascent.maths.segments import Segments

# Token weights that enter the sums of log-probs, which every pair loss reads.
WITHIN_SUMS = (length_desensitized.length_desensitized,)


def policy_terms(
    available: Mapping[str, Any],
    *,
    rollout_correction: Cell,
    ratio: Cell,
    policy_loss: Cell,
    aggregation: Cell,
    token_weights: Sequence[Cell] = (),
    kl: Cell | None = None,
    entropy_bonus: Cell | None = None,
    value_loss: Cell | None = None,
    extra_losses: Sequence[Cell] = (),
) -> Terms:
    """The terms of a policy-gradient row."""
    known = dict(available)
    segments, loss_mask_T = known["segments"], known["loss_mask_T"]
    tokens_B = tokens_per_sequence(loss_mask_T, segments, known["logprobs_T"].dtype)
    weights = aggregation({**known, "tokens_B": tokens_B})

    def aggregate(loss_T: Tensor, metrics: Mapping[str, Accumulator]) -> Loss:
        return Loss(
            numerator(loss_T, loss_mask_T, weights.weight_B, segments),
            weights.share_B.sum(),
            metrics,
        )

    known.setdefault("old_logprobs_T", known["logprobs_T"].detach())
    token_weight_T, dropped = _token_weights(known, token_weights)
    correction = rollout_correction(known)
    own_T = known["old_logprobs_T"]  # the trainer's; the correction may put others in their place
    known |= {"old_logprobs_T": correction.anchor_T, "correction_T": correction.weight_T}
    known["log_ratio_T"] = ratio(known)
    clipped = policy_loss(known)
    masks = {**clipped.clip_masks, **correction.clip_masks, **dropped}
    # A policy loss that takes the correction's weight as an input applies it itself.
    weight_T = (
        token_weight_T
        if "correction_T" in policy_loss.inputs
        else token_weight_T * correction.weight_T
    )
    terms = {"policy": aggregate(weight_T * clipped.loss_T, _ratio_metrics(known, own_T, masks))}
    if kl is not None:
        kl_T = kl(known)
        terms["kl"] = aggregate(kl_T, {"policy/kl_loss": mean_of(kl_T, loss_mask_T)})
    if entropy_bonus is not None:
        terms["entropy_bonus"] = Loss(
            masked.total(entropy_bonus(known), loss_mask_T), tokens_B.sum(), {}
        )
    if value_loss is not None:
        terms |= value_terms(known, value_loss=value_loss)
    terms.update({extra.name: summed(extra(known)) for extra in extra_losses})
    return terms


def value_terms(available: Mapping[str, Any], *, value_loss: Cell) -> dict[str, Loss]:
    """The critic's term: a mean over trained tokens, whatever the row's aggregation."""
    loss_mask_T = available["loss_mask_T"]
    loss_T = value_loss(available)
    tokens = loss_mask_T.sum().to(loss_T.dtype)
    return {
        "value_loss": Loss(
            masked.total(loss_T, loss_mask_T), tokens, _value_metrics(available, loss_mask_T)
        )
    }


def file_terms(
    available: Mapping[str, Any],
    *,
    loss: Cell,
    token_weights: Sequence[Cell] = (),
    extra_losses: Sequence[Cell] = (),
    evaluate: Callable[[Cell, Mapping[str, Any]], ItemLosses] = Cell.__call__,
) -> Terms:
    """The terms of a row that learns from files: supervised, preferences, rankings.

    A token weight multiplies the loss, and those of the extra losses that have the same shape. One of WITHIN_SUMS
    multiplies tokens in the sums instead. `evaluate` calls the loss.
    """
    known = with_sums(available, token_weights)
    terms = {
        loss.name: evaluate(loss, known),
        **{extra.name: extra(known) for extra in extra_losses},
    }
    shape = terms[loss.name].losses.shape
    for cell in [each for each in token_weights if each.function not in WITHIN_SUMS]:
        weight = cell(known).detach()
        if weight.shape != shape:
            raise ValueError(
                f"token_weights {cell.name} gives {tuple(weight.shape)} weights for {tuple(shape)} losses of "
                f"{loss.name}; it is for another kind of loss"
            )
        weighted = {name: each for name, each in terms.items() if each.losses.shape == shape}
        terms |= {
            name: each._replace(losses=each.losses * weight) for name, each in weighted.items()
        }
    return {name: summed(each) for name, each in terms.items()}


def step_statistics(
    available: Mapping[str, Any],
    cells: Sequence[Cell],
    *,
    rollout_correction: Cell | None = None,
    ratio: Cell | None = None,
) -> dict[str, Tensor]:
    """The step statistics of the cells, from the whole optimizer step and without gradient.

    With a rollout row's `rollout_correction` and `ratio`, statistics of the policy loss read the ratio that it reads.
    """
    known = with_sums(
        {name: x.detach() if isinstance(x, Tensor) else x for name, x in available.items()}, cells
    )
    if rollout_correction is not None and ratio is not None and "logprobs_T" in known:
        known.setdefault("old_logprobs_T", known["logprobs_T"])
        anchors = {
            name: statistic(known) for name, statistic in rollout_correction.statistics.items()
        }
        known["old_logprobs_T"] = rollout_correction({**known, **anchors}).anchor_T
        known["log_ratio_T"] = ratio(known)
    with torch.no_grad():
        return {
            name: statistic(known) for each in cells for name, statistic in each.statistics.items()
        }


def with_sums(available: Mapping[str, Any], cells: Sequence[Cell] = ()) -> dict[str, Any]:
    """Add per-sequence sums of log-probs, for preference losses. Cells of WITHIN_SUMS weigh the tokens in them."""
    known = dict(available)
    weights = [each(known) for each in cells if each.function in WITHIN_SUMS]

    def total(x_T: Tensor) -> Tensor:
        kept_T = masked.kept(x_T, known["loss_mask_T"])
        for weight_T in weights:
            kept_T = kept_T * weight_T.to(kept_T.dtype)
        summed_B: Tensor = known["segments"].sum(kept_T)
        return summed_B

    if "logprobs_T" in known:
        known["logprobs_B"] = total(known["logprobs_T"])
        known["lengths_B"] = known["segments"].sum(known["loss_mask_T"])
    if "ref_logprobs_T" in known:
        known["ref_logprobs_B"] = total(known["ref_logprobs_T"].detach())
    if "chosen_P" in known and "segments" in known:
        chosen_B = torch.zeros(
            known["segments"].count, dtype=torch.bool, device=known["chosen_P"].device
        )
        known["chosen_B"] = chosen_B.index_fill(0, known["chosen_P"], True)
    return known


def _token_weights(
    known: Mapping[str, Any], cells: Sequence[Cell]
) -> tuple[Tensor, dict[str, Tensor]]:
    """The product of the token weights, and which tokens each of them drops."""
    token_weight_T, dropped = torch.ones_like(known["logprobs_T"]).detach(), {}
    for each in cells:
        weight_T = each(known).detach()
        token_weight_T = token_weight_T * weight_T
        dropped[f"policy/dropped_frac_{each.name}"] = weight_T == 0
    return token_weight_T, dropped


def mismatched_score(
    logprobs_T: Tensor, ref_logprobs_T: Tensor, loss_mask_T: Tensor, segments: Segments
) -> Tensor:
    """KTO's reference point as (sum, count): the log-ratio of completions behind other prompts."""
    score_B = segments.sum(ratios.differences(logprobs_T.detach(), ref_logprobs_T, loss_mask_T))
    counted_B = segments.sum(loss_mask_T) > 0
    return torch.stack([masked.total(score_B, counted_B), counted_B.sum().to(score_B.dtype)])


def _ratio_metrics(
    known: Mapping[str, Any], own_T: Tensor, masks: Mapping[str, Tensor]
) -> dict[str, Accumulator]:
    loss_mask_T = known["loss_mask_T"]
    ratio_T = known["log_ratio_T"].detach().exp()
    logprobs_T = known["logprobs_T"].detach()
    metrics: dict[str, Accumulator] = {
        name: mean_of(mask_T, loss_mask_T) for name, mask_T in masks.items()
    }
    metrics["policy/approx_kl"] = mean_of(
        estimators.to_old(logprobs_T, known["old_logprobs_T"], loss_mask_T), loss_mask_T
    )
    metrics["policy/ratio_max"] = max_of(ratio_T, loss_mask_T)
    metrics["policy/ratio_min"] = min_of(ratio_T, loss_mask_T)
    metrics["policy/ratio_clamped_frac"] = mean_of(
        ratios.guarded(logprobs_T, known["old_logprobs_T"], loss_mask_T), loss_mask_T
    )
    if "ref_logprobs_T" in known:
        metrics["policy/ref_kl_k1"] = mean_of(
            estimators.k1(logprobs_T, known["ref_logprobs_T"], loss_mask_T), loss_mask_T
        )
        metrics["policy/ref_kl"] = mean_of(
            estimators.k3(logprobs_T, known["ref_logprobs_T"], loss_mask_T), loss_mask_T
        )
    if "sampler_logprobs_T" in known:
        metrics |= _sampler_metrics(own_T, known["sampler_logprobs_T"], loss_mask_T)
    if "entropy_T" in known:
        metrics["policy/entropy"] = mean_of(known["entropy_T"], loss_mask_T)
    return metrics


def _sampler_metrics(
    own_T: Tensor, sampler_logprobs_T: Tensor, loss_mask_T: Tensor
) -> dict[str, Accumulator]:
    """How far the sampler's log-probs are from the trainer's, on the tokens for which it gave one."""
    unknown_T = torch.isnan(sampler_logprobs_T)
    known_T = loss_mask_T & ~unknown_T
    gap_T = (own_T - sampler_logprobs_T).abs()
    weight_T = log_weights(own_T, sampler_logprobs_T, loss_mask_T).exp()
    return {
        "sampler/unknown_frac": mean_of(unknown_T, loss_mask_T),
        "sampler/logprob_diff": mean_of(gap_T, known_T),
        "sampler/logprob_diff_max": max_of(gap_T, known_T),
        "sampler/is_weight": mean_of(weight_T, known_T),
        "sampler/is_ess": EffectiveSampleFraction(std_of(weight_T, known_T)),
    }


def _value_metrics(known: Mapping[str, Any], loss_mask_T: Tensor) -> dict[str, Accumulator]:
    values_T, returns_T = known["values_T"].detach(), known["returns_T"]
    return {
        "critic/return": mean_of(returns_T, loss_mask_T),
        "critic/value_error": mean_of(returns_T - values_T, loss_mask_T),
        "critic/explained_variance": ExplainedVariance(
            std_of(returns_T - values_T, loss_mask_T), std_of(returns_T, loss_mask_T)
        ),
    }
