"""A plan becomes a run: every row that learns from files trains, saves, resumes to the same bits, refuses early."""

from __future__ import annotations

import json
import shutil
import sys
import types
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from ascent.algorithms import TABLE
from ascent.api.train import assemble, resume_run, train, train_plan
from ascent.config.load import nest_keys
from ascent.config.validate import validate
from ascent.models.tiny import create
from ascent.plan.resolve import resolve
from ascent.runs.folder import read_run
from ascent.setup.evaluation import OF_ANSWERS
from tests.setup.runs import tiny_plan, tiny_recipe, weights_of

FILE_ROWS = [name for name, row in TABLE.items() if not row.samples]


def quiet(text: str) -> None: ...


@pytest.mark.parametrize("name", FILE_ROWS)
def test_every_row_that_learns_from_files_trains_and_resumes_to_the_same_bits(
    name: str, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    plan = tiny_plan(algorithm=name)
    assert train_plan(plan, folder, say=quiet) == 4
    run = read_run(folder)
    assert run.state == "finished" and run.checkpoints == [2, 4]
    assert len(run.metrics) == 4
    assert weights_of(folder, 2) != weights_of(folder, 4)
    assert any(key.startswith("eval/") for key in run.metrics[1])
    assert (folder / "curves.png").stat().st_size > 0
    final = weights_of(folder, 4)
    shutil.rmtree(folder / "checkpoints" / "4")
    assert resume_run(folder, say=quiet) == 4
    assert weights_of(folder, 4) == final
    assert [row["step"] for row in read_run(folder).metrics] == [1, 2, 3, 4]


def test_a_model_that_pads_with_its_end_of_turn_is_resumed_to_the_same_bits(tmp_path: Path) -> None:
    """The checkpoint's config names another padding token than the model's did (SmolLM2-Instruct is such a model)."""
    base = create(tmp_path / "base", family="llama")
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.pad_token = tokenizer.eos_token
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.content }}<eos>{% endfor %}"  # also behind the question
    )
    tokenizer.save_pretrained(base)
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps(config | {"pad_token_id": config["eos_token_id"]}))
    folder = tmp_path / "run"
    train_plan(tiny_plan(model={"policy": str(base)}), folder, say=quiet)
    final = weights_of(folder, 4)
    shutil.rmtree(folder / "checkpoints" / "4")
    assert resume_run(folder, say=quiet) == 4
    assert weights_of(folder, 4) == final


def test_the_same_seed_gives_the_same_bits_and_another_seed_does_not(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        train_plan(tiny_plan(seed=seed, run={"steps": 2}), tmp_path / name, say=quiet)
    assert weights_of(tmp_path / "a", 2) == weights_of(tmp_path / "b", 2)
    assert weights_of(tmp_path / "a", 2) != weights_of(tmp_path / "c", 2)


def test_runs_chain_sft_then_reward_model_then_dpo(tmp_path: Path) -> None:
    train_plan(tiny_plan(), tmp_path / "sft", say=quiet)
    policy = {"model": {"policy": str(tmp_path / "sft")}}
    said: list[str] = []
    train_plan(tiny_plan(algorithm="reward_model", **policy), tmp_path / "rm", say=said.append)
    assert any("scalar head is new" in line for line in said)
    train_plan(tiny_plan(algorithm="dpo", **policy), tmp_path / "dpo", say=quiet)
    first = read_run(tmp_path / "dpo").metrics[0]
    assert first["loss/total"] == pytest.approx(
        0.6931, abs=1e-3
    )  # the reference is the policy itself before the first step


def test_a_run_never_writes_over_another(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="never writes over another"):
        train_plan(tiny_plan(), tmp_path, say=quiet)


def test_resuming_what_is_no_run_or_is_finished_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is no run folder"):
        resume_run(tmp_path, say=quiet)
    train_plan(tiny_plan(run={"steps": 1}), tmp_path / "run", say=quiet)
    with pytest.raises(ValueError, match=r"finished \(step 1 of 1\)"):
        resume_run(tmp_path / "run", say=quiet)


def test_a_bad_start_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is no number of this evaluation"):
        train_plan(
            tiny_plan(run={"keep_best": 1, "best_metric": "acuracy"}), tmp_path / "run", say=quiet
        )
    assert not (tmp_path / "run").exists()
    (tmp_path / "mine").mkdir()
    with pytest.raises(ValueError, match="is no number of this evaluation"):
        train_plan(
            tiny_plan(run={"keep_best": 1, "best_metric": "acuracy"}), tmp_path / "mine", say=quiet
        )
    assert list((tmp_path / "mine").iterdir()) == []


def test_a_start_that_was_killed_before_there_was_a_run_is_started_again(tmp_path: Path) -> None:
    plan = tiny_plan(algorithm="dpo", run={"steps": 1})
    train_plan(plan, tmp_path / "whole", say=quiet)
    killed = tmp_path / "killed"
    for name in (
        "initial",
        "reference.safetensors",
        "environment.json",
        "lock",
    ):  # as far as a start may have come
        source = tmp_path / "whole" / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, _made(killed) / name)
    (killed / "initial" / "llama" / "model.safetensors").write_bytes(b"half")
    with pytest.raises(ValueError, match=r"started again with ascent train and the same --run"):
        resume_run(killed, say=quiet)
    said: list[str] = []
    assert train_plan(plan, killed, say=said.append) == 1
    assert "killed during setup; starting again" in said[0]
    assert weights_of(killed, 1) == weights_of(tmp_path / "whole", 1)


def _made(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    return folder


def test_the_best_checkpoints_are_kept_by_the_number_that_the_recipe_names(tmp_path: Path) -> None:
    """Too high a learning rate: the loss rises after the first steps, so the best is not among the last."""
    run = {"steps": 6, "save_every": 1, "evaluate_every": 1, "keep": 1, "keep_best": 2}
    said: list[str] = []
    train_plan(tiny_plan(update={"learning_rate": 0.3}, run=run), tmp_path / "run", say=said.append)
    found = read_run(tmp_path / "run")
    losses = {int(row["step"]): row["eval/loss/total"] for row in found.metrics}
    best = sorted(losses, key=lambda step: losses[step])[:2]
    assert set(found.checkpoints) == {*best, 6}
    assert 6 not in best
    assert [
        Path(line.split(": ")[1]).name for line in said if line.startswith("kept for eval/loss")
    ] == [str(step) for step in best]
    scores = [
        json.loads((tmp_path / f"run/checkpoints/{n}/manifest.json").read_text())["score"]
        for n in best
    ]
    assert scores == [losses[step] for step in best]


def test_of_an_accuracy_the_largest_is_the_best_and_every_kept_judge_is_centered(
    tmp_path: Path,
) -> None:
    run = {
        "steps": 5,
        "save_every": 1,
        "evaluate_every": 1,
        "keep": 1,
        "keep_best": 1,
        "best_metric": "preference/accuracy",
    }
    folder = tmp_path / "run"
    train_plan(tiny_plan(algorithm="reward_model", run=run), folder, say=quiet)
    found = read_run(folder)
    accuracies = {int(row["step"]): row["eval/preference/accuracy"] for row in found.metrics}
    best = max(accuracies, key=lambda step: (accuracies[step], step))
    assert set(found.checkpoints) == {best, 5}
    for step in found.checkpoints:
        config = json.loads((folder / f"checkpoints/{step}/model/config.json").read_text())
        assert config["score_normalization"]["records"] == 64


def test_mixed_data_has_its_share_of_every_step_and_resumes_to_the_same_bits(
    tmp_path: Path,
) -> None:
    mix = [{"use": "sort_digits:20", "share": 0.25}]
    plan = tiny_plan(data={"mix": mix, "max_tokens": 128}, run={"keep": 4})
    training = assemble(plan, tmp_path / "looked")
    assert any(
        line == "20 records from sort_digits:20, 0.25 of every step" for line in training.notes
    )
    for step in range(4):
        texts = [
            str(training.model.tokenizer.decode(tokens.tolist()))
            for batch in training.source.next(step)
            for tokens in batch["tokens_T"].split(batch["segments"].lengths_B.tolist())
        ]
        assert Counter("ort" in text for text in texts) == {True: 4, False: 12}, texts[:2]
    folder = tmp_path / "run"
    train_plan(plan, folder, say=quiet)
    final = weights_of(folder, 4)
    shutil.rmtree(folder / "checkpoints" / "4")
    resume_run(folder, say=quiet)
    assert weights_of(folder, 4) == final
    train_plan(tiny_plan(data={"max_tokens": 128}), tmp_path / "unmixed", say=quiet)
    assert weights_of(tmp_path / "unmixed", 4) != final


@pytest.mark.filterwarnings("ignore")  # TensorBoard's reader warns about its own dependencies
def test_trackers_get_every_step_of_a_run_and_of_its_continuation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    calls: list[Any] = []
    fake: Any = types.ModuleType("wandb")
    fake.init = lambda **options: (
        calls.append(options)
        or types.SimpleNamespace(
            log=lambda values, step: calls.append(step), finish=lambda: calls.append("finish")
        )
    )
    monkeypatch.setitem(sys.modules, "wandb", fake)
    folder = tmp_path / "run"
    plan = tiny_plan(run={"trackers": ["tensorboard", "wandb"], "project": "mine"})
    train_plan(plan, folder, say=quiet)
    assert (calls[0]["project"], calls[0]["id"], calls[1:]) == (
        "mine",
        "run",
        [1, 2, 3, 4, "finish"],
    )
    assert calls[0]["config"]["algorithm"] == "sft"
    shutil.rmtree(folder / "checkpoints" / "4")
    resume_run(folder, say=quiet)
    assert (calls[6]["id"], calls[7:]) == ("run", [3, 4, "finish"])
    reader = EventAccumulator(str(folder / "tensorboard"))
    reader.Reload()
    logged = {int(row["step"]): row["loss/total"] for row in read_run(folder).metrics}
    events = reader.Scalars("loss/total")
    assert [event.step for event in events] == [1, 2, 3, 4]  # what was run again is there once
    assert {event.step: event.value for event in events} == pytest.approx(logged)


def test_a_tracker_that_is_not_installed_is_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ImportError, match=r"pip install 'ascent-posttrain\[track\]'"):
        train_plan(tiny_plan(run={"trackers": ["wandb"]}), tmp_path / "run", say=quiet)
    assert not (tmp_path / "run").exists()


def test_kto_goes_through_epochs_in_steps_of_two(tmp_path: Path) -> None:
    """Three records in steps of two: now and then a step is one record twice."""
    plan = tiny_plan(
        algorithm="kto", data={"train": "arithmetic:3", "batch_size": 2}, run={"steps": 12}
    )
    assert train_plan(plan, tmp_path / "run", say=quiet) == 12


CLOSING = """
from pathlib import Path

from ascent.envs.single_turn import SingleTurn
from ascent.rewards import Batch

HERE = Path(__file__).with_suffix(".log")


def note(line):
    with HERE.open("a") as log:
        log.write(line + "\\n")


class Held(Batch):
    def __init__(self, *, fails: bool = False, sour: bool = False):
        self.fails, self.sour = fails, sour
        note("reward opened")

    def score(self, rollouts):
        if self.fails:
            raise RuntimeError("out of order")
        return [float(each.length % 2) for each in rollouts]

    def close(self):
        note("reward closed")
        if self.sour:
            raise RuntimeError("stuck")


class Talking(SingleTurn):
    def close(self):
        note("env closed")
"""


@pytest.mark.parametrize(
    ("options", "more", "ends"),
    [
        ({}, {}, "finished"),
        ({"sour": True}, {}, "finished"),
        ({"fails": True, "on_error": "failures"}, {}, "failed"),
        ({}, {"data.train": "broken.jsonl"}, "unbuilt"),
        ({}, {"data.evaluate": "broken.jsonl"}, "unbuilt"),
    ],
)
def test_rewards_and_environments_are_closed_once_however_a_run_ends(
    tmp_path, monkeypatch, options, more, ends
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "held.py").write_text(CLOSING)
    (tmp_path / "broken.jsonl").write_text("{")
    settings = {
        "algorithm": "grpo",
        "model.policy": "tiny:llama",
        "data.train": "sort_digits:8",
        "run.steps": 2,
        "rewards": [{"use": f"{tmp_path / 'held.py'}:Held", **options}],
        "rollouts.prompts_per_step": 2,
        "rollouts.group_size": 4,
        "rollouts.max_new_tokens": 5,
        "env": {"use": f"{tmp_path / 'held.py'}:Talking"},
    }
    plan, said = resolve(validate(nest_keys({**settings, **more}))), []
    if ends == "finished":
        train_plan(plan, tmp_path / "run", say=said.append)
    else:
        with pytest.raises((ValueError, RuntimeError)):
            train_plan(plan, tmp_path / "run", say=said.append)
    assert (tmp_path / "run").exists() == (ends != "unbuilt")
    assert sorted((tmp_path / "held.log").read_text().splitlines()) == [
        "env closed",
        "reward closed",
        "reward opened",
    ]
    assert any("could not be closed (RuntimeError: stuck)" in line for line in said) == (
        "sour" in options
    )


SAMPLING = {
    "algorithm": "grpo",
    "model.policy": "tiny:llama",
    "data.train": "sort_digits:8",
    "data.evaluate": "sort_digits@heldout:2",
    "rewards": [{"use": "verifier"}],
    "rollouts.prompts_per_step": 2,
    "rollouts.group_size": 4,
    "rollouts.max_new_tokens": 5,
    "run.steps": 2,
    "run.save_every": 1,
    "run.evaluate_every": 1,
    "run.keep": 1,
    "run.keep_best": 1,
}
ALWAYS = "completion/length_max, completion/length_mean, completion/truncated_frac, reward/correct, reward/failure_frac"


@pytest.mark.parametrize(
    ("best_metric", "words"),
    [
        (
            "loss/total",
            rf"run\.best_metric='loss/total' is no number of this evaluation; use one of {ALWAYS}, ",
        ),
        (
            "nonsense",
            rf"run\.best_metric='nonsense' is no number of this evaluation; use one of {ALWAYS}, ",
        ),
        (
            "reward/verifer/correct",
            r"is no number of this evaluation; use one of .*, reward/verifier\[/PART\]",
        ),
        ("env/turns", "run.best_metric='env/turns' is no number of this evaluation"),
    ],
)
def test_what_samples_refuses_a_best_by_that_it_does_not_report_before_anything_is_built(
    tmp_path: Path, best_metric: str, words: str
) -> None:
    plan = resolve(validate(nest_keys({**SAMPLING, "run.best_metric": best_metric})))
    with pytest.raises(ValueError, match=words):
        train_plan(plan, tmp_path / "run", say=quiet)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("best_metric", ["reward/verifier", "reward/verifier/corect"])
def test_a_part_that_no_reward_gives_is_refused_before_a_step_is_trained(
    tmp_path: Path, best_metric: str
) -> None:
    """Which parts a reward has is known once it has scored something: the evaluation before the first step."""
    plan = resolve(validate(nest_keys({**SAMPLING, "run.best_metric": best_metric})))
    with pytest.raises(
        ValueError,
        match=rf"run\.best_metric='{best_metric}' is no number .*, reward/verifier/correct, ",
    ):
        train_plan(plan, tmp_path / "run", say=quiet)
    assert [row["step"] for row in read_run(tmp_path / "run").metrics] == [0]


def test_the_best_of_what_samples_has_the_highest_reward_by_default() -> None:
    assert resolve(validate(nest_keys(SAMPLING))).config.run.best_metric == "reward/mean"


@pytest.mark.parametrize(
    "best_metric", ["reward/correct", "reward/mean", "reward/verifier/places", "env/turns"]
)
def test_what_samples_keeps_its_best_checkpoint(tmp_path: Path, best_metric: str) -> None:
    talking = {"env": {"use": "single_turn"}} if best_metric.startswith("env") else {}
    said: list[str] = []
    train_plan(
        resolve(validate(nest_keys({**SAMPLING, **talking, "run.best_metric": best_metric}))),
        tmp_path / "run",
        say=said.append,
    )
    rows = read_run(tmp_path / "run").metrics
    found = {name.removeprefix("eval/") for row in rows for name in row if name.startswith("eval/")}
    assert {
        name for name in found if not name.startswith(("reward/verifier", "env/"))
    } == OF_ANSWERS
    scores = {int(row["step"]): row[f"eval/{best_metric}"] for row in rows}
    best = max((1, 2), key=lambda step: (scores[step], step))
    assert f"kept for eval/{best_metric}: {tmp_path / 'run' / 'checkpoints' / str(best)}" in said


def test_a_run_records_where_its_settings_came_from(tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path)
    train(
        recipe,
        ["run.steps=1", "data=arithmetic:16"],
        run=tmp_path / "run",
        progress=False,
        say=quiet,
    )
    content = json.loads((tmp_path / "run/inputs.json").read_text())
    origins = content["origins"]
    assert origins.keys() == content["recipe"].keys()
    wanted = {
        "run.steps": "command line",
        "data.train": "command line",
        "data.batch_size": "recipe",
        "run.keep": "default",
    }
    assert {key: origins[key] for key in wanted} == wanted
