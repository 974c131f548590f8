"""The next random numbers after a restore are the ones that would have come."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from ascent.checkpoints import rng
from ascent.checkpoints.resume import read_state
from ascent.checkpoints.save import save


def draw() -> list[float]:
    return [random.random(), random.gauss(0, 1), float(np.random.normal()), float(torch.randn(()))]


@pytest.fixture(autouse=True)
def _leave_the_generators_alone():  # type: ignore[no-untyped-def]
    before = rng.capture()
    yield
    rng.restore(before)


def test_all_generators_continue_after_a_trip_through_a_checkpoint(tmp_path: Path) -> None:
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    draw()  # an odd number of Gaussians: both libraries keep the second one back
    save(tmp_path, 1, {"rng": rng.capture()}, {})
    expected = [draw() for _ in range(3)]
    draw()
    rng.restore(read_state(tmp_path / "1")["rng"])
    assert [draw() for _ in range(3)] == expected


def test_another_number_of_gpus_is_refused() -> None:
    state = rng.capture()
    with pytest.raises(ValueError, match="random states of 2 GPUs and this machine shows"):
        rng.restore(
            {**state, "cuda": [torch.zeros(1)] * (2 if not torch.cuda.device_count() else 99)}
        )
    json.dumps(
        {key: value for key, value in state.items() if key in ("python", "numpy")}, allow_nan=False
    )


def test_one_seed_fixes_all_generators() -> None:
    rng.seed(7)
    first = draw()
    rng.seed(7)
    assert draw() == first
    rng.seed(8)
    assert all(one != other for one, other in zip(draw(), first, strict=True))
