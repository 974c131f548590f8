"""The hash against integers of Python, and against published outputs of the generator that it is the step of."""

from __future__ import annotations

import torch

from ascent.maths.splitmix import shift_right, splitmix64

M = 2**64 - 1


def reference(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & M
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & M
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & M
    return x ^ (x >> 31)


def test_it_is_splitmix64() -> None:
    numbers = [0, 1, 2, -1, 2**62, -(2**63), 1234567]
    found = splitmix64(torch.tensor(numbers))
    assert [each & M for each in found.tolist()] == [reference(each & M) for each in numbers]
    assert found[-1].item() & M == 6457827717110365317  # the first output of seed 1234567


def test_shifts_fill_with_zeros() -> None:
    assert shift_right(torch.tensor([-1, 8]), 3).tolist() == [2**61 - 1, 1]
