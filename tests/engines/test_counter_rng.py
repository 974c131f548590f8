"""Noise that depends on who asks and on nothing else, and is Gumbel."""

from __future__ import annotations

import pytest
import torch

from ascent.engines.counter_rng import gumbel


def test_the_same_key_gives_the_same_bits_and_any_other_key_others() -> None:
    base = gumbel(1, "p", 2, 3, 50)
    assert torch.equal(base, gumbel(1, "p", 2, 3, 50))
    for other in (
        gumbel(2, "p", 2, 3, 50),
        gumbel(1, "q", 2, 3, 50),
        gumbel(1, "p", 3, 3, 50),
        gumbel(1, "p", 2, 4, 50),
    ):
        assert not torch.equal(base, other)


def test_it_is_gumbel_and_finite() -> None:
    x = torch.cat([gumbel(0, "p", n, 0, 1000) for n in range(100)])
    assert bool(torch.isfinite(x).all())
    assert float(x.mean()) == pytest.approx(0.5772, abs=0.02)
    assert float(x.var()) == pytest.approx(1.6449, abs=0.05)


def test_argmax_of_logits_plus_noise_samples_the_distribution() -> None:
    logs = torch.tensor([0.5, 0.3, 0.2]).log()
    drawn = torch.tensor([int((logs + gumbel(0, "p", n, 0, 3)).argmax()) for n in range(4000)])
    shares = torch.bincount(drawn, minlength=3) / 4000
    assert shares.tolist() == pytest.approx([0.5, 0.3, 0.2], abs=0.03)
