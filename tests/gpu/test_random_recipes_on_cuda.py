"""Recipes drawn at random, of rows that sample, on a GPU in the arithmetic that is the default there: exact. So the
first ratio of every step is 1.0, and what was trained resumes and replays to the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ascent.algorithms import TABLE
from ascent.models.exact import PROVEN, device_problem
from ascent.runs.folder import read_run
from tests.end_to_end import ranked
from tests.end_to_end.test_random_recipes import drawn, train_resume_replay, without_pictures

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or bool(device_problem(torch.device("cuda"))),
    reason="needs an H100 or H200",
)
__all__ = ["without_pictures"]  # a fixture
ROWS = [name for name, row in TABLE.items() if row.samples]
FEW, MANY = range(8), range(2000, 2160)


def one(seed: int, folder: Path) -> None:
    family = sorted(PROVEN)[seed % len(PROVEN)]
    plan, settings = drawn(seed, ranked.create_policy(folder / "policy", family), ROWS)
    if plan.config.rollouts.engine != "native":
        pytest.skip("another engine samples with other kernels")
    if not train_resume_replay(plan, settings, folder):
        pytest.skip(f"refused: {settings}")
    assert "arithmetic: exact" in read_run(folder / "run").config, settings


@pytest.mark.parametrize("seed", FEW)
def test_a_recipe(seed: int, tmp_path: Path) -> None:
    one(seed, tmp_path)


@pytest.mark.learning
@pytest.mark.parametrize("seed", MANY)
def test_another_recipe(seed: int, tmp_path: Path) -> None:
    one(seed, tmp_path)
