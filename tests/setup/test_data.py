"""Names in a recipe's data section: built-in tasks, their splits and counts, files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from ascent.api.check import check
from ascent.api.score import score
from ascent.api.train import assemble, resume_run, train_plan
from ascent.config import yaml_text
from ascent.config.load import merge_configs
from ascent.config.validate import validate
from ascent.models.load import load
from ascent.models.tiny import create
from ascent.plan.load import load_config
from ascent.plan.resolve import Plan, resolve
from ascent.records import Example, Pair, Ranking, UnpairedExample
from ascent.runs.folder import read_run
from ascent.setup.data import load_records
from tests.end_to_end.crashing import REWARD
from tests.setup.runs import tiny_plan, weights_of


@pytest.mark.parametrize(
    ("want", "kind"),
    [("examples", Example), ("pairs", Pair), ("rankings", Ranking), ("unpaired", UnpairedExample)],
)
def test_a_task_gives_records_of_the_wanted_kind(want: str, kind: type) -> None:
    found = load_records("sort_digits@heldout:5", want, seed=0)  # type: ignore[arg-type]
    assert len(found.records) == 5
    assert all(isinstance(record, kind) for record in found.records)


def test_defaults_and_seeds() -> None:
    assert len(load_records("arithmetic", "examples", seed=0).records) == 2048
    first, second = (
        load_records("arithmetic:20", "examples", seed=seed).records for seed in (0, 1)
    )
    assert first != second
    assert first == load_records("arithmetic:20", "examples", seed=0).records


def test_a_split_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="splits train and heldout, not 'test'"):
        load_records("arithmetic@test", "examples", seed=0)


def test_anything_else_is_a_file(tmp_path: Path) -> None:
    file = tmp_path / "data.jsonl"
    file.write_text(json.dumps({"prompt": "2+2=", "completion": "4"}) + "\n")
    assert len(load_records(str(file), "examples", seed=0).records) == 1
    with pytest.raises(ValueError, match="no file or folder at"):
        load_records(str(tmp_path / "missing.jsonl"), "examples", seed=0)


@pytest.mark.parametrize("key", ["train", "evaluate", "mix"])
def test_a_missing_file_is_told_before_the_model_is_loaded(key: str, tmp_path: Path) -> None:
    """Here the model is missing too, and would be complained of otherwise."""
    gone = "gone.jsonl"
    data = {"train": "arithmetic:20", key: [{"use": gone, "share": 0.5}] if key == "mix" else gone}
    config = {"algorithm": "sft", "model": {"policy": str(tmp_path / "no model")}, "data": data}
    with pytest.raises(ValueError, match=r"no file or folder at gone\.jsonl"):
        assemble(resolve(validate(config)), tmp_path / "run")


def judged_file(folder: Path, labels: list[float | bool | None]) -> str:
    file = folder / "steps.jsonl"
    file.write_text(
        json.dumps({"prompt": "add 3 8 =", "completions": ["3", "11", "12"], "labels": labels})
        + "\n"
    )
    return str(file)


def test_judged_steps_are_classes_for_one_row_and_probabilities_for_the_other(
    tmp_path: Path,
) -> None:
    """The first class is "right", so that a score is the log-odds of a right step in both."""
    found = {}
    for name in ("prm", "prm_soft"):
        data = {
            "train": judged_file(tmp_path, [True, None, False]),
            "evaluate": None,
            "batch_size": 1,
        }
        plan = tiny_plan(algorithm=name, run={"evaluate_every": 20}, **{"data": {}})
        plan = type(plan)(
            plan.config.model_copy(update={"data": plan.config.data.model_copy(update=data)}),
            plan.row,
        )
        batch = assemble(plan, tmp_path / name).source.next(1)[0]
        found[name] = batch["step_labels_T"][batch["step_ends_T"]].tolist()
    assert found["prm"] == [0.0, -1.0, 1.0]
    assert found["prm_soft"][::2] == [1.0, 0.0]
    assert found["prm_soft"][1] != found["prm_soft"][1]  # NaN


def test_a_probability_is_no_class(tmp_path: Path) -> None:
    plan = tiny_plan(algorithm="prm")
    data = plan.config.data.model_copy(
        update={"train": judged_file(tmp_path, [1, 0.5, 0]), "evaluate": None}
    )
    with pytest.raises(
        ValueError, match=r"a step is judged 0\.5, between wrong and right; .* use prm_soft"
    ):
        assemble(
            type(plan)(plan.config.model_copy(update={"data": data}), plan.row), tmp_path / "run"
        )


@pytest.mark.parametrize(
    ("name", "ranks"),
    [("reward_model_kwise", [0, 1, 1]), ("reward_model_listwise", [0, 1]), ("reward_model", None)],
)
def test_ties_are_kept_where_the_loss_skips_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, ranks: list[int] | None
) -> None:
    """InstructGPT's loss skips tied pairs, Plackett-Luce needs a strict order, and two of three pairs are not tied."""
    file = tmp_path / "labels.jsonl"
    file.write_text(
        json.dumps({"prompt": "add 3 8 =", "responses": ["3", "11", "12"], "ranks": [2, 1, 2]})
        + "\n"
    )
    plan = tiny_plan(algorithm=name)
    data = plan.config.data.model_copy(
        update={"train": str(file), "evaluate": None, "batch_size": 1}
    )
    plan = type(plan)(plan.config.model_copy(update={"data": data}), plan.row)
    training = assemble(plan, tmp_path / "run")
    batch = training.source.next(1)[0]
    assert ranks is None or batch["ranks_B"].tolist() == ranks
    assert len(batch["segments"].lengths_B) == (len(ranks) if ranks else 2)
    assert "1 pairs of tied answers, which hold no preference" in caplog.messages
    left_out = "1 tied answers left out, because the algorithm needs a strict order"
    assert (left_out in caplog.messages) == (name == "reward_model_listwise")
    assert "preference/accuracy" in training.learner.step([batch], training.objective)


def test_a_model_that_judged_steps_is_a_reward_model_of_answers(tmp_path: Path) -> None:
    train_plan(tiny_plan(algorithm="prm"), tmp_path / "run", say=lambda line: None)
    judge = load(tmp_path / "run", head="scalar")
    assert not [note for note in judge.notes if "head is new" in note]


LONG = "word " * 20  # a hundred tokens


def long_plan(folder: Path, rows: list[dict[str, Any]], **changes: Any) -> Plan:
    """A model that holds 64 tokens, and these rows; whatever else the recipe says."""
    file = folder / "data.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    policy = str(create(folder / "model", longest=64))
    least = {
        "algorithm": "sft",
        "model": {"policy": policy},
        "data": {"train": str(file)},
        "run": {"steps": 1},
    }
    return resolve(validate(merge_configs(least, changes)))


@pytest.mark.parametrize("way", ["train", "check"])
@pytest.mark.parametrize("key", ["train", "evaluate", "mix"])
def test_a_text_longer_than_the_model_holds_is_named_at_the_start(
    way: str, key: str, tmp_path: Path
) -> None:
    short, long = {"prompt": "q", "completion": "a"}, {"prompt": "q", "completion": LONG}
    if key == "train":
        plan = long_plan(tmp_path, [short, long])
    else:
        (tmp_path / "other.jsonl").write_text(json.dumps(short) + "\n" + json.dumps(long) + "\n")
        other = str(tmp_path / "other.jsonl")
        plan = long_plan(
            tmp_path, [short], data={key: [{"use": other, "share": 0.5}] if key == "mix" else other}
        )
    name = "data" if key == "train" else "other"
    with pytest.raises(
        ValueError,
        match=rf"\n{name}\.jsonl:2: 102 tokens, but the model holds 64; shorten the row or ",
    ):
        train_plan(plan, tmp_path / "run", say=lambda line: None) if way == "train" else check(plan)
    assert not (tmp_path / "run").exists()


def test_long_rows_may_be_skipped_and_a_limit_beyond_the_model_is_said(tmp_path: Path) -> None:
    rows = [{"prompt": "q", "completion": "a"}, {"prompt": "q", "completion": LONG}]
    training = assemble(long_plan(tmp_path, rows, data={"invalid_rows": "skip"}), tmp_path / "run")
    assert training.longest == 3
    assert (
        "data.max_tokens=2048, but the policy holds 64 tokens; a longer record is refused"
        in training.notes
    )
    assert not [
        note for note in assemble(tiny_plan(), tmp_path / "other").notes if "max_tokens" in note
    ]


def test_answers_behind_other_prompts_stay_within_the_model(tmp_path: Path) -> None:
    """KTO's companions are longer than any record: a long prompt before a long answer."""
    rows = [
        {"prompt": "p" * 50, "completion": "a", "label": 1},
        {"prompt": "q", "completion": "b" * 50, "label": 0},
    ]
    plan = long_plan(tmp_path, rows, algorithm="kto")
    training = assemble(plan, tmp_path / "run")
    (batch,) = training.source.next(1)
    assert int(batch["mismatched"]["segments"].lengths_B.max()) == 64
    training.learner.step([batch], training.objective)


REWARDED: dict[str, Any] = {
    "algorithm": "rlvr",
    "rewards": [{"use": "length", "target": 3}],
    "rollouts": {"max_new_tokens": 24, "prompts_per_step": 2, "group_size": 2},
}


@pytest.mark.parametrize("way", ["train", "check"])
def test_a_prompt_without_room_for_an_answer_is_named_at_the_start(
    way: str, tmp_path: Path
) -> None:
    plan = long_plan(tmp_path, [{"prompt": "q" * 40}, {"prompt": "q" * 41}], **REWARDED)
    words = (
        r"data\.jsonl:2: a prompt of 41 tokens, but the model holds 64, "
        r"24 of them for the answer \(rollouts\.max_new"
    )
    with pytest.raises(ValueError, match=words):
        train_plan(plan, tmp_path / "run", say=lambda line: None) if way == "train" else check(plan)
    assert not (tmp_path / "run").exists()


def test_answers_longer_than_the_model_holds_are_refused_in_one_line(tmp_path: Path) -> None:
    plan = long_plan(
        tmp_path,
        [{"prompt": "q"}] * 20,
        **merge_configs(REWARDED, {"rollouts": {"max_new_tokens": 64}}),
    )
    words = (
        r"^rollouts\.max_new_tokens=64, but the policy holds 64 tokens, the prompt included; "
        r"use less than 64, or a .*$"
    )
    with pytest.raises(ValueError, match=words):
        assemble(plan, tmp_path / "run")


@pytest.mark.parametrize("row", ["ppo", "gkd"])
def test_a_model_that_holds_less_than_the_policy_reads_is_refused(row: str, tmp_path: Path) -> None:
    small = str(create(tmp_path / "small", longest=32))
    if row == "gkd":
        rows: list[dict[str, Any]] = [{"prompt": "q", "completion": "a" * 40}]
        changes: dict[str, Any] = {"model": {"teacher": small}, "data": {"on_policy_fraction": 0.0}}
    else:
        rows, changes = (
            [{"prompt": "q" * 20}],
            merge_configs(REWARDED, {"model": {"critic_from": small}}),
        )
    plan = long_plan(tmp_path, rows, **merge_configs(changes, {"algorithm": row}))
    with pytest.raises(
        ValueError,
        match=r"the (critic|teacher) \(model\..* holds 32 tokens, but a sequence of this run can",
    ):
        assemble(plan, tmp_path / "run")


def test_a_score_of_a_row_that_is_too_long_is_refused_by_its_line(tmp_path: Path) -> None:
    pairs = [
        {"prompt": "q", "chosen": "a", "rejected": "b"},
        {"prompt": "q", "chosen": LONG, "rejected": "b"},
    ]
    train_plan(
        long_plan(tmp_path, pairs[:1], algorithm="reward_model"),
        tmp_path / "run",
        say=lambda line: None,
    )
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs))
    with pytest.raises(ValueError, match=r"data\.jsonl:2: 102 tokens, but the model holds 64"):
        list(score(str(tmp_path / "run"), str(tmp_path / "data.jsonl")))


ROWS = [{"prompt": f"{n}+1=", "chosen": str(n + 1), "rejected": str(n)} for n in range(60)]
SHARE, EPOCHS, LIMIT = {"evaluate": "10%"}, {"epochs": 1.5}, {"limit": ":48"}
MIX = {"mix": [{"use": "arithmetic:30", "share": 0.25}]}


def file_plan(
    folder: Path, algorithm: str = "sft", rows: list[dict[str, Any]] = ROWS, **data: Any
) -> Plan:
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {"train": f"{file}{data.pop('limit', '')}", "batch_size": 16, "max_tokens": 64}
    recipe = {
        **{"algorithm": algorithm, "model": {"policy": "tiny:llama"}, "data": settings | data},
        **{"update": {"learning_rate": 3e-3, "schedule": "cosine"}, "run": {"save_every": 2}},
    }
    if "epochs" not in data:
        recipe["run"]["steps"] = 5
    return resolve(validate(recipe))


@pytest.mark.parametrize(
    ("algorithm", "data", "steps"),
    [
        ("sft", SHARE | EPOCHS, 6),
        ("dpo", EPOCHS | LIMIT, 5),
        ("reward_model", SHARE | LIMIT, 5),
        ("sft", SHARE | MIX, 5),
        ("sft", EPOCHS | MIX | LIMIT, 6),
        ("kto", SHARE | EPOCHS | LIMIT, 9),
    ],
)
def test_a_share_epochs_a_limit_and_a_mix_resume_in_pairs_to_the_same_bits(
    algorithm: str, data: dict[str, Any], steps: int, tmp_path: Path
) -> None:
    """And a run that is resumed on other rows, another share or another limit is refused."""
    plan, folder, said = file_plan(tmp_path, algorithm, **data), tmp_path / "run", list[str]()
    assert train_plan(plan, folder, progress=False, say=said.append) == steps
    assert (f"data.epochs=1.5: {steps} steps of 16 records" in said) == ("epochs" in data)
    config = folder / "config.yaml"
    assert resolve(validate(yaml_text.read(config.read_text(), "config"))).config.run.steps == steps
    final = weights_of(folder, steps)
    shutil.rmtree(folder / "checkpoints" / str(steps))
    assert resume_run(folder, progress=False, say=said.append) == steps
    assert weights_of(folder, steps) == final
    assert [row["step"] for row in read_run(folder).metrics] == list(range(1, steps + 1))
    shutil.rmtree(folder / "checkpoints" / str(steps))
    text = config.read_text()
    edits = [
        (
            "evaluate: 10%",
            "evaluate: 20%",
            "data.evaluate '10%' -> '20%' cannot be changed on resume",
        )
    ]
    edits += [
        (
            "evaluate: 10%",
            "evaluate: style:8",
            "data.evaluate '10%' -> 'style:8' cannot be changed on resume",
        )
    ]
    edits += [
        ("rows.jsonl:48", "rows.jsonl:40", "rows.jsonl:40 has another content (rows 48 -> 40)")
    ]
    edits += [("rows.jsonl:48", "rows.jsonl", "rows.jsonl has another content (rows 48 -> (none))")]
    edits += [("epochs: null", "epochs: 3.0", "run.steps=")]
    for was, now, why in [edit for edit in edits if edit[0] in text]:
        config.write_text(text.replace(was, now))
        with pytest.raises(ValueError) as caught:
            resume_run(folder, progress=False, say=said.append)
        assert why in str(caught.value), caught.value
    config.write_text(text)
    file_plan(tmp_path, algorithm, [*ROWS[:-1], {**ROWS[-1], "rejected": "other"}], **data)
    with pytest.raises(ValueError, match=r"data\.train .*rows\.jsonl.* has another content"):
        resume_run(folder, progress=False, say=said.append)


def test_a_step_of_more_records_than_there_are_is_said(tmp_path: Path) -> None:
    rows = ROWS[:10]
    few = "data.batch_size=16, but there are only 10 records: a step has some of them several times"
    assert few in assemble(file_plan(tmp_path, rows=rows), tmp_path / "run").notes
    assert few not in assemble(file_plan(tmp_path, rows=ROWS[:16]), tmp_path / "run").notes


def texts(training: Any, batches: Any) -> set[str]:
    found = set()
    for batch in batches:
        for tokens in batch["tokens_T"].split(batch["segments"].lengths_B.tolist()):
            found.add(str(training.model.tokenizer.decode(tokens.tolist())).partition("=")[0])
    return found


@pytest.mark.parametrize("mix", [{}, MIX])
def test_held_out_prompts_are_never_trained_on(mix: dict[str, Any], tmp_path: Path) -> None:
    """Also not in a part of a mix that has the same prompt: arithmetic asks n+1 as well."""
    training = assemble(file_plan(tmp_path, **SHARE | mix), tmp_path / "run")
    trained = {text for step in range(20) for text in texts(training, training.source.next(step))}
    heldout = texts(training, training.heldout)
    assert heldout and not trained & heldout
    prompts = {row["prompt"].rstrip("=") for row in ROWS}
    assert heldout < prompts and prompts - heldout <= trained
    assert f"{len(heldout)} held-out records from 10% of {tmp_path}/rows.jsonl" in training.notes


def test_rollouts_hold_out_prompts_and_resume_to_the_same_bits(tmp_path: Path) -> None:
    rows = [{"prompt": f"{n}+1=", "answer": str(n + 1)} for n in range(40)]
    (tmp_path / "asked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = {
        **{
            "algorithm": "grpo",
            "model": "tiny:llama",
            "data": f"{tmp_path}/asked.jsonl:36",
            "data.evaluate": "20%",
        },
        **{"rewards": [{"use": REWARD}], "rollouts.prompts_per_step": 4, "rollouts.group_size": 4},
        **{
            "rollouts.max_new_tokens": 4,
            "run.steps": 3,
            "run.save_every": 1,
            "run.evaluate_every": 2,
        },
    }
    plan, folder = resolve(load_config(recipe)), tmp_path / "run"
    training = assemble(plan, tmp_path / "looked")
    train, heldout = (
        {each.prompt.id for each in part}
        for part in (training.source.prompts, training.evaluate.prompts)
    )
    assert len(train) + len(heldout) == 36 and not train & heldout and len(heldout) > 2
    assert (
        f"{len(heldout)} held-out prompts from 20% of {tmp_path}/asked.jsonl:36" in training.notes
    )
    training.close()
    train_plan(plan, folder, progress=False, say=lambda line: None)
    final = weights_of(folder, 3)
    assert (
        sum("eval/reward/mean" in row for row in read_run(folder).metrics) == 3
    )  # steps 0, 2 and 3
    shutil.rmtree(folder / "checkpoints" / "3")
    resume_run(folder, progress=False, say=lambda line: None)
    assert weights_of(folder, 3) == final


def test_a_benchmark_in_a_file_is_trained_on_and_checked(tmp_path: Path) -> None:
    """Without a folder around it: gsm8k:FILE, math:FILE."""
    asked = {"gsm8k": {"question": "{} and 1?", "answer": "{}.\n#### {}"}}
    asked["math"] = {"problem": "{} and 1?", "solution": r"\boxed{{{}}}"}
    for name, row in asked.items():
        file = tmp_path / f"{name}.jsonl"
        rows = [{key: text.format(n, n) for key, text in row.items()} for n in range(8)]
        file.write_text("".join(json.dumps(each) + "\n" for each in rows))
        sizes = ["data.batch_size=4", "data.evaluate=25%"]
        assert (
            check(
                "sft", ["model=tiny:llama", f"data={name}:{file}", *sizes], progress=False
            ).trained
            > 0
        )
        with pytest.raises(
            ValueError, match=f"no file or folder at {name}:{tmp_path}/absent.jsonl"
        ):
            check(
                "sft", ["model=tiny:llama", f"data={name}:{tmp_path}/absent.jsonl"], progress=False
            )
