"""The right-to-left scan against the loop it replaces."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ascent.maths.reverse_scan import next_in_segment, reverse_scan
from ascent.maths.segments import Segments


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 70), min_size=1, max_size=6), st.integers(0, 1000))
def test_equals_the_loop(lengths: list[int], seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    segments = Segments.from_lengths(lengths)
    x_T = torch.randn(segments.total, dtype=torch.float64, generator=rng)
    decay_T = torch.rand(segments.total, dtype=torch.float64, generator=rng)
    expected, start = torch.zeros_like(x_T), 0
    for length in lengths:
        later = torch.tensor(0.0, dtype=torch.float64)
        for t in reversed(range(start, start + length)):
            later = x_T[t] + decay_T[t] * later
            expected[t] = later
        start += length
    torch.testing.assert_close(
        reverse_scan(x_T, decay_T, segments), expected, rtol=1e-12, atol=1e-12
    )


def test_docstring_example_and_gradient() -> None:
    segments = Segments.from_lengths([3])
    x = torch.ones(3, dtype=torch.float64, requires_grad=True)
    y = reverse_scan(x, 0.5, segments)
    assert y.tolist() == [1.75, 1.5, 1.0]
    assert torch.autograd.grad(y[0], x)[0].tolist() == [1.0, 0.5, 0.25]


def test_the_next_value_stops_at_the_border() -> None:
    segments = Segments.from_lengths([2, 0, 3])
    x = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    assert next_in_segment(x, segments).tolist() == [2, 0, 4, 5, 0]
    assert next_in_segment(x, segments, torch.tensor([7.0, 8.0, 9.0])).tolist() == [2, 7, 4, 5, 9]
