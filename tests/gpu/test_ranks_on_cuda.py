"""One rank on the GPU, in both layouts of several: the bits of one process. For its speed see bench/one_rank.py."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ascent.api.train import train_plan
from ascent.models.tiny import create
from ascent.parallel.ranks import Ranks
from tests.end_to_end.ranked import metrics_of, weight_differences
from tests.parallel.group import run_in_ranks
from tests.setup.runs import tiny_plan
from tests.update.test_sharded_optim import check_one_rank, one_rank

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_one_rank_has_the_bits_of_one_process_in_both_layouts(dtype: str, tmp_path: Path) -> None:
    create(tmp_path / "model", seed=0)
    check_one_rank(
        run_in_ranks(1, tmp_path / "log", one_rank, tmp_path / "model", dtype, "cuda")[0]
    )


def test_a_run_whose_model_is_sharded_over_one_rank_ends_in_the_bits_of_one_that_is_not(
    tmp_path: Path,
) -> None:
    plan = tiny_plan(
        algorithm="dpo", model={"dtype": "bfloat16"}, run={"steps": 3, "save_every": 3}
    )
    for layout in ("replicated", "sharded"):
        train_plan(plan, tmp_path / layout, progress=False, ranks=Ranks(layout))
    assert metrics_of(tmp_path / "replicated") == metrics_of(tmp_path / "sharded")
    assert (
        weight_differences(tmp_path / "replicated", tmp_path / "sharded", step=3, tolerance=0.0)
        == []
    )
