"""The verbs that train, through the command itself."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import ascent
from ascent.cli.main import app
from ascent.plan import resolve
from ascent.plan.load import load_config
from ascent.runs.folder import read_run
from tests.end_to_end.crashing import wait_for
from tests.setup.runs import tiny_recipe


def call(*words: str):
    return CliRunner().invoke(app, list(words), catch_exceptions=False)


def test_train_then_look_at_it_then_sample_score_and_export(tmp_path: Path) -> None:
    recipe, run = tiny_recipe(tmp_path), tmp_path / "runs" / "first"
    done = call("train", recipe, "run.steps=2", "--run", str(run))
    assert done.exit_code == 0 and "finished step 2 of 2" in done.stderr
    saved = resolve(load_config(str(run / "config.yaml"))).config
    made = ["run.steps=2", "model.arithmetic=fast"]  # on a CPU
    assert (
        saved == resolve(load_config(recipe, made)).config
    )  # the resolved config is itself a recipe
    assert "finished  step 2" in call("runs", str(run.parent)).stdout
    shown = call("show", "run", str(run)).stdout
    assert "checkpoints: 2" in shown and "algorithm: sft" in shown
    assert "kept no samples" in call("show", "samples", str(run)).stdout
    assert "-> " in call("sample", str(run), "1+1=", "--max-new-tokens", "3", "--greedy").stdout
    assert "written to" in call("export", str(run), str(tmp_path / "plain")).stdout
    with pytest.raises(ValueError, match=r"finished \(step 2 of 2\)"):
        call("resume", str(run))
    with pytest.raises(ValueError, match="no scalar head"):
        call("score", str(run), "arithmetic:2")


def test_score_prints_lines_of_json_and_says_what_they_are_relative_to(tmp_path: Path) -> None:
    run = tmp_path / "rm"
    recipe = tiny_recipe(
        tmp_path, algorithm="reward_model", data={"centering_data": "arithmetic:12"}
    )
    assert call("train", recipe, "run.steps=1", "--run", str(run)).exit_code == 0
    done = call("score", str(run), "arithmetic@heldout:3")
    assert "scores are relative to 12 demonstrations" in done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["record"] for line in lines] == [1, 2, 3]
    assert all(len(line["scores"]) == 2 for line in lines)


@pytest.mark.parametrize("algorithm", ["sft", "reward_model", "dpo"])
def test_check_shows_a_sample_and_a_forecast(algorithm: str, tmp_path: Path) -> None:
    done = call("check", tiny_recipe(tmp_path, algorithm=algorithm))
    assert done.exit_code == 0
    assert "trained tokens in brackets" in done.stdout
    assert re.search(
        r"^time per step +\d+\.\d\d s here: 4 steps take about", done.stdout, re.MULTILINE
    )
    assert re.search(r"^peak memory +\d+\.\d+ [MG]iB of \d+\.\d\d GiB$", done.stdout, re.MULTILINE)
    assert re.search(
        r"^model memory +\d+\.\d MiB: weights .* moments .* activations ", done.stdout, re.MULTILINE
    )


def test_check_counts_an_offloaded_optimizer_on_the_host(tmp_path: Path) -> None:
    done = call("check", tiny_recipe(tmp_path), "update.optimizer_offload=true")
    assert re.search(r"^model memory +\d+\.\d MiB: weights .* staging ", done.stdout, re.MULTILINE)
    assert "moments" not in done.stdout.split("model memory")[1].split("host memory")[0]
    assert re.search(r"^host memory +\d+\.\d MiB: masters and moments", done.stdout, re.MULTILINE)


def test_a_bad_recipe_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="gives no baseline"):
        call("train", "rlvr", "rollouts.group_size=1", "--run", str(tmp_path / "run"))
    with pytest.raises(ValueError, match=r"rollouts\.engine.*native"):
        call("train", "rlvr", "rollouts.engine=sglang", "--run", str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_what_a_person_can_mend_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is no folder"):
        call("runs", str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match="is no run folder"):
        call("show", "run", str(tmp_path))
    with pytest.raises(ValueError, match="does not exist"):
        call("sample", str(tmp_path / "nowhere"), "hello")
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="not an empty folder"):
        call("train", tiny_recipe(tmp_path), "--run", str(tmp_path / "file"))


def test_resume_says_what_changed_and_continues_only_if_accepted(tmp_path: Path) -> None:
    data, run = tmp_path / "data.jsonl", tmp_path / "run"
    row = '{{"prompt": "{}+1=", "completion": "{}"}}\n'
    data.write_text("".join(row.format(n, n + 1) for n in range(8)))
    recipe = tiny_recipe(
        tmp_path, data={"train": str(data), "batch_size": 4}, run={"steps": 2, "save_every": 1}
    )
    assert call("train", recipe, "--run", str(run)).exit_code == 0
    shutil.rmtree(run / "checkpoints/2")
    data.write_text("".join(row.format(n, n) for n in range(8)))
    with pytest.raises(
        ValueError, match=rf"data.train {data} has another content .*\n.*--accept-changes"
    ):
        call("resume", str(run))
    done = call("resume", str(run), "--accept-changes")
    assert done.exit_code == 0 and "accepted, from step 2 on" in done.stderr
    assert (
        "changed from step 2 on: data.train (its content)" in call("show", "run", str(run)).stdout
    )


def test_without_a_folder_runs_are_numbered_by_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tiny_recipe(tmp_path)
    monkeypatch.chdir(tmp_path)
    for number in (1, 2):
        done = call("train", recipe, "run.steps=1", "--no-progress")
        assert done.exit_code == 0 and f"the run folder is runs/recipe-{number}\n" in done.stderr
    with pytest.raises(ValueError, match="no file or folder"):
        call("train", recipe, "data=absent.jsonl")
    run = ascent.train(
        {"algorithm": "ipo", "model": "tiny:llama", "data": "arithmetic:40"},
        progress=False,
        say=print,
    )
    assert run.path == Path("runs/ipo-1")
    assert sorted(path.name for path in Path("runs").iterdir()) == ["ipo-1", "recipe-1", "recipe-2"]


def test_ctrl_c_finishes_the_step_saves_and_ends_with_status_130(tmp_path: Path) -> None:
    recipe, run = tiny_recipe(tmp_path), tmp_path / "run"
    command = [
        sys.executable,
        "-m",
        "ascent",
        "train",
        recipe,
        "run.steps=100000",
        "run.save_every=100000",
    ]
    child = subprocess.Popen([*command, "--run", str(run)], stderr=subprocess.PIPE, text=True)
    wait_for(
        lambda: (run / "metrics.jsonl").exists() and (run / "metrics.jsonl").stat().st_size > 0
    )
    child.send_signal(signal.SIGINT)
    said = child.communicate(timeout=60)[1]
    assert child.returncode == 130, said
    found = read_run(run)
    assert found.state == "stopped" and found.message == "stopped by SIGINT"
    assert found.checkpoints == [len(found.metrics)]
    assert "finishing this step, saving, then exiting" in said and "Traceback" not in said


def test_ctrl_c_while_a_run_is_set_up_has_the_same_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*given: object, **named: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ascent.api.train.record_inputs", interrupt)
    done = CliRunner().invoke(app, ["train", tiny_recipe(tmp_path), "--run", str(tmp_path / "run")])
    assert done.exit_code == 130 and not (tmp_path / "run").exists()
