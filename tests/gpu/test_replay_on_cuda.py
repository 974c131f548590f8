"""In exact arithmetic on a GPU, a step of a run again and a run that goes on have the bits of the run."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import ascent
from ascent.config.load import merge_configs
from ascent.models.exact import device_problem
from ascent.runs.folder import read_run
from tests.api.test_replay import KINDS, PAIRS, quiet, recipe_of
from tests.end_to_end.ranked import weight_differences

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or bool(device_problem(torch.device("cuda"))),
    reason="needs an H100 or H200",
)
STEPS = 6
EXACT: dict[str, Any] = {"model": {"dtype": "bfloat16", "arithmetic": "exact"}}


def exact(kind: str, **more: Any) -> dict[str, Any]:
    settings = {"run": {"steps": STEPS, "save_every": 1, "keep": STEPS, "evaluate_every": 5}}
    return merge_configs(merge_configs(merge_configs(recipe_of(kind), EXACT), settings), more)


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_has_the_bits_of_the_run(kind: str, tmp_path: Path) -> None:
    ascent.train(exact(kind), run=tmp_path / "run", progress=False, say=quiet)
    norms = [
        each["optim/grad_norm"]
        for each in read_run(tmp_path / "run").metrics
        if "optim/grad_norm" in each
    ]
    assert max(norms) > 0  # otherwise every step has the bits of the one before
    for step in random.Random(kind).sample(range(1, STEPS + 1), 2):
        found = ascent.replay(tmp_path / "run", step, say=quiet)
        assert found.same_weights is True and found.differing == {} and found.not_promised == []


@pytest.mark.parametrize("pair", PAIRS)
def test_a_step_has_the_bits_of_the_run_together_with(pair: str, tmp_path: Path) -> None:
    ascent.train(exact("grpo", **PAIRS[pair]), run=tmp_path / "run", progress=False, say=quiet)
    found = ascent.replay(tmp_path / "run", 4, say=quiet)
    assert found.same_weights is True and found.differing == {}


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_goes_on_has_the_bits_of_one_that_did_not_stop(
    kind: str, tmp_path: Path
) -> None:
    ascent.train(exact(kind), run=tmp_path / "whole", progress=False, say=quiet)
    shutil.copytree(tmp_path / "whole", tmp_path / "killed")  # as if it had been, after step 3
    for step in range(4, STEPS + 1):
        shutil.rmtree(tmp_path / f"killed/checkpoints/{step}")
    (tmp_path / "killed/outcome.json").unlink()
    ascent.resume(tmp_path / "killed", progress=False, say=quiet)
    assert (
        weight_differences(tmp_path / "whole", tmp_path / "killed", step=STEPS, tolerance=0.0) == []
    )
