"""LD weighting: tails by hand, both ends of its range, gradients, and every loss of pairs that it goes with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ascent.algorithms.row import PAIR_LOSSES
from ascent.cells import cell
from ascent.losses import (
    length_desensitized,
    optimal_transport,
    preferences,
    supervised,
    token_weights,
)
from ascent.losses.loss import ItemLosses, summed
from ascent.losses.objective import file_terms, step_statistics, with_sums
from ascent.maths.segments import Segments

SEGMENTS = Segments.from_lengths([5, 2, 2])
TRAINED = torch.tensor([False, True, True, False, True, True, False, True, True])
LOGPROBS = torch.tensor([9.0, -1, -2, 9, -3, -1.5, 9, -1, -1], dtype=torch.float64)
REFERENCE = torch.tensor([9.0, -2, -2.5, 9, -5, -1, 9, -2, -2], dtype=torch.float64)
PAIR = (torch.tensor([0]), torch.tensor([1]))
LOSSES = (*PAIR_LOSSES, optimal_transport.aot, optimal_transport.aot_unpaired)


def known(logprobs: Tensor = LOGPROBS) -> dict[str, Any]:
    found = {
        "logprobs_T": logprobs,
        "ref_logprobs_T": REFERENCE,
        "loss_mask_T": TRAINED,
        "segments": SEGMENTS,
    }
    return {**found, "chosen_P": PAIR[0], "rejected_P": PAIR[1]}


def of(
    tail: float, logprobs: Tensor = LOGPROBS, loss: Callable[..., ItemLosses] = preferences.dpo
) -> Tensor:
    """The loss of the one pair, its statistics first, as in training."""
    made, tails = cell(loss), cell(length_desensitized.length_desensitized, tail=tail)
    everything = known(logprobs)
    everything |= step_statistics(everything, [made, tails])
    return file_terms(everything, loss=made, token_weights=(tails,))[made.name].numerator


def test_tokens_beyond_the_shared_length() -> None:
    """Three trained tokens against one: the second and third are the tail, wherever holes lie; no pair, no tail."""
    beyond = length_desensitized.beyond_shared(TRAINED, SEGMENTS, *PAIR)
    assert (beyond & TRAINED).nonzero().flatten().tolist() == [2, 4]
    sums = with_sums(known(), [cell(length_desensitized.length_desensitized, tail=0.5)])
    assert sums["logprobs_B"].tolist() == pytest.approx([-1 - 0.5 * 5, -1.5, -2])
    assert sums["ref_logprobs_B"].tolist() == pytest.approx([-2 - 0.5 * 7.5, -1, -4])
    assert sums["lengths_B"].tolist() == [3, 1, 2]  # they stay whole
    assert length_desensitized.trained_ranks(TRAINED, SEGMENTS).tolist() == [
        0,
        1,
        2,
        2,
        3,
        1,
        1,
        1,
        2,
    ]


@pytest.mark.parametrize("loss", LOSSES, ids=lambda each: each.__name__)
def test_tail_one_is_the_loss_itself_tail_zero_truncates_and_a_half_is_between(
    loss: Callable[..., ItemLosses],
) -> None:
    """By hand: sums of (-6, -1.5) and (-9.5, -1) as they are, (-1, -1.5) and (-2, -1) cut, (-3.5, -1.5) and
    (-5.75, -1) in the middle; lengths 3 and 1 in all of them."""
    for tail, own, theirs in ((1.0, -6.0, -9.5), (0.0, -1.0, -2.0), (0.5, -3.5, -5.75)):
        sums = {
            "logprobs_B": torch.tensor([own, -1.5, -2], dtype=torch.float64),
            "ref_logprobs_B": torch.tensor([theirs, -1, -4], dtype=torch.float64),
            "lengths_B": torch.tensor([3, 1, 2]),
            **dict(zip(("chosen_P", "rejected_P"), PAIR, strict=True)),
        }
        made = cell(loss)
        by_hand = summed(made({**sums, **step_statistics(sums, [made])})).numerator
        assert float(of(tail, loss=loss)) == pytest.approx(float(by_hand), rel=1e-12)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda each: each.__name__)
def test_the_tail_has_its_share_of_the_gradient(loss: Callable[..., ItemLosses]) -> None:
    x = LOGPROBS.clone().requires_grad_()
    (grad,) = torch.autograd.grad(of(0.3, x, loss), x)
    assert abs(float(grad[1])) > 0
    assert grad[[2, 4]].tolist() == pytest.approx([0.3 * float(grad[1])] * 2)
    assert grad[[0, 3, 6, 7, 8]].tolist() == [0.0] * 5


def test_finite_differences() -> None:
    assert torch.autograd.gradcheck(lambda y: of(0.3, y), LOGPROBS.clone().requires_grad_())


def test_what_reads_tokens_stays_as_it_is() -> None:
    """WPO's weight and the NLL beside a loss of pairs see whole answers; a second loss of pairs sees the tail."""
    everything = {**known(), "log_collision_T": -torch.ones(9, dtype=torch.float64)}
    tails, wpo = (
        cell(length_desensitized.length_desensitized, tail=0.0),
        cell(token_weights.own_likelihood),
    )
    parts: dict[str, Any] = {
        "loss": cell(preferences.dpo),
        "extra_losses": (cell(supervised.chosen_nll),),
    }
    plain, cut = (
        file_terms(everything, token_weights=each, **parts) for each in ((wpo,), (wpo, tails))
    )
    assert float(cut["chosen_nll"].numerator) == float(plain["chosen_nll"].numerator) == 6.0
    weight = float(plain["dpo"].numerator) / float(of(1.0))
    assert float(cut["dpo"].numerator) == pytest.approx(weight * float(of(0.0)))
