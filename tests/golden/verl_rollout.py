"""verl 0.9.1 rollout correction: importance weights and rejection masks.

verl's conventions: a number is a cap, "lo_hi" bounds outside of which the weight is 0; "sequence" is the product; the
k1 rejection bounds act on pi_rollout / pi_train, the inverse of the weight; a self-normalized weight is divided by its
mean.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ascent.cells import Cell, cell
from ascent.losses import kl, rejection_masks, rollout_correction
from ascent.losses.objective import step_statistics
from ascent.maths import masked
from tests.golden import conventions
from tests.golden.cases import Case, Ours
from tests.golden.packed import Rows

BY_RATIO = {"token_k1": "token", "seq_sum_k1": "product", "seq_mean_k1": "geometric"}
LEVELS = {"token": "token", "seq_sum": "sum", "seq_mean": "mean", "seq_max": "largest"}


def correction(options: dict[str, Any]) -> Cell:
    """The cell for verl's importance weights; takes its options out of the mapping."""
    options.pop("bypass_mode", None)
    level, threshold = options.pop("rollout_is", None), options.pop("rollout_is_threshold", 2.0)
    if level is None:
        return cell(rollout_correction.none)
    if isinstance(threshold, str) and "_" in threshold:
        low, high = (float(bound) for bound in threshold.split("_"))
        return cell(
            {"token": rollout_correction.token_mask, "sequence": rollout_correction.product_mask}[
                level
            ],
            low=low,
            high=high,
        )
    truncate = {
        "token": rollout_correction.token_truncate,
        "sequence": rollout_correction.product_truncate,
    }[level]
    return cell(truncate, cap=float(threshold))


def kept(options: dict[str, Any], known: Mapping[str, Any]) -> Tensor:
    """The tokens that verl's rejection keeps; takes its options out of the mapping and refuses leftovers."""
    names, thresholds = (
        options.pop("rollout_rs", None),
        str(options.pop("rollout_rs_threshold", "")),
    )
    if options:
        raise KeyError(
            f"rollout correction holds {sorted(options)}, which this adapter does not know"
        )
    if names is None:
        return torch.ones_like(known["loss_mask_T"])
    kinds, bounds = names.split(","), thresholds.split(",")
    bounds = bounds * len(kinds) if len(bounds) == 1 else bounds
    masks = [
        _rejection(kind.strip(), bound.strip())(known)
        for kind, bound in zip(kinds, bounds, strict=True)
    ]
    return functools.reduce(torch.logical_and, masks)


def _rejection(kind: str, threshold: str) -> Cell:
    """verl bounds pi_rollout / pi_train in [lo, hi]; our weight is the inverse, so it lies in [1/hi, 1/lo]."""
    level, _, measure = kind.rpartition("_")
    if measure in ("k2", "k3"):
        return cell(
            rejection_masks.distance_within,
            level=LEVELS[level],
            measure=measure,
            limit=float(threshold),
        )
    low, _, high = threshold.partition("_")
    low, high = (low, high) if high else (str(1 / float(low)), low)
    return cell(
        rejection_masks.ratio_within, level=BY_RATIO[kind], low=1 / float(high), high=1 / float(low)
    )


NORMALISED = {
    "token": rollout_correction.token_normalized,
    "sequence": rollout_correction.product_normalized,
}


def weights(case: Case) -> Ours:
    """compute_rollout_correction_weights, from log-ratios trainer - sampler."""
    rows = Rows(case.flags("response_mask"))
    known = _from_ratio(case, rows)
    options = {name: case.params[name] for name in ("rollout_is", "rollout_is_threshold")}
    level, threshold, made = (
        case.params["rollout_is"],
        str(options["rollout_is_threshold"]),
        correction(options),
    )
    tolerances = {}
    if case.params.get("rollout_is_batch_normalize"):
        tolerances = {"weights": conventions.room_for_1e8(case)}
        low, _, high = threshold.rpartition("_")
        made = cell(NORMALISED[level], low=float(low or 0), cap=float(high), reject=bool(low))
        known |= step_statistics(known, [made])
    weight_T = made(known).weight_T
    return Ours({"weights": _on_trained(weight_T, rows)}, tolerances=tolerances)


def rejection_mask(case: Case) -> Ours:
    rows = Rows(case.flags("response_mask"))
    options = {name: case.params[name] for name in ("rollout_rs", "rollout_rs_threshold")}
    keep_T = kept(options, _from_ratio(case, rows))
    return Ours({"mask": _on_trained(keep_T.double(), rows)}, _rejection_metrics(keep_T, rows))


def weights_and_mask(case: Case) -> Ours:
    """compute_rollout_correction_and_rejection_mask: both at once, from log-probs."""
    rows = Rows(case.flags("response_mask"))
    known = rows.known(
        old_logprobs_T=case.tensor("old_log_prob"),
        sampler_logprobs_T=case.tensor("rollout_log_prob"),
    )
    options = dict(case.params)
    weighted = options.get("rollout_is") is not None
    weight_T, keep_T = correction(options)(known).weight_T, kept(options, known)
    gap = {
        "kl": kl.k1(known["sampler_logprobs_T"], known["old_logprobs_T"], rows.loss_mask_T),
        "k3_kl": kl.to_old(known["old_logprobs_T"], known["sampler_logprobs_T"], rows.loss_mask_T),
    }
    metrics = {name: float(masked.mean(gap_T, rows.loss_mask_T)) for name, gap_T in gap.items()}
    metrics |= _rejection_metrics(keep_T, rows)
    return Ours(
        {
            "weights": _on_trained(weight_T, rows) if weighted else None,
            "mask": _on_trained(keep_T.double(), rows),
        },
        {f"rollout_corr/{name}": value for name, value in metrics.items()},
    )


def _from_ratio(case: Case, rows: Rows) -> dict[str, Any]:
    if case.params.get("safety_bound", rollout_correction.GUARD) != rollout_correction.GUARD:
        raise ValueError(
            f"safety_bound={case.params['safety_bound']}; our weights are held within +-{rollout_correction.GUARD}"
        )
    ratio_T = rows.pack(case.tensor("log_ratio"))
    return {
        **rows.known(),
        "old_logprobs_T": ratio_T,
        "sampler_logprobs_T": torch.zeros_like(ratio_T),
    }


def _on_trained(x_T: Tensor, rows: Rows) -> Tensor:
    return rows.unpack(masked.kept(x_T, rows.loss_mask_T))


def _rejection_metrics(keep_T: Tensor, rows: Rows) -> dict[str, float]:
    dropped_T = (~keep_T).double()
    whole_B = rows.segments.sum(masked.kept(dropped_T, rows.loss_mask_T)) > 0
    return {
        "rollout_rs_masked_fraction": float(masked.mean(dropped_T, rows.loss_mask_T)),
        "rollout_rs_seq_masked_fraction": float(whole_B.double().mean()),
    }


ADAPTERS: dict[str, Callable[[Case], Ours]] = {
    "rollout_corr_helper.compute_rollout_correction_weights": weights,
    "rollout_corr_helper.compute_rollout_rejection_mask": rejection_mask,
    "rollout_corr_helper.compute_rollout_correction_and_rejection_mask": weights_and_mask,
}
