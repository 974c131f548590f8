"""Float32 matrix products on a CPU: always the BLAS.

On ARM, oneDNN takes them over from 9 rows on: up to 6 times slower for small matrices, never faster, and with another
order of summation, so a row's bits would depend on its batch, and those of a run on what its process ran before.
"""

from __future__ import annotations

import torch


def use_blas() -> None:
    """For the whole process."""
    torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
