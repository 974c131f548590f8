"""Supervised terms: which tokens count."""

from __future__ import annotations

import torch

from ascent.losses import supervised
from ascent.losses.loss import summed
from ascent.maths.segments import Segments

SEGMENTS = Segments.from_lengths([2, 2])
X = torch.tensor([-1.0, -2.0, -4.0, -8.0], dtype=torch.float64, requires_grad=True)
TRAINED = torch.tensor([False, True, True, True])


def parts(each) -> tuple[float, float, list[float]]:
    loss = summed(each)
    return (
        float(loss.numerator.detach()),
        float(loss.denominator),
        torch.autograd.grad(loss.numerator, X)[0].tolist(),
    )


def test_sums_counts_and_gradients() -> None:
    assert parts(supervised.nll(X, TRAINED)) == (14.0, 3.0, [0, -1, -1, -1])
    right = torch.tensor([1.0, 0.0])
    assert parts(supervised.correct_nll(X, right, TRAINED, SEGMENTS)) == (2.0, 1.0, [0, -1, 0, 0])
    chosen = torch.tensor([False, True])
    assert parts(supervised.chosen_nll(X, chosen, TRAINED, SEGMENTS)) == (12.0, 2.0, [0, 0, -1, -1])
    assert parts(supervised.pretraining_nll(X, ~TRAINED)) == (1.0, 1.0, [-1, 0, 0, 0])


def test_an_unscored_completion_is_not_a_correct_one() -> None:
    unknown = torch.tensor([float("nan"), 1.0])
    assert parts(supervised.correct_nll(X, unknown, TRAINED, SEGMENTS))[:2] == (12.0, 2.0)


def test_nothing_to_train_is_zero_with_a_graph() -> None:
    assert parts(supervised.nll(X, torch.zeros(4, dtype=torch.bool))) == (0.0, 0.0, [0, 0, 0, 0])


def test_the_references_sample_of_each_pair_is_lowered_whichever_won() -> None:
    logprobs = torch.tensor(
        [-1.0, -2.0, -3.0, -4.0, -5.0, 0.0, 0.0, -6.0], dtype=torch.float64, requires_grad=True
    )
    lengths = torch.tensor([1, 1, 1, 1, 1, 0, 0, 1])
    from_reference = torch.tensor([False, True, True, False, True, False, False, True])
    chosen, rejected = torch.tensor([0, 2, 4, 6]), torch.tensor([1, 3, 5, 7])
    loss = summed(
        supervised.reference_likelihood(logprobs, lengths, from_reference, chosen, rejected)
    )
    assert float(loss.denominator) == 2  # the last two pairs have an empty member
    assert torch.autograd.grad(loss.numerator, logprobs)[0].tolist() == [0, 1, 1, 0, 0, 0, 0, 0]


def test_gold_answers_alone() -> None:
    logprobs = torch.tensor([-1.0, -2.0, -3.0], dtype=torch.float64)
    segments, three = Segments.from_lengths([1, 2]), torch.ones(3, dtype=torch.bool)
    loss = summed(supervised.gold_nll(logprobs, torch.tensor([False, True]), three, segments))
    assert (float(loss.numerator), float(loss.denominator)) == (5.0, 2.0)
