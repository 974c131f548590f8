"""What rounds decide themselves, what they refuse before anything runs. Whole runs: tests/end_to_end/test_rounds.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ascent.api.iterate import (
    COMPARISONS,
    MEASURED,
    Folders,
    _plans,
    _refuse_collect,
    _refuse_measure,
    iterate,
)
from ascent.api.stages import StageStopped
from ascent.config.iterate import IterateConfig, iterate_config
from ascent.models.tiny import create
from tests.end_to_end.test_rounds import recipe


def of(**changes: Any) -> IterateConfig:
    return iterate_config(recipe(**changes), "r")


def test_models_data_and_seeds_come_from_the_rounds():
    plans = _plans(Folders(Path("f"), of(seed=5)), 2)
    assert list(plans) == ["reward_model", "policy"]
    judge, policy = plans["reward_model"].config, plans["policy"].config
    assert (judge.seed, judge.model.policy, judge.data.train) == (
        7,
        "f/sft",
        "f/round-2/comparisons.jsonl",
    )
    assert (policy.model.policy, policy.model.reference) == ("f/round-1/policy", "f/sft")
    assert policy.model.reward_model == "f/round-2/reward_model"


def test_without_a_reward_model_the_policy_learns_from_the_comparisons():
    recipe_ = of(
        reward_model=None, sft="m", policy={"algorithm": "dpo", "data": {"max_tokens": 64}}
    )
    plans = _plans(Folders(Path("f"), recipe_), 1)
    assert list(plans) == ["policy"]
    assert plans["policy"].config.data.train == "f/round-1/comparisons.jsonl"
    assert plans["policy"].config.model.policy == "m"
    assert _plans(Folders(Path("f"), recipe_), 0) == {}


@pytest.mark.parametrize(
    ("stage", "section", "key", "value"),
    [
        ("policy", "model", "policy", "x"),
        ("reward_model", "data", "train", "x"),
        ("policy", "model", "reference", "x"),
    ],
)
def test_what_the_rounds_decide_cannot_be_set(stage, section, key, value):
    tree = recipe()[stage]
    tree[section] = tree.get(section, {}) | {key: value}
    with pytest.raises(
        ValueError, match=rf"{stage}\.{section}\.{key} is set by the rounds; remove it"
    ):
        _plans(Folders(Path("f"), of(**{stage: tree})), 1)


def test_everything_is_checked_before_the_first_stage(tmp_path):
    bad = recipe()["policy"] | {"rollouts": {"prompts_per_step": 4, "temprature": 1}}
    with pytest.raises(ValueError, match=r"policy: rollouts.temprature is not a key"):
        iterate(of(policy=bad), run=tmp_path / "r")
    assert not (tmp_path / "r").exists()
    with pytest.raises(ValueError, match="nobody is there to be asked"):
        iterate(of(collect={"prompts": "style:4"}), run=tmp_path / "r")


def changed(section: str, **values: Any) -> IterateConfig:
    return of(**{section: recipe()[section] | values})


NO_ANSWER = '{"prompt": "Which?"}\n'
JUDGES = {
    "simulated:nosuch": r"no task named 'nosuch'; there are sort_digits",
    "simulated:stile": r"no task named 'stile'; did you mean style\?",
    "simulated:style?nois=1": r"simulated:style has no option nois; it has noise",
    "absent/reward_model": r"no reward named 'absent/reward_model'",
    "absent.py:f": r"there is no file",
    "http://h/v1?model=m&rubric=@absent": r"No such file or directory: 'absent'",
}


@pytest.mark.parametrize(("name", "words"), JUDGES.items())
@pytest.mark.parametrize(("section", "key"), [("collect", "annotator"), ("measure", "judge")])
def test_a_missing_judge_is_refused_before_the_first_stage(tmp_path, section, key, name, words):
    with pytest.raises(ValueError, match=rf"^{section}\.{key}: .*{words}"):
        iterate(changed(section, **{key: name}), run=tmp_path / "r")
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("section", "values", "words"),
    [
        (
            "measure",
            {"judge": "person"},
            r"measure\.judge is a person, but .*; name a reward model",
        ),
        (
            "collect",
            {"form": "ratings"},
            r"collect\.annotator: .*ratings are the scores themselves; leave out noise",
        ),
        (
            "collect",
            {"form": "rankings", "annotator": "http://h/v1?model=m"},
            r"collect\.annotator: .*ask for pairs",
        ),
        (
            "collect",
            {"prompts": "absent.jsonl"},
            r"collect\.prompts: no file or folder at absent\.jsonl; give a path",
        ),
        (
            "collect",
            {"prompts": "style@test:4"},
            r"collect\.prompts: style@test:4: .* splits train and heldout",
        ),
        (
            "measure",
            {"prompts": "./absent"},
            r"measure\.prompts: no file or folder at \./absent; give a path",
        ),
        (
            "policy",
            {"data": {"train": "absent.jsonl"}},
            r"policy: no file or folder at absent\.jsonl",
        ),
        (
            "reward_model",
            {"data": {"evaluate": "absent.csv"}},
            r"reward_model: no file or folder at absent\.csv",
        ),
        ("sft", {"data": {"train": "absent.jsonl"}}, r"sft: no file or folder at absent\.jsonl"),
    ],
)
def test_what_a_later_stage_would_refuse_is_refused_before_the_first(
    tmp_path, section, values, words
):
    with pytest.raises(ValueError, match=f"^{words}"):
        iterate(changed(section, **values), run=tmp_path / "r")
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(("section", "key"), [("collect", "annotator"), ("measure", "judge")])
def test_a_simulated_judge_needs_prompts_with_answers(tmp_path, section, key):
    file = tmp_path / "prompts.jsonl"
    file.write_text(NO_ANSWER)
    with pytest.raises(
        ValueError, match=rf"{section}\.{key}: prompt .* has no answer; style verifies"
    ):
        iterate(changed(section, prompts=str(file), **{key: "simulated:style"}), run=tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_what_is_finished_needs_nothing_any_more_and_what_will_be_there_is_not_missed(tmp_path):
    found = changed("measure", judge=str(tmp_path / "round-1/reward_model"))
    _refuse_measure(Folders(tmp_path, found))
    with pytest.raises(ValueError, match=r"measure\.judge: no reward named"):
        _refuse_measure(Folders(tmp_path / "elsewhere", found))
    gone = of(
        collect={"prompts": "gone.jsonl", "annotator": "gone.py:f"},
        measure={"prompts": "gone.csv", "judge": "g.py:f"},
    )
    folders = Folders(tmp_path, gone)
    for number in (1, 2):
        with pytest.raises(ValueError, match=r"collect\.prompts: no file"):
            _refuse_collect(folders)
        with pytest.raises(ValueError, match=r"measure\.prompts: no file"):
            _refuse_measure(folders)
        folders.round(number).mkdir()
        for name in (COMPARISONS, MEASURED):
            (folders.round(number) / name).touch()
    _refuse_collect(folders)
    _refuse_measure(folders)


def test_a_person_may_leave_and_come_back_and_the_recipe_must_stay(tmp_path):
    """Iterated DPO from a model that is there, one round, judged by somebody who leaves in the middle."""
    from tests.api.test_collect import Person, Verdict

    model = str(create(tmp_path / "m", seed=0))
    dpo = {"algorithm": "dpo", "data": {"max_tokens": 64, "batch_size": 2}, "run": {"steps": 1}}
    collect = {"prompts": "style:4", "samples": 2, "max_new_tokens": 5}
    found = of(rounds=1, reward_model=None, sft=model, policy=dpo, collect=collect, measure=None)
    quiet = {"say": lambda line: None}
    with pytest.raises(StageStopped, match="2 of 4 questions of round 1 are answered"):
        iterate(
            found,
            run=tmp_path / "r",
            person=Person(Verdict("first"), Verdict("tie"), "quit"),
            **quiet,
        )
    other = found.model_copy(update={"seed": 1})
    with pytest.raises(ValueError, match="is another recipe: seed was 0 and is 1"):
        iterate(other, run=tmp_path / "r", person=Person(), **quiet)
    (done,) = iterate(
        found, run=tmp_path / "r", person=Person(Verdict("first"), Verdict("second")), **quiet
    )
    assert done.policy == tmp_path / "r/round-1/policy" and done.comparison is None
    more = found.model_copy(update={"rounds": 2})
    with pytest.raises(StageStopped, match="0 of"):
        iterate(more, run=tmp_path / "r", person=Person("quit"), **quiet)
    with pytest.raises(ValueError, match="rounds can only be added"):
        iterate(found, run=tmp_path / "r", **quiet, person=Person())
