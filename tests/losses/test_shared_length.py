"""LD-DPO: tails by hand, both ends of its range, gradients."""

from __future__ import annotations

import pytest
import torch

from ascent.losses import preferences, shared_length
from ascent.losses.loss import summed
from ascent.maths.segments import Segments

SEGMENTS = Segments.from_lengths([5, 2, 2])
TRAINED = torch.tensor([False, True, True, False, True, True, False, True, True])
LOGPROBS = torch.tensor([9.0, -1, -2, 9, -3, -1.5, 9, -1, -1], dtype=torch.float64)
REFERENCE = torch.tensor([9.0, -2, -2.5, 9, -5, -1, 9, -2, -2], dtype=torch.float64)
PAIR = (torch.tensor([0]), torch.tensor([1]))


def test_tokens_beyond_the_shared_length() -> None:
    """Three trained tokens against one: the second and third are the tail, wherever holes lie; no pair, no tail."""
    beyond = shared_length.beyond_shared(TRAINED, SEGMENTS, *PAIR)
    assert (beyond & TRAINED).nonzero().flatten().tolist() == [2, 4]
    sums = shared_length.desensitised(LOGPROBS, TRAINED, beyond, SEGMENTS, tail=0.5)
    assert sums.tolist() == pytest.approx([-1 - 0.5 * 5, -1.5, -2])
    assert shared_length.trained_ranks(TRAINED, SEGMENTS).tolist() == [0, 1, 2, 2, 3, 1, 1, 1, 2]


def of(tail: float, logprobs: torch.Tensor = LOGPROBS) -> torch.Tensor:
    each = shared_length.ld_dpo(logprobs, REFERENCE, TRAINED, SEGMENTS, *PAIR, tail=tail)
    return summed(each).numerator


def test_tail_one_is_dpo_and_tail_zero_truncates() -> None:
    lengths = SEGMENTS.sum(TRAINED)
    sums, reference = (SEGMENTS.sum(torch.where(TRAINED, x, 0)) for x in (LOGPROBS, REFERENCE))
    assert float(of(1.0)) == pytest.approx(float(summed(preferences.dpo(sums, reference, lengths, *PAIR)).numerator))
    first = torch.tensor([-1.0, -1.5, 0], dtype=torch.float64), torch.tensor([-2.0, -1.0, 0], dtype=torch.float64)
    cut = preferences.dpo(*first, lengths, *PAIR)
    assert float(of(0.0)) == pytest.approx(float(summed(cut).numerator))


def test_finite_differences_and_the_tails_share() -> None:
    x = LOGPROBS.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda y: of(0.3, y), x)
    (grad,) = torch.autograd.grad(of(0.3, x), x)
    assert grad[[2, 4]].tolist() == pytest.approx([0.3 * float(grad[1])] * 2)
    assert grad[[0, 3, 6, 7, 8]].tolist() == [0.0] * 5
