"""Tiles of logits give what the whole matrix gives, value and gradient, and never take more than the budget."""

import pytest
import torch

from ascent.maths.divergence import entropy, log_collision
from ascent.maths.logprobs import token_logprobs
from ascent.models.fused_logprobs import TokenOutputs, fused_logprobs, tile_shape
from ascent.models.head import Head
from tests.models.packing import Meter


def whole(hidden_ND, tokens_N, head, temperature):
    """The textbook route: every logit at once."""
    logits_NV = head.scale * torch.nn.functional.linear(hidden_ND, head.weight_VD, head.bias_V)
    if head.softcap is not None:
        logits_NV = head.softcap * torch.tanh(logits_NV / head.softcap)
    return TokenOutputs(
        token_logprobs(logits_NV, tokens_N, temperature=temperature),
        entropy(logits_NV, temperature=temperature),
        log_collision(logits_NV / temperature).detach(),
    )


def case(seed=0, *, rows=7, hidden=5, vocabulary=23, bias=True, dtype=torch.float64):
    rng = torch.Generator().manual_seed(seed)
    tensors = (
        torch.randn(rows, hidden, generator=rng),
        2 * torch.randn(vocabulary, hidden, generator=rng),
    )
    hidden_ND, weight_VD = (x.to(dtype).requires_grad_() for x in tensors)
    bias_V = torch.randn(vocabulary, generator=rng).to(dtype).requires_grad_() if bias else None
    return hidden_ND, torch.randint(0, vocabulary, (rows,), generator=rng), weight_VD, bias_V


SMALL = 1300  # bytes: tiles of 3 rows and 4 columns in float64, so 7 rows and 23 columns are cut unevenly


def test_the_small_budget_cuts_both_ways():
    rows, columns = tile_shape(torch.zeros(23, 5, dtype=torch.float64), SMALL)
    assert 1 < rows < 7
    assert 1 < columns < 23


@pytest.mark.parametrize("budget", [SMALL, 2**20])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("scale", "softcap"), [(1.0, None), (0.3, None), (1.0, 3.0), (0.7, 2.0)])
def test_tiles_equal_the_whole(budget, bias, scale, softcap):
    hidden_ND, tokens_N, weight_VD, bias_V = case(bias=bias)
    head = Head(weight_VD, bias_V, scale, softcap)
    asked = {"entropy": True, "collision": True, "budget_bytes": budget}
    ours = fused_logprobs(hidden_ND, tokens_N, head, temperature=0.7, **asked)
    theirs = whole(hidden_ND, tokens_N, head, 0.7)
    leaves = [x for x in (hidden_ND, weight_VD, bias_V) if x is not None]
    mix_2N = torch.randn(2, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-12)
    grads, wanted = (
        torch.autograd.grad((torch.stack(list(x[:2])) * mix_2N).sum(), leaves)
        for x in (ours, theirs)
    )
    assert not ours.log_collision_N.requires_grad
    for mine, other in zip(grads, wanted, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("wants_entropy", [True, False])
def test_gradients_against_finite_differences(wants_entropy):
    hidden_ND, tokens_N, weight_VD, bias_V = case(rows=4, hidden=3, vocabulary=6)

    def scores(hidden_ND, weight_VD, bias_V):
        head = Head(weight_VD, bias_V, 0.8, 4.0)
        out = fused_logprobs(
            hidden_ND, tokens_N, head, temperature=1.3, entropy=wants_entropy, budget_bytes=700
        )
        return out[:2] if wants_entropy else out.logprobs_N

    assert torch.autograd.gradcheck(scores, (hidden_ND, weight_VD, bias_V), atol=1e-7)


def test_entropy_has_a_gradient_of_its_own_and_log_probs_do_not_need_it():
    hidden_ND, tokens_N, weight_VD, bias_V = case()
    head = Head(weight_VD, bias_V)
    fused_logprobs(hidden_ND, tokens_N, head, entropy=True).entropy_N.sum().backward()
    assert float(hidden_ND.grad.abs().max()) > 1e-3
    assert bool((fused_logprobs(hidden_ND, tokens_N, head).entropy_N == 0).all())


def test_bfloat16_is_summed_in_float32():
    """With a bfloat16 head the log-probs stay within float32 rounding of those of the same numbers in float64."""
    hidden_ND, tokens_N, weight_VD, _ = case(
        rows=64, hidden=256, vocabulary=3000, bias=False, dtype=torch.bfloat16
    )
    scores = fused_logprobs(hidden_ND, tokens_N, Head(weight_VD), entropy=True, budget_bytes=2**22)
    exact = whole(hidden_ND.double(), tokens_N, Head(weight_VD.double()), 1.0)
    assert scores.logprobs_N.dtype == torch.float32
    torch.testing.assert_close(scores.logprobs_N.double(), exact.logprobs_N, rtol=0, atol=1e-4)
    torch.testing.assert_close(scores.entropy_N.double(), exact.entropy_N, rtol=0, atol=1e-4)
    naive = (
        (hidden_ND.float() @ weight_VD.float().mT)
        .bfloat16()
        .float()
        .log_softmax(-1)
        .gather(1, tokens_N[:, None])[:, 0]
    )
    assert (
        float((naive - exact.logprobs_N).detach().abs().max()) > 1e-2
    )  # what rounding the logits to bfloat16 would cost


def test_weight_gradients_in_bfloat16_are_rounded_once():
    hidden_ND, tokens_N, weight_VD, _ = case(
        rows=400, hidden=16, vocabulary=50, bias=False, dtype=torch.bfloat16
    )
    fused_logprobs(
        hidden_ND, tokens_N, Head(weight_VD), budget_bytes=20_000
    ).logprobs_N.sum().backward()
    wide = weight_VD.detach().double().requires_grad_()
    whole(hidden_ND.detach().double(), tokens_N, Head(wide), 1.0).logprobs_N.sum().backward()
    # Half a unit in the last of 8 bits.
    torch.testing.assert_close(weight_VD.grad.double(), wide.grad, rtol=2**-8, atol=1e-4)


def test_extreme_logits_stay_finite():
    hidden_ND, tokens_N = torch.full((2, 1), 300.0), torch.tensor([0, 1])
    scores = fused_logprobs(
        hidden_ND, tokens_N, Head(torch.tensor([[1.0], [-1.0]])), entropy=True, collision=True
    )
    assert scores.logprobs_N.tolist() == [0.0, -600.0]
    assert scores.entropy_N.tolist() == [0.0, 0.0]
    assert scores.log_collision_N.tolist() == [0.0, 0.0]


def test_two_draws_from_four_equal_tokens_agree_a_quarter_of_the_time():
    scores = fused_logprobs(
        torch.zeros(1, 2), torch.tensor([0]), Head(torch.ones(4, 2)), collision=True
    )
    assert scores.log_collision_N.exp().tolist() == pytest.approx([0.25])


def test_no_rows_still_have_a_graph():
    hidden_ND, tokens_N, weight_VD, bias_V = case(rows=0)
    scores = fused_logprobs(hidden_ND, tokens_N, Head(weight_VD, bias_V), entropy=True)
    (scores.logprobs_N.sum() + scores.entropy_N.sum()).backward()
    assert bool((weight_VD.grad == 0).all())


def above_inputs(tokens: int, vocabulary: int, budget: int, hidden: int = 32) -> Meter:
    """Peak bytes of forward and backward, log-probs and entropy, in float32."""
    hidden_ND, tokens_N, weight_VD, _ = case(
        rows=tokens, hidden=hidden, vocabulary=vocabulary, dtype=torch.float32, bias=False
    )
    with Meter() as meter:
        asked = {"entropy": True, "collision": True, "budget_bytes": budget}
        scores = fused_logprobs(hidden_ND, tokens_N, Head(weight_VD), **asked)
        (scores.logprobs_N + scores.entropy_N).sum().backward()
    return meter


@pytest.mark.parametrize("tokens", [512, 1536])
@pytest.mark.parametrize("vocabulary", [2_000, 6_000])
def test_memory_stays_under_the_budget(tokens, vocabulary):
    budget, hidden = 2**20, 32
    meter = above_inputs(tokens, vocabulary, budget, hidden)
    gradients = 4 * hidden * (tokens + vocabulary)
    per_token = (
        4 * tokens * 16
    )  # log-probs, entropy, collision, log-sum-exp, mean, and what the caller adds up
    assert meter.peak <= budget + gradients + per_token
    assert meter.peak > gradients  # the meter does see something
    assert meter.largest <= max(budget, gradients)


def test_the_meter_sees_the_textbook_route_break_the_budget():
    hidden_ND, tokens_N, weight_VD, _ = case(
        rows=512, hidden=32, vocabulary=20_000, dtype=torch.float32, bias=False
    )
    with Meter() as meter:
        whole(hidden_ND, tokens_N, Head(weight_VD), 1.0).logprobs_N.sum().backward()
    assert meter.peak > 2 * 4 * 512 * 20_000


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"temperature": 0.0}, "temperature=0.0 must be > 0"),
        ({"budget_bytes": 10}, "budget_bytes=10 cannot hold one tile"),
    ],
)
def test_impossible_numbers_are_refused(change, words):
    hidden_ND, tokens_N, weight_VD, _ = case()
    with pytest.raises(ValueError, match=words):
        fused_logprobs(hidden_ND, tokens_N, Head(weight_VD), **change)


def test_a_budget_that_the_message_names_is_enough():
    weight_VD = torch.zeros(50, 5)
    with pytest.raises(ValueError, match="use at least") as refused:
        tile_shape(weight_VD, 10)
    assert min(tile_shape(weight_VD, int(str(refused.value).rsplit(" ", 1)[1]))) >= 1


def test_tokens_of_another_vocabulary_are_refused():
    hidden_ND, tokens_N, weight_VD, _ = case()
    with pytest.raises(ValueError, match="token 23 in a vocabulary of 23"):
        fused_logprobs(hidden_ND, torch.full_like(tokens_N, 23), Head(weight_VD))
    with pytest.raises(ValueError, match="7 hidden states for 3 tokens"):
        fused_logprobs(hidden_ND, tokens_N[:3], Head(weight_VD))
