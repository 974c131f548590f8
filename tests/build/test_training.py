"""A plan becomes a run: every row that learns from files trains, saves, resumes to the same bits, refuses early."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ascent.algorithms import TABLE
from ascent.build import resolve
from ascent.build.training import assemble, resume, train
from ascent.config.validate import validate
from ascent.runs.folder import read_run
from tests.build.runs import tiny_plan, weights_of

FILE_ROWS = [name for name, row in TABLE.items() if row.source != "rollouts"]


def quiet(text: str) -> None: ...


@pytest.mark.slow
@pytest.mark.parametrize("name", FILE_ROWS)
def test_every_row_that_learns_from_files_trains_and_resumes_to_the_same_bits(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    plan = tiny_plan(algorithm=name)
    assert train(plan, folder, say=quiet) == 4
    run = read_run(folder)
    assert run.state == "finished" and run.checkpoints == [2, 4]
    assert len(run.metrics) == 4
    assert weights_of(folder, 2) != weights_of(folder, 4)
    assert any(key.startswith("evaluate/") for key in run.metrics[1])
    assert (folder / "curves.png").stat().st_size > 0
    final = weights_of(folder, 4)
    shutil.rmtree(folder / "checkpoints" / "4")
    assert resume(folder, say=quiet) == 4
    assert weights_of(folder, 4) == final
    assert [row["step"] for row in read_run(folder).metrics] == [1, 2, 3, 4]


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bits_and_another_seed_does_not(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        train(tiny_plan(seed=seed, run={"steps": 2}), tmp_path / name, say=quiet)
    assert weights_of(tmp_path / "a", 2) == weights_of(tmp_path / "b", 2)
    assert weights_of(tmp_path / "a", 2) != weights_of(tmp_path / "c", 2)


@pytest.mark.slow
def test_runs_chain_sft_then_reward_model_then_dpo(tmp_path: Path) -> None:
    train(tiny_plan(), tmp_path / "sft", say=quiet)
    policy = {"model": {"policy": str(tmp_path / "sft")}}
    said: list[str] = []
    train(tiny_plan(algorithm="reward_model", **policy), tmp_path / "rm", say=said.append)
    assert any("scalar head is new" in line for line in said)
    train(tiny_plan(algorithm="dpo", **policy), tmp_path / "dpo", say=quiet)
    first = read_run(tmp_path / "dpo").metrics[0]
    assert first["loss"] == pytest.approx(0.6931, abs=1e-3)  # the reference is the policy itself before the first step


def test_rollout_rows_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    recipe = {"algorithm": "rlvr", "model": {"policy": "tiny:llama"}, "data": {"train": "arithmetic:64"}}
    plan = resolve(validate({**recipe, "rewards": [{"use": "arithmetic"}]}))
    with pytest.raises(ValueError, match="learns from rollouts, which this version cannot sample yet"):
        assemble(plan, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_never_writes_over_another(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="never writes over another"):
        train(tiny_plan(), tmp_path, say=quiet)


def test_resuming_what_is_no_run_or_is_finished_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is no run folder"):
        resume(tmp_path, say=quiet)
    train(tiny_plan(run={"steps": 1}), tmp_path / "run", say=quiet)
    with pytest.raises(ValueError, match=r"finished \(step 1 of 1\)"):
        resume(tmp_path / "run", say=quiet)
