"""Mismatch corrections by hand."""

from __future__ import annotations

import math

import pytest
import torch

from ascent.cells import cell
from ascent.losses import rollout_correction
from ascent.losses.objective import step_statistics
from ascent.maths.segments import Segments

SEGMENTS = Segments.from_lengths([3, 2])
OLD = torch.tensor([-1.0, -1, -1, -2, -2], dtype=torch.float64)
ROLL = torch.tensor([-2.5, -1, -1, -2, -1.6], dtype=torch.float64)
ALL = torch.ones(5, dtype=torch.bool)


def near(x, expected) -> None:
    assert x.tolist() == pytest.approx(expected, abs=1e-6)


def test_golden_numbers_g8() -> None:
    near(rollout_correction.log_weights(OLD, ROLL, ALL).exp(), [4.481689, 1, 1, 1, 0.67032])
    near(rollout_correction.token_truncate(OLD, ROLL, ALL, cap=2.0).weight_T, [2, 1, 1, 1, 0.67032])
    near(
        rollout_correction.token_mask(OLD, ROLL, ALL, low=0.5, high=5.0).weight_T,
        [4.481689, 1, 1, 1, 0.67032],
    )
    product = rollout_correction.product_truncate(OLD, ROLL, ALL, SEGMENTS, cap=100.0).weight_T
    near(product, [4.481689] * 3 + [0.67032] * 2)
    near(
        rollout_correction.geometric_truncate(OLD, ROLL, ALL, SEGMENTS, cap=100.0).weight_T,
        [1.648721] * 3 + [0.818731] * 2,
    )


def test_masks_reject_outside_their_bounds_inclusively() -> None:
    near(rollout_correction.token_mask(OLD, ROLL, ALL, low=0.7, high=4.0).weight_T, [0, 1, 1, 1, 0])
    near(
        rollout_correction.product_mask(OLD, ROLL, ALL, SEGMENTS, high=3.0).weight_T,
        [0, 0, 0, 0.67032, 0.67032],
    )
    near(
        rollout_correction.product_mask(OLD, ROLL, ALL, SEGMENTS, low=0.7, high=9.0).weight_T,
        [4.481689] * 3 + [0, 0],
    )
    near(
        rollout_correction.geometric_filter(OLD, ROLL, ALL, SEGMENTS, low=0.8, high=1.2).weight_T,
        [0, 0, 0, 1, 1],
    )
    kept = rollout_correction.geometric_mask(OLD, ROLL, ALL, SEGMENTS, low=0.5, high=5.0, cap=2.0)
    near(kept.weight_T, [2, 1, 1, 1, 0.67032])  # the clamp that one peer documents and forgets
    edge = rollout_correction.token_mask(OLD, OLD, ALL, low=1.0, high=1.0)
    near(edge.weight_T, [1] * 5)
    assert not bool(edge.clip_masks["sampler/is_rejected_frac"].any())


def test_the_product_holds_the_sum_and_not_its_terms() -> None:
    """ALGORITHMS A10.1: tokens of +25 and -24 nats multiply to e; held one by one they would cancel to 1."""
    old, rollout = torch.tensor([-1.0, -25.0]), torch.tensor([-26.0, -1.0])
    trained, one = torch.ones(2, dtype=torch.bool), Segments.from_lengths([2])
    near(
        rollout_correction.product_truncate(old, rollout, trained, one, cap=100.0).weight_T,
        [2.718282] * 2,
    )
    near(
        rollout_correction.product_mask(old, rollout, trained, one, low=0.0, high=3.0).weight_T,
        [2.718282] * 2,
    )
    wild = rollout_correction.product_truncate(
        torch.tensor([-1.0, -1.0]), torch.tensor([-90.0, -90.0]), trained, one, cap=1e30
    )
    assert wild.weight_T.tolist() == pytest.approx([math.exp(20)] * 2, rel=1e-6)


@pytest.mark.parametrize("name", ["token_truncate", "product_truncate"])
def test_a_floor_above_its_cap_is_refused_when_the_cell_is_made(name: str) -> None:
    with pytest.raises(
        ValueError, match=rf"{name}: floor=3.0 > cap=2.0, but it must not exceed it"
    ):
        cell(getattr(rollout_correction, name), floor=3.0)


def test_bypass_anchors_the_ratio_on_the_sampler() -> None:
    correction = rollout_correction.bypass(ROLL)
    near(correction.weight_T, [1] * 5)
    near(correction.anchor_T, ROLL.tolist())
    near(rollout_correction.none(OLD).anchor_T, OLD.tolist())
    some = ROLL.masked_fill(torch.tensor([True, False, False, False, False]), float("nan"))
    near(
        rollout_correction.bypass(some, OLD).anchor_T, [-1, *ROLL[1:].tolist()]
    )  # where it gave none, the trainer's
    assert torch.equal(rollout_correction.bypass(ROLL, OLD).anchor_T, ROLL)


def test_nan_from_the_sampler_counts_as_no_mismatch_and_masked_tokens_do_not_count() -> None:
    roll = ROLL.clone()
    roll[0] = float("nan")
    near(rollout_correction.token_truncate(OLD, roll, ALL).weight_T, [1, 1, 1, 1, 0.67032])
    keep = torch.tensor([False, True, True, True, True])
    near(
        rollout_correction.product_truncate(OLD, ROLL, keep, SEGMENTS, cap=9.0).weight_T,
        [1, 1, 1, 0.67032, 0.67032],
    )


def test_weights_carry_no_gradient() -> None:
    old = OLD.clone().requires_grad_()
    for correction in (
        rollout_correction.none(old),
        rollout_correction.token_truncate(old, ROLL, ALL),
        rollout_correction.product_mask(old, ROLL, ALL, SEGMENTS),
        rollout_correction.geometric_mask(old, ROLL, ALL, SEGMENTS),
    ):
        assert not correction.weight_T.requires_grad and not correction.anchor_T.requires_grad


def test_normalized_weights_average_one_over_the_whole_step() -> None:
    known = {
        "old_logprobs_T": OLD,
        "sampler_logprobs_T": ROLL,
        "loss_mask_T": ALL,
        "segments": SEGMENTS,
    }
    token, product = (
        cell(rollout_correction.token_normalized, cap=2.0),
        cell(rollout_correction.product_normalized, cap=2.0),
    )
    found = token({**known, **step_statistics(known, [token])}).weight_T
    near(found, [2 / 1.134064, 1 / 1.134064, 1 / 1.134064, 1 / 1.134064, 0.67032 / 1.134064])
    assert float(found.mean()) == pytest.approx(1)
    sequences = product({**known, **step_statistics(known, [product])}).weight_T
    near(sequences, [2 / 1.33516] * 3 + [0.67032 / 1.33516] * 2)
    nothing = {**known, "loss_mask_T": torch.zeros_like(ALL)}
    assert float(step_statistics(nothing, [token])["mean_weight"]) == 1.0


def test_normalized_weights_may_reject_and_then_count_what_they_rejected_in_the_mean() -> None:
    """w = (e^1.5, 1, 1 | 1, e^-.4): within [.7, 2] the middle three stay, 3/5 on average; of the products e^1.5, e^-.4
    neither does within [.7, 2], and the second does within [.5, 2]."""
    known = {
        "old_logprobs_T": OLD,
        "sampler_logprobs_T": ROLL,
        "loss_mask_T": ALL,
        "segments": SEGMENTS,
    }
    token = cell(rollout_correction.token_normalized, low=0.7, cap=2.0, reject=True)
    found = token({**known, **step_statistics(known, [token])})
    near(found.weight_T, [0, 5 / 3, 5 / 3, 5 / 3, 0])
    assert found.clip_masks["sampler/is_rejected_frac"].tolist() == [
        True,
        False,
        False,
        False,
        True,
    ]
    product = cell(rollout_correction.product_normalized, low=0.5, cap=2.0, reject=True)
    near(product({**known, **step_statistics(known, [product])}).weight_T, [0, 0, 0, 2, 2])
    nothing = cell(rollout_correction.product_normalized, low=0.7, cap=2.0, reject=True)
    near(nothing({**known, **step_statistics(known, [nothing])}).weight_T, [0, 0, 0, 0, 0])
