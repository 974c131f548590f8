"""Every row that learns from rollouts learns, on a task of seconds, five seeds each.

The figures behind the marks are in bench/results/*-learning-rows.json (`python bench/learning.py rows`).
"""

from __future__ import annotations

import os
import statistics
from pathlib import Path

import pytest
import torch

from tests.end_to_end import policies


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where runs go. A folder named by ASCENT_LEARNING is kept: what was finished there is not trained again."""
    named = os.environ.get("ASCENT_LEARNING")
    folder = Path(named) if named else tmp_path_factory.mktemp("policies")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.mark.learning
@pytest.mark.parametrize("row", policies.ROWS)
def test_every_row_learns_from_rollouts(root, row):
    """The marks are a quarter of what the rows tried so far gained (docs/LOG.md says which, and on how many seeds)."""
    found = [policies.practise(root, row, seed) for seed in policies.SEEDS]
    gains = [each["after"] - each["before"] for each in found]
    assert statistics.mean(gains) >= 0.15 and min(gains) > 0, found


@pytest.mark.learning
def test_practice_on_long_lists_needs_rewards_that_mean_something(root):
    """Measured on seeds 0 to 3, before and after: .156 .773, .285 .875, .141 .691, .289 .828."""
    found = [policies.sort(root, "rlvr", seed) for seed in policies.SEEDS]
    coin = policies.sort(root, "rlvr", 1, shuffled=True)
    assert statistics.mean(each["after"] for each in found) >= 0.65, found
    assert coin["after"] <= coin["before"] + 0.05, coin
