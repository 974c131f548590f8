"""Faults of runs that learn from rewards: each has a named behavior (docs/rollouts.md), shown in a run of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from ascent.api.train import train_plan
from ascent.config.load import nest_keys
from ascent.config.validate import validate
from ascent.models.load import load
from ascent.models.tiny import create
from ascent.plan.resolve import resolve
from ascent.rewards.outcome import RewardFailed
from ascent.rollouts.source import MAX_STEPS_WITHOUT_SIGNAL
from ascent.runs.folder import Run, read_run

FAULTY = Path(__file__).with_name("faulty.py")
EVEN = {"use": f"{Path(__file__).with_name('rewarded.py')}:even"}
SETTINGS = {
    "algorithm": "rlvr",
    "model.policy": "tiny:llama",
    "data.train": "sort_digits:8",
    "rollouts.prompts_per_step": 2,
    "rollouts.group_size": 4,
    "rollouts.max_new_tokens": 5,
    "run.steps": 3,
    "run.save_every": 3,
}


def faulty(name: str, **options: Any) -> dict[str, Any]:
    return {"use": f"{FAULTY}:{name}", **options}


def run(folder: Path, reward: dict[str, Any], said: list[str] | None = None, **more: Any) -> Run:
    settings = {
        **SETTINGS,
        "rewards": [reward],
        **{key.replace("__", "."): value for key, value in more.items()},
    }
    try:
        train_plan(
            resolve(validate(nest_keys(settings))),
            folder,
            say=lambda line: said.append(line) if said is not None else None,
        )
    finally:
        found = read_run(folder) if (folder / "config.yaml").exists() else None
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("name", "reason"), [("raises", "raised"), ("nan", "nan"), ("hangs", "timeout")]
)
def test_now_and_then_unscored_is_counted_told_once_and_left_out(
    tmp_path: Path, name: str, reason: str
) -> None:
    done = run(tmp_path / "run", faulty(name, timeout=0.5))
    assert done.state == "finished"
    first = done.metrics[0]
    assert first[f"reward/failures/{name}/{reason}"] == 2  # one of each group's four
    assert first["reward/failure_frac"] == 0.25
    assert first["reward/mean"] in {n / 6 for n in range(7)}  # a mean over those that were scored
    missing = [each for each in done.samples if each["step"] == 1 and each["sample"] == 0]
    assert all(each["reward"] is None and each["advantages"] is None for each in missing)
    assert missing[0]["failures"] == {name: reason}
    told = [each for each in done.warnings if each["name"] == "reward_failed"]
    assert len(told) == 1 and f"reward {name}: unscored ({reason})" in told[0]["why"]
    assert "reward_failures" in [each["name"] for each in done.warnings]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("infinite", r"reward infinite on prompt '1\.0/0/.*', sample 0: infinite: returned inf"),
        ("words", r"reward words on prompt .*: wrong_type: returned 'good' \(str\)"),
        ("too_few", r"reward too_few on .*: wrong_count: a batch returned 7 scores for 8 rollouts"),
        ("always_raises", r"8 of 8 rollouts could not be scored \(8 always_raises: raised\)"),
    ],
)
def test_a_bug_in_a_reward_ends_the_run_with_its_name_and_place(
    tmp_path: Path, name: str, message: str
) -> None:
    with pytest.raises(RewardFailed, match=message):
        run(tmp_path / "run", faulty(name))
    left = read_run(tmp_path / "run")
    assert left.state == "failed" and "RewardFailed" in left.message
    assert left.metrics == []  # no step was made of it


def test_a_bug_can_be_told_to_be_left_out(tmp_path: Path) -> None:
    done = run(tmp_path / "run", faulty("infinite", on_error="never"))
    assert done.state == "finished" and done.metrics[0]["reward/failures/infinite/infinite"] == 2


def test_equal_rewards_train_nothing_and_end_the_run_after_twenty_steps(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError,
        match=f"no group of {MAX_STEPS_WITHOUT_SIGNAL} steps in a row had scored answers of",
    ):
        run(tmp_path / "run", faulty("equal"), run__steps=30)
    left = read_run(tmp_path / "run")
    assert left.state == "failed" and len(left.metrics) == MAX_STEPS_WITHOUT_SIGNAL - 1
    assert all(line["optim/updates"] == 0 for line in left.metrics)
    assert [
        (each["step"], each["name"]) for each in left.warnings if each["name"] == "zero_variance"
    ] == [(5, "zero_variance")]


def test_equal_rewards_without_a_filter_leave_the_weights_to_the_other_terms_and_are_warned_about(
    tmp_path: Path,
) -> None:
    done = run(
        tmp_path / "run",
        faulty("equal"),
        algorithm="dr_grpo",
        run__steps=6,
        run__save_every=6,
        update__learning_rate=0.01,
    )
    assert "zero_variance" in [each["name"] for each in done.warnings]
    assert all(
        line["advantage/abs_max"] == 0 and line["optim/grad_norm"] == 0 for line in done.metrics
    )
    before = load(tmp_path / "run/initial/llama").module.state_dict()
    after = load(tmp_path / "run/checkpoints/6/model").module.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_without_held_out_prompts_the_run_says_so_and_goes_on(tmp_path: Path) -> None:
    said: list[str] = []
    done = run(tmp_path / "run", EVEN, said)
    assert any(line.startswith("no held-out prompts") for line in said)
    assert done.answers == [] and not any(name.startswith("eval/") for name in done.metrics[-1])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sort_digits@test", "a built-in task has the splits train and heldout, not 'test'"),
        ("FOLDER/prompts.jsonl@test", "a file has no splits"),
        ("FOLDER/nothing.jsonl", "nothing.jsonl"),
    ],
)
def test_a_held_out_split_that_is_not_there_is_refused_before_anything_runs(
    tmp_path: Path, name: str, message: str
) -> None:
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n')
    with pytest.raises(ValueError, match=message):
        run(tmp_path / "run", EVEN, data__evaluate=name.replace("FOLDER", str(tmp_path)))
    assert not (tmp_path / "run").exists()


def test_a_prompt_that_is_there_twice_is_two_groups_and_is_said(tmp_path: Path) -> None:
    rows = [{"prompt": text, "answer": "2"} for text in ("1+1=", "1+1=", "3+1=", "1+1=")]
    (tmp_path / "twice.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "held.jsonl").write_text(json.dumps(rows[0]) + "\n")
    said: list[str] = []
    done = run(
        tmp_path / "run",
        EVEN,
        said,
        data__train=str(tmp_path / "twice.jsonl"),
        run__steps=1,
        run__save_every=1,
        data__evaluate=str(tmp_path / "held.jsonl"),
        rollouts__prompts_per_step=4,
    )
    assert any(line.startswith("2 of 4 training prompts repeat another one") for line in said)
    assert any(line.startswith("1 of 1 held-out prompts are also trained on") for line in said)
    assert len({each["id"] for each in done.samples}) == 4  # four groups of four
    texts = {tuple(each["logprobs"]) for each in done.samples if each["prompt"] == "1+1="}
    assert len(texts) == 12  # and every sample has noise of its own


def test_a_reference_with_another_vocabulary_is_refused_before_anything_runs(
    tmp_path: Path,
) -> None:
    other = create(tmp_path / "other", special=["<extra>"])
    with pytest.raises(
        ValueError, match="the reference has a tokenizer of 259 tokens, the policy one of 258"
    ):
        run(tmp_path / "run", EVEN, algorithm="grpo", model__reference=str(other))
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An untrained policy, asked for one token: 1 chance in 258 that it is the end, and from this seed it never is."""
    return str(create(tmp_path_factory.mktemp("endless") / "model", seed=0))


def test_a_policy_that_never_ends_is_scored_and_warned_about(tmp_path: Path, endless: str) -> None:
    done = run(
        tmp_path / "run",
        {"use": "length", "target": 1},
        model__policy=endless,
        rollouts__max_new_tokens=1,
        algorithm="dr_grpo",
    )
    assert done.state == "finished"
    assert [line["completion/truncated_frac"] for line in done.metrics] == [1.0, 1.0, 1.0]
    assert "truncation" in [each["name"] for each in done.warnings]


def test_where_cut_answers_are_masked_and_all_are_cut_nothing_changes(
    tmp_path: Path, endless: str
) -> None:
    done = run(
        tmp_path / "run",
        EVEN,
        model__policy=endless,
        rollouts__max_new_tokens=1,
        algorithm="dr_grpo",
        cells__filter={"not_truncated": {}},
        update__learning_rate=0.01,
    )
    assert done.state == "finished"
    assert all(
        line["optim/updates"] == 0 and "optim/grad_norm" not in line for line in done.metrics
    )
    assert all(each["advantages"] is None for each in done.samples)
    before = load(endless).module.state_dict()
    after = load(tmp_path / "run/checkpoints/3/model").module.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
