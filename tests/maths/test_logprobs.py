"""Log-probs against torch's own log-softmax, the shift at segment borders, temperature, precision, log(1 - e^x)."""

from __future__ import annotations

import math

import pytest
import torch

from ascent.maths.logprobs import log1mexp, next_token_logprobs, token_logprobs
from ascent.maths.segments import Segments

RNG = torch.Generator().manual_seed(0)
LOGITS = torch.randn(7, 11, dtype=torch.float64, generator=RNG)
TOKENS = torch.randint(0, 11, (7,), generator=RNG)


@pytest.mark.parametrize("temperature", [1.0, 0.7, 2.0])
def test_equals_log_softmax(temperature: float) -> None:
    expected = (LOGITS / temperature).log_softmax(-1)[torch.arange(7), TOKENS]
    torch.testing.assert_close(token_logprobs(LOGITS, TOKENS, temperature=temperature), expected)


def test_each_token_is_scored_by_the_position_before_it_in_its_own_segment() -> None:
    segments = Segments.from_lengths([3, 4])
    packed = next_token_logprobs(LOGITS, TOKENS, segments)
    alone = [
        next_token_logprobs(LOGITS[a:b], TOKENS[a:b], Segments.from_lengths([b - a]))
        for a, b in ((0, 3), (3, 7))
    ]
    torch.testing.assert_close(packed, torch.cat(alone))
    assert float(packed[0]) == 0 and float(packed[3]) == 0
    assert float(packed[1]) == pytest.approx(float(LOGITS[0].log_softmax(-1)[TOKENS[1]]))


def test_half_precision_is_widened_first() -> None:
    assert token_logprobs(LOGITS.bfloat16(), TOKENS).dtype == torch.float32


def test_temperature_zero_is_refused() -> None:
    with pytest.raises(ValueError, match=r"temperature=0.*above 0"):
        token_logprobs(LOGITS, TOKENS, temperature=0)


def test_mismatched_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="7"):
        token_logprobs(LOGITS, TOKENS[:5])


@pytest.mark.parametrize("x", [-1e-12, -1e-3, -0.5, -0.6931471805599453, -0.7, -5.0, -40.0])
def test_log1mexp_keeps_its_digits(x: float) -> None:
    exact = math.log(-math.expm1(x))
    t = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    y = log1mexp(t)
    assert float(y.detach()) == pytest.approx(exact, rel=1e-12)
    assert float(torch.autograd.grad(y, t)[0]) == pytest.approx(
        1 / math.expm1(x) * math.exp(x) * 1.0, rel=1e-9
    )


def test_log1mexp_of_zero_is_finite() -> None:
    assert math.isfinite(float(log1mexp(torch.tensor(0.0))))
