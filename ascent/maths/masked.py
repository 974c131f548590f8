"""Sums, means, variances and whitening over the entries a mask keeps.

Masking uses `where`, not multiplication, so a NaN outside the mask stays there.
"""

from __future__ import annotations

import torch
from torch import Tensor


def kept(x: Tensor, keep: Tensor) -> Tensor:
    """x where kept, an exact 0 elsewhere; no gradient and no NaN passes from outside the mask."""
    if x.shape != keep.shape:
        raise ValueError(
            f"values of shape {tuple(x.shape)} with a mask of shape {tuple(keep.shape)}; they must match"
        )
    return torch.where(keep, x, 0)


def total(x: Tensor, keep: Tensor) -> Tensor:
    return _sum(kept(x, keep))


def _sum(x: Tensor) -> Tensor:
    """In float64, and rounded once: on a CPU torch splits a long sum over its threads, and a run must not depend on how
    many there are. A Mac's GPU has no float64."""
    wide = torch.float64 if x.is_floating_point() and x.device.type != "mps" else None
    return x.sum(dtype=wide).to(x.dtype)


def mean(x: Tensor, keep: Tensor) -> Tensor:
    """Mean of the kept entries; 0 when there are none."""
    return total(x, keep) / keep.sum().clamp(min=1)


def variance(x: Tensor, keep: Tensor, *, ddof: int = 1) -> Tensor:
    """Variance of the kept entries, divided by n - ddof; 0 when fewer than ddof + 1 are kept."""
    off = kept(x - mean(x, keep), keep)
    return _sum(off**2) / (keep.sum() - ddof).clamp(min=1)


SMALLEST_VARIANCE = 1e-12


def whiten(
    x: Tensor, keep: Tensor, *, shift_mean: bool = True, ddof: int = 1, eps: float = 1e-8
) -> Tensor:
    """(x - mean) / sqrt(variance + eps) over the kept entries, 0 elsewhere; the mean is put back if not `shift_mean`.

    A variance below 1e-12 is noise: the centered values are returned unscaled.
    """
    center, var = mean(x, keep), variance(x, keep, ddof=ddof)
    scale = torch.where(var < SMALLEST_VARIANCE, torch.ones_like(var), (var + eps).rsqrt())
    white = (x - center) * scale
    return kept(white if shift_mean else white + center, keep)
