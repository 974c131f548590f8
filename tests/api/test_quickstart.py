"""The quick start in miniature: every stage in its folder, the same command again trains nothing again."""

from __future__ import annotations

from pathlib import Path

import pytest

from ascent.api import quickstart
from ascent.api.stages import StageStopped, stage
from ascent.checkpoints.resume import newest
from ascent.config.load import shipped_recipes
from ascent.plan.load import load_config
from ascent.plan.resolve import resolve
from ascent.runs.folder import read_run

SHORT = ["run.steps=2", "run.save_every=1", "update.warmup_steps=0"]
SMALL = {
    "quickstart_sft": [*SHORT, "data.batch_size=4", "data.train=sort_up_to_four:64"],
    "quickstart_control": [*SHORT, "data.batch_size=4", "data.train=sort_up_to_four:64"],
    "quickstart_rlvr": [*SHORT, "rollouts.prompts_per_step=2", "data.evaluate=sort_long@heldout:4"],
    "quickstart_demonstrations": [*SHORT, "data.batch_size=4", "data.train=contrary:64"],
    "quickstart_reward_model": [
        *SHORT,
        "data.batch_size=4",
        "data.train=contrary:64",
        "data.evaluate=contrary@heldout:8",
    ],
    "quickstart_ppo": [*SHORT, "rollouts.prompts_per_step=2"],
}


@pytest.fixture(autouse=True)
def few_prompts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.node.get_closest_marker("learning") is None:
        monkeypatch.setattr(quickstart, "PROMPTS", 4)


@pytest.mark.learning
def test_practice_sorts_long_lists_and_more_imitation_does_not(tmp_path: Path) -> None:
    """The figures of docs/results/quickstart.md, with room for another machine's rounding."""
    outcome = quickstart.train_from_verifier(
        tmp_path, seed=0, say=lambda line: None, progress=False
    )
    imitation, control, practice = (each.metrics["greedy/correct"].value for each in outcome.models)
    assert practice >= 0.95 and imitation < 0.3 and control < 0.7


def test_sorting_has_three_runs_one_of_them_in_parallel(tmp_path: Path) -> None:
    outcome = quickstart.train_from_verifier(
        tmp_path, seed=0, say=lambda line: None, overrides=SMALL
    )
    assert [each.folder.name for each in outcome.models] == ["sft", "control", "rlvr"]
    assert {read_run(each.folder).state for each in outcome.models} == {"finished"}
    for each in outcome.models:
        assert each.metrics["greedy/correct"].prompts == 4 and len(each.answers) == 4
    assert read_run(tmp_path / "rlvr").metrics[-1]["step"] == 2


def test_the_same_command_again_trains_nothing_again(tmp_path: Path) -> None:
    first = quickstart.train_from_preferences(
        tmp_path, seed=0, say=lambda line: None, overrides=SMALL
    )
    known = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")}
    said: list[str] = []
    again = quickstart.train_from_preferences(tmp_path, seed=0, say=said.append, overrides=SMALL)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")} == known
    assert sum("is finished" in line for line in said) == 3
    assert [each.metrics for each in first.models] == [each.metrics for each in again.models]


def test_what_changed_is_what_was_wrong_and_is_right(tmp_path: Path) -> None:
    outcome = quickstart.train_from_preferences(
        tmp_path, seed=0, say=lambda line: None, overrides=SMALL
    )
    wrong, right = outcome.models[0].answers, outcome.models[1].answers
    assert outcome.improved() == []  # two steps teach nothing
    answer = str(right[0].prompt.answer)
    flipped = (
        right[0]
        .turns[0]
        .__class__(right[0].turns[0].observed, right[0].turns[0].completion, answer)
    )
    better = right[0].__class__(right[0].prompt, right[0].sample, (flipped,))
    taught = quickstart.ModelResult("taught", outcome.trained, 0.0, {}, [better, *right[1:]])
    told = quickstart.QuickstartResult(
        "contrary", "correct", (outcome.models[0], taught), outcome.trained, ()
    )
    assert told.improved() == [(wrong[0], better)]


def test_a_stage_that_was_stopped_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = resolve(load_config("quickstart_sft", SMALL["quickstart_sft"]))
    from ascent import loop

    whole = loop.run
    monkeypatch.setattr(
        loop, "run", lambda *given, **named: whole(*given, **{**named, "stop": lambda: True})
    )
    with pytest.raises(StageStopped, match="after step 1"):
        stage(plan, tmp_path / "run", lambda line: None)
    monkeypatch.undo()
    stage(plan, tmp_path / "run", lambda line: None)
    found = newest(tmp_path / "run" / "checkpoints")
    assert found is not None and found.step == 2


@pytest.mark.parametrize(
    "name", [name for name in shipped_recipes() if name.startswith("quickstart")]
)
def test_its_recipes_resolve(name: str) -> None:
    resolve(load_config(name))
