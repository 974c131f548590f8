"""Estimates from samples: unbiased pass@k, bootstrap intervals over prompts, Student's interval over seeds.

Axes: P prompts, R resamples.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import torch

RESAMPLES = 2000
# Resamples times prompts in memory at once.
CHUNK = 2**22
# Student's t: 95% lie within this many standard errors, for 1 to 10 degrees of freedom.
STUDENT = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281)
NORMAL = 1.959964


@dataclass(frozen=True)
class Estimate:
    """A mean over prompts with its interval; None for the ends where there is one prompt only."""

    value: float
    low: float | None
    high: float | None
    prompts: int


def pass_at(k: int, *, right: int, of: int) -> float:
    """The probability that k of `of` samples hold a right one, without replacement: 1 - C(of-right, k) / C(of, k).

    Its mean over draws of the samples is exactly 1 - (1 - p)^k; plugging the share of right ones into that formula is
    biased low. With 2 right of 4: pass@1 = 1/2, pass@2 = 1 - 1/6.
    """
    if not 0 <= right <= of:
        raise ValueError(f"right={right} of {of} samples; it counts some of them")
    if not 1 <= k <= of:
        raise ValueError(
            f"pass@{k} from {of} samples; k lies between 1 and their number: take more samples"
        )
    return 1 - math.comb(of - right, k) / math.comb(of, k)


def powers_of_two(most: int) -> list[int]:
    """1, 2, 4, ... up to `most`."""
    return [2**power for power in range(most.bit_length())]


def estimate(
    values: Sequence[float], *, seed: int = 0, level: float = 0.95, resamples: int = RESAMPLES
) -> Estimate:
    """The mean of one value per prompt, and the percentile interval of means of prompts drawn with replacement.

    Prompts are resampled, not samples: samples of one prompt are not independent.
    """
    if not values:
        raise ValueError("an estimate of no values; at least one prompt must be scored")
    if not 0 < level < 1:
        raise ValueError(
            f"level={level} is the share of resamples inside; it must lie between 0 and 1"
        )
    if resamples < 1:
        raise ValueError(
            f"resamples={resamples}, but an interval needs at least 1; {RESAMPLES} are usual"
        )
    values_P = torch.tensor(values, dtype=torch.float64)
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return Estimate(mean, None, None, 1)
    means_R = _resampled_means(values_P, resamples, seed)
    tail = (1 - level) / 2
    low, high = torch.quantile(
        means_R, torch.tensor([tail, 1 - tail], dtype=torch.float64)
    ).tolist()
    return Estimate(mean, low, high, len(values))


def student_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95% interval of the mean of a few independent runs; None for one run, whose spread is unknown.

    The bootstrap of three values is far too narrow, because it cannot leave their range.
    """
    free = len(values) - 1
    if free < 1:
        return None
    z = NORMAL
    expansion = z + (z**3 + z) / (4 * free) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * free**2)
    factor = STUDENT[free - 1] if free <= len(STUDENT) else expansion
    mean, error = statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values))
    return mean - factor * error, mean + factor * error


def _resampled_means(values_P: torch.Tensor, resamples: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    count = values_P.numel()
    found, left = [], resamples
    while left:
        rows = min(left, max(CHUNK // count, 1))
        picked_RP = torch.randint(count, (rows, count), generator=generator)
        found.append(values_P[picked_RP].mean(dim=1))
        left -= rows
    return torch.cat(found)
