"""Every row of the table on a GPU: the same value and gradient as on the CPU."""

from __future__ import annotations

import pytest
import torch

from ascent.algorithms import TABLE, Row
from tests.batches import moved, random_batch
from tests.test_invariance import whole_step, with_statistics

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("row", TABLE.values(), ids=list(TABLE))
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_gpu_agrees_with_the_cpu(row: Row, seed: int) -> None:
    here = random_batch(seed)
    value, grads, metrics = whole_step(row, with_statistics(row, dict(here)))
    there_value, there_grads, there_metrics = whole_step(
        row, with_statistics(row, moved(here, "cuda"))
    )
    assert abs(float(value) - float(there_value)) < 1e-9
    for name, grad in grads.items():
        assert float((grad - there_grads[name].cpu()).abs().max()) < 1e-9, name
    assert there_metrics == pytest.approx(metrics, abs=1e-9, nan_ok=True)
