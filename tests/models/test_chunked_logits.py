"""Rows of whole distributions, a few at a time: the values and gradients of all at once, and within a budget."""

import pytest
import torch

from ascent.maths.divergence import jensen_shannon
from ascent.models.chunked_logits import LIVE_TILES, ChunkedLogits
from ascent.models.head import Head
from tests.models.packing import Meter


def case(seed=0, *, rows=7, hidden=5, vocabulary=11, bias=True, dtype=torch.float64):
    rng = torch.Generator().manual_seed(seed)
    drawn = (
        torch.randn(rows, hidden, generator=rng),
        2 * torch.randn(vocabulary, hidden, generator=rng),
    )
    hidden_ND, weight_VD = (each.to(dtype).requires_grad_() for each in drawn)
    bias_V = torch.randn(vocabulary, generator=rng).to(dtype).requires_grad_() if bias else None
    return hidden_ND, weight_VD, bias_V


def whole(hidden_ND, head, temperature):
    logits_NV = head.scale * torch.nn.functional.linear(hidden_ND, head.weight_VD, head.bias_V)
    if head.softcap is not None:
        logits_NV = head.softcap * torch.tanh(logits_NV / head.softcap)
    return logits_NV / temperature


@pytest.mark.parametrize("at_once", [1, 3, 7, 100])
@pytest.mark.parametrize(
    ("bias", "scale", "softcap"), [(True, 1.0, None), (False, 0.3, None), (True, 0.7, 2.0)]
)
def test_a_few_rows_at_a_time_equal_all_of_them(at_once, bias, scale, softcap):
    hidden_ND, weight_VD, bias_V = case(bias=bias)
    other_ND, others_VD, _ = case(1)
    head, teacher = (
        Head(weight_VD, bias_V, scale, softcap),
        ChunkedLogits(other_ND, Head(others_VD)),
    )
    ours = ChunkedLogits(hidden_ND, head, 1.3, at_once * LIVE_TILES * 11 * 8)
    assert ours.rows_per_chunk == at_once
    found_N = ours.map_rows(
        lambda rows, logits_RV: jensen_shannon(logits_RV, teacher.logits(rows), beta=0.3)
    )
    wanted_N = jensen_shannon(
        whole(hidden_ND, head, 1.3), (other_ND @ others_VD.mT).detach(), beta=0.3
    )
    torch.testing.assert_close(found_N, wanted_N, rtol=0, atol=1e-12)
    leaves = [each for each in (hidden_ND, weight_VD, bias_V) if each is not None]
    mix_N = torch.randn(7, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    grads, others = (
        torch.autograd.grad((each_N * mix_N).sum(), leaves) for each_N in (found_N, wanted_N)
    )
    for mine, other in zip(grads, others, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-12)


def test_no_rows_still_have_a_graph():
    hidden_ND, weight_VD, bias_V = case(rows=0)
    ChunkedLogits(hidden_ND, Head(weight_VD, bias_V)).map_rows(
        lambda rows, x_RV: x_RV.sum(1)
    ).sum().backward()
    assert bool((weight_VD.grad == 0).all())


def test_truncated_vocab_and_detach():
    hidden_ND, weight_VD, bias_V = case()
    cut = ChunkedLogits(hidden_ND, Head(weight_VD, bias_V)).truncate_vocab(4)
    assert cut.vocab_size == 4
    torch.testing.assert_close(
        cut.logits(slice(0, 7)), whole(hidden_ND, Head(weight_VD, bias_V), 1.0)[:, :4]
    )
    frozen = cut.detach()
    assert not frozen.map_rows(lambda rows, logits_RV: logits_RV.sum(1)).requires_grad


def test_memory_stays_within_the_budget_beside_the_gradients():
    rows, hidden, vocabulary, budget = 512, 16, 4_000, 2**21
    hidden_ND, weight_VD, _ = case(
        rows=rows, hidden=hidden, vocabulary=vocabulary, bias=False, dtype=torch.float32
    )
    other_ND, others_VD, _ = case(
        1, rows=rows, hidden=hidden, vocabulary=vocabulary, dtype=torch.float32
    )
    teacher = ChunkedLogits(other_ND.detach(), Head(others_VD.detach()))
    ours = ChunkedLogits(hidden_ND, Head(weight_VD), 1.0, budget)
    with Meter() as meter:
        ours.map_rows(
            lambda rows, x_RV: jensen_shannon(x_RV, teacher.logits(rows))
        ).sum().backward()
    gradients = (
        4 * hidden * (rows + 3 * vocabulary)
    )  # of the weights: the sum, one piece's share, and what is returned
    assert meter.peak <= budget + gradients + 4 * rows * 16
    assert budget + gradients < 4 * rows * vocabulary  # far less than one matrix of all logits
