"""The GSM8K study before it has a GPU: its recipes resolve, its reward and its conversions do what they say."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

import ascent
from ascent.api.train import plan_of
from ascent.config.load import shipped_recipes
from ascent.models.tiny import create

FOLDER = Path(__file__).parents[3] / "bench" / "gsm8k"
NAMES = [path.stem for path in FOLDER.glob("*.py")]


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Its modules, imported as the scripts import each other, and forgotten afterwards."""
    monkeypatch.syspath_prepend(str(FOLDER))
    yield importlib.import_module
    for name in NAMES:
        sys.modules.pop(name, None)


@pytest.mark.parametrize("algorithm", ["grpo", "dapo", "ppo", "rloo"])
def test_recipes_resolve_with_one_update_and_no_kl(
    study: Any, algorithm: str, tmp_path: Path
) -> None:
    settings = study("settings")
    where = settings.Study(tmp_path, tmp_path, tmp_path, tmp_path, settings.Settings())
    plan = plan_of(study("ours").gsm8k_recipe(where, algorithm, 1, 1e-5, 4))
    assert plan.config.update.epochs == plan.config.update.minibatches == 1
    assert plan.config.rollouts.prompts_per_step * plan.config.rollouts.group_size == 512
    assert (
        plan.config.rollouts.temperature == 1 and plan.config.rollouts.dynamic_sampling_tries == 0
    )
    assert plan.row.kl is None and "kl_penalty" not in {
        cell.name for cell in plan.row.reward_shaping
    }


def test_a_stage_with_other_numbers_is_its_row_otherwise(study: Any, tmp_path: Path) -> None:
    settings, ours = study("settings"), study("ours")
    where = settings.Study(tmp_path, tmp_path, tmp_path, tmp_path, settings.Settings())
    assert ours.OTHER_NUMBERS.keys() == settings.VARIANTS.keys() and set(
        settings.VARIANTS.values()
    ) <= set(settings.RL)
    recipe = ours.gsm8k_recipe(where, "ppo", 1, 1e-5, 4)
    row, other = plan_of(recipe).row, plan_of(recipe | ours.OTHER_NUMBERS["ppo_lam1"]).row
    assert dict(other.advantage.numbers) == dict(row.advantage.numbers) | {"lam": 1.0}
    assert replace(other, advantage=row.advantage) == row


def test_every_cell_of_the_summaries_resolves(study: Any, tmp_path: Path) -> None:
    settings = study("settings")
    for size in (settings.Settings(), settings.TINY):
        where = settings.Study(tmp_path, tmp_path, tmp_path, tmp_path, size)
        for cell in range(settings.CELLS["digest_ppo"]):
            plan_of(study("extras").digest_ppo_recipe(where, cell))


# What the study sets for itself: where things are, the order of its rows, when models are saved, its reward.
OWN = {
    "seed",
    "rewards",
    "model.policy",
    "model.dtype",
    "data.train",
    "data.shuffle",
    "data.epochs",
    "run.steps",
    "run.save_every",
    "run.keep",
    "model.reward_model",
}


def measured_recipe(study: Any, name: str, where: Any) -> dict[str, Any]:
    """What the study ran, by the name of the recipe that ships."""
    ours, extras, settings = study("ours"), study("extras"), where.settings
    own: dict[str, Any] = {
        "gsm8k_dpo": lambda: ours.dpo_recipe(where, 0),
        "digest_sft": lambda: extras.digest_sft_recipe(where),
        "digest_rm": lambda: extras.digest_rm_recipe(where, settings.digest_pairs, 1),
        "digest_ppo": lambda: extras.digest_ppo_recipe(where, 0),
        "programs": lambda: extras.code_recipe(where),
    }
    if name in own:
        return dict(own[name]())
    if name.endswith("sft"):
        return dict(ours.sft_recipe(where, where.work, where.model, settings.sft_steps))
    if name == "gsm8k_tools":
        recipe = ours.rl_recipe(
            where, "rlvr", 1, where.model, where.work, settings.extra_steps, 3e-5
        )
        return {**recipe, "env": extras.TOOLS, "rewards": [{"use": ours.REWARD}]}
    algorithm = name.removeprefix("gsm8k_")
    stage = "ppo_lam1" if algorithm == "ppo" else f"{algorithm}_low_rate"
    return dict(
        ours.gsm8k_recipe(where, algorithm, 1, 3e-5, settings.steps) | ours.OTHER_NUMBERS[stage]
    )


GIVEN = {
    "gsm8k_dpo": ["data=pairs.jsonl"],
    "digest_ppo": ["model=m", "model.reward_model=r"],
}  # by the user
MEASURED = [
    name for name in shipped_recipes() if name.startswith(("gsm8k_", "digest_", "programs"))
]


@pytest.mark.parametrize("name", MEASURED)
def test_shipped_recipes_are_those_that_were_measured(
    study: Any, name: str, tmp_path: Path
) -> None:
    settings = study("settings")
    where = settings.Study(tmp_path, tmp_path, tmp_path, tmp_path, settings.Settings())
    shipped, own = plan_of(name, GIVEN.get(name, [])), plan_of(measured_recipe(study, name, where))
    assert shipped.row == own.row
    configs = [flat(plan.config.model_dump(exclude={"cells"})) for plan in (shipped, own)]
    assert {
        key for key in configs[0] | configs[1] if configs[0].get(key) != configs[1].get(key)
    } <= OWN
    if name.startswith("gsm8k") and name.endswith("sft"):
        assert shipped.config.data.epochs == where.settings.sft_epochs
    elif shipped.row.samples:
        assert shipped.config.run.steps == own.config.run.steps
    if name.startswith("digest"):
        data = [plan.config.data for plan in (shipped, own)]
        assert data[0].train == data[1].train and data[0].evaluate == data[1].evaluate


def flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """By dotted key."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found |= (
            flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
        )
    return found


def test_the_reward_reads_the_last_number_after_the_mark(study: Any) -> None:
    reward = study("reward")
    assert (
        reward.is_correct("6 * 7 = 42\n#### 42", "42")
        == reward.is_correct("#### $1,200.00", "1200")
        == 1
    )
    assert reward.is_correct("#### 41 #### 42", "42") == 1
    assert reward.is_correct("42", "42") == reward.is_correct("#### none", "42") == 0
    chat = [[{"role": "assistant", "content": "#### -3"}]]
    assert reward.trl_correct(chat, ["-3"]) == reward.trl_correct(["#### -3"], ["-3"]) == [1]


def results_of(seconds: float, accuracies: list[float]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A stage and the tests of its models, every two steps; in float32 a tenth less."""
    steps = range(2, 2 * len(accuracies) + 1, 2)
    rows = [{"step": step, "seconds": seconds * step} for step in range(1, steps[-1] + 1)]
    points = [
        {"step": step, "dtype": dtype}
        | {
            kind: {"value": a - less, "low": a - 0.1, "high": a + 0.1}
            for kind in ("greedy", "mean@8")
        }
        for dtype, less in (("bfloat16", 0.0), ("float32", 0.1))
        for step, a in zip(steps, accuracies, strict=True)
    ]
    return {"steps": rows}, {"points": points}


def test_the_verdict(study: Any) -> None:
    """From .1 after SFT: ours to TRL's .3 after 3 of 4 steps of a second, TRL's took 4 steps of 10."""
    report = study("verdict")
    found = {"test_sft": results_of(1, [0.0, 0.1])[1]}
    for seed in (1, 2):
        found[f"grpo-{seed}"], found[f"test_grpo-{seed}"] = results_of(1.0, [0.2, 0.4])
        found[f"trl_grpo-{seed}"], found[f"test_trl_grpo-{seed}"] = results_of(10.0, [0.2, 0.3])
    found["rloo-1"] = found["grpo-1"] | results_of(1.0, [0.15, 0.2])[1]
    result = report.verdict(found)["mean@8"]
    assert result["seconds_to_trl_of_trl"] == {1: pytest.approx(3 / 40), 2: pytest.approx(3 / 40)}
    assert result["seconds_to_trl_of_trls_first"] == {
        1: pytest.approx(3 / 40),
        2: pytest.approx(3 / 40),
    }
    assert result["above_sft"] == ["grpo"]
    assert result["accuracy"]["grpo"][4] == {
        "mean": pytest.approx(0.4),
        "half_width": 0.0,
        "values": [0.4, 0.4],
    }
    assert report.seconds_to(report.points_of(found, "rloo-1"), 0.5, "greedy") is None
    assert report.seconds_to(report.points_of(found, "rloo-1"), 0.1, "greedy") == 0.0
    in_float32 = report.verdict(found)["float32"]["mean@8"]["accuracy"]
    assert in_float32["grpo"][4]["mean"] == pytest.approx(0.3) and in_float32["trl_grpo"][4][
        "mean"
    ] == pytest.approx(0.2)
    assert report.verdict(found)["between_dtypes"] == {
        "models": 10,
        **dict.fromkeys(report.KINDS, pytest.approx(0.1)),
    }
    assert report.verdict(found)["sft_tokens_per_second"] == {}
    found |= {
        "sft": {"steps": [{"step": 1, "tokens/trained": 30.0}] * 2, "seconds": 2.0},
        "trl_sft": {"steps": [], "seconds": 6.0},
    }
    assert report.verdict(found)["sft_tokens_per_second"] == {"sft": 30.0, "trl_sft": 10.0}
    low = [point for point in found["test_grpo-2"]["points"] if point["dtype"] == "bfloat16"]
    assert "float32" not in report.verdict(found | {"test_grpo-2": {"points": low}})
    found["rloo-2"] = found["grpo-2"] | {"points": low}
    assert report.verdict(found)["float32"]["mean@8"]["accuracy"].keys() == {"grpo", "trl_grpo"}
    assert report.verdict(found)["between_dtypes"]["models"] == 8


def test_the_page_has_the_table_of_the_committed_results(study: Any) -> None:
    """Line by line: that each figure is somewhere in the JSON does not say that it stands in its place."""
    root = FOLDER.parents[1]
    path = max(root.glob("bench/results/*-gsm8k.json"))
    page = (root / "docs/results/gsm8k.md").read_text().splitlines()
    found = study("report").gather(path)
    lines = study("tables").tables(found)
    assert len(lines) == 37 and [line for line in lines if line not in page] == []
    verdict = json.loads(json.dumps(study("verdict").verdict(found)))
    assert verdict == {key: json.loads(path.read_text())[key] for key in verdict}


def test_trls_last_accuracy_may_be_behind_its_best(study: Any) -> None:
    """TRL rises from .1 to .3 in 20 seconds and ends at .2, which it passed after 10; ours takes 3."""
    report = study("verdict")
    found = {"test_sft": results_of(1, [0.1])[1]}
    found["grpo-1"], found["test_grpo-1"] = results_of(1.0, [0.1, 0.3])
    found["trl_grpo-1"], found["test_trl_grpo-1"] = results_of(10.0, [0.3, 0.2])
    result = report.verdict(found)["mean@8"]
    assert result["seconds_to_trl_of_trl"] == {1: pytest.approx(3 / 40)}
    assert result["seconds_to_trl_of_trls_first"] == {1: pytest.approx(3 / 10)}


def test_the_tables_leave_out_what_is_not_complete(study: Any) -> None:
    tables = study("tables")
    found = study("report").gather(max(FOLDER.parents[1].glob("bench/results/*-gsm8k.json")))
    whole, files = (
        tables.rl_table(found, tables.FROM_MASTERS),
        tables.rl_table(found, tables.FROM_FILES, ("bfloat16",)),
    )
    assert (len(whole), len(files)) == (10, 6)
    left = {
        name: each
        for name, each in found.items()
        if name not in ("rloo-2", "test_trl_sft", "trl_grpo-2")
    }
    assert tables.rl_table(left, tables.FROM_MASTERS) == [*whole[:2], *whole[3:]]
    assert (
        tables.rl_table({}, tables.FROM_MASTERS)
        == tables.sft_table(left)
        == tables.grpo_table(left)
        == []
    )
    low = [point for point in found["rloo-2"]["points"] if point["dtype"] == "bfloat16"]
    found["rloo-2"] = {**found["rloo-2"], "points": low}
    assert tables.rl_table(found, tables.FROM_MASTERS) == [*whole[:2], *whole[3:]]
    assert tables.rl_table(found, {"rloo": "RLOO"}, ("bfloat16",))[1].startswith("| RLOO | ")


def test_no_question_about_programs_is_both_trained_on_and_tested(
    study: Any, tmp_path: Path
) -> None:
    settings, data = study("settings"), study("data")
    where = settings.Study(tmp_path, tmp_path, tmp_path, tmp_path, settings.Settings())
    data.prepare_code(where, tmp_path)
    rows = {
        path.stem: [json.loads(line) for line in path.read_text().splitlines()]
        for path in tmp_path.glob("*.jsonl")
    }
    asked = {name: {row["prompt"][0]["content"] for row in each} for name, each in rows.items()}
    assert {name: len(each) for name, each in asked.items()} == {
        "code": 204,
        "code-test": 51,
        "code-new": 90,
    }
    assert not asked["code"] & (asked["code-test"] | asked["code-new"])
    for row in (row for each in rows.values() for row in each):
        space: dict[str, Any] = {}
        exec(f"solve = lambda x: {row['answer']}\n" + "\n".join(row["tests"]), space)
        with pytest.raises(AssertionError):  # no constant passes
            exec(
                f"solve = lambda x: {row['tests'][0].split('== ')[1]}\n" + "\n".join(row["tests"]),
                {},
            )


def test_the_pilot_chooses_the_learning_rate(study: Any, tmp_path: Path) -> None:
    settings = study("settings")
    where = settings.Study(tmp_path, tmp_path, tmp_path, tmp_path, settings.Settings())
    with pytest.raises(ValueError, match=r"pilot-0\.json, pilot-1\.json, pilot-2\.json"):
        _ = where.learning_rate
    for place, (rate, accuracy) in enumerate(
        zip(settings.LEARNING_RATES, (0.2, 0.3, 0.1), strict=True)
    ):
        where.write("pilot", place, {"learning_rate": rate, "accuracy": accuracy})
    assert where.learning_rate == settings.LEARNING_RATES[1]


def test_a_stage_that_was_stopped_after_its_run_takes_it_as_it_is(
    study: Any, tmp_path: Path
) -> None:
    recipe = {
        "algorithm": "sft",
        "model.policy": "tiny:llama",
        "data.train": "sort_digits:8",
        "data.batch_size": 4,
    }
    train = study("ours").train
    run = train({**recipe, "run.steps": 2}, tmp_path / "run")
    assert train(recipe, tmp_path / "run").metrics == run.metrics


def test_models_are_kept_in_float32(study: Any, tmp_path: Path) -> None:
    """Of two learners the policy's masters; their roundings are the weights that the run saved."""
    recipe = {
        "algorithm": "ppo",
        "model.policy": "tiny:llama",
        "model.dtype": "bfloat16",
        "model.critic": "separate",
        "data.train": "sort_digits:8",
        "rewards": [{"use": "verifier"}],
        "rollouts.prompts_per_step": 2,
        "rollouts.max_new_tokens": 4,
        "update.minibatches": 1,
        "run.steps": 1,
    }
    ascent.train(recipe, run=tmp_path / "run", progress=False, say=lambda line: None)
    checkpoint = tmp_path / "run/checkpoints/1"
    saved, weights = (
        load_file(checkpoint / "model/model.safetensors"),
        study("ours").float32_weights(checkpoint),
    )
    assert weights.keys() == saved.keys() and {each.dtype for each in weights.values()} == {
        torch.float32
    }
    assert all(torch.equal(weights[name].bfloat16(), each) for name, each in saved.items())
    assert any(not torch.equal(weights[name], each.float()) for name, each in saved.items())


TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<eos>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def test_tests_go_on_where_they_were_stopped(study: Any, tmp_path: Path) -> None:
    settings, evaluate = study("settings"), study("evaluate")
    model = create(tmp_path / "model")
    tiny = replace(settings.TINY, max_new_tokens=4, samples=4, trl_steps=48)
    where = settings.Study(model, tmp_path, tmp_path, tmp_path, tiny)
    (tmp_path / "data").mkdir()
    rows = [{"prompt": f"{n}+{n}=", "answer": str(2 * n)} for n in range(4)]
    (tmp_path / "data/test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for step, seed in enumerate((0, 1, 2), start=1):
        create(where.points("grpo", 1) / str(24 * step), seed=seed)
    whole = evaluate.test_points(where, "grpo", 1)
    assert [point["step"] for point in whole] == [24, 48, 72, 24, 48, 72]
    kept = where.result("test_grpo", 1).with_suffix(".jsonl")
    lines = kept.read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [48, 24, 72, 48, 24, 72]
    for left in (lines[:1], lines[2:5]):
        kept.write_text("".join(line + "\n" for line in left))
        assert evaluate.test_points(where, "grpo", 1) == whole
        assert kept.read_text().splitlines()[: len(left)] == left


def test_pairs_have_the_same_tokens_on_both_sides(study: Any, tmp_path: Path) -> None:
    """TRL ends a text with the end token; of a conversation it would also train the line break after it."""
    folder = create(
        tmp_path / "model", special=["<|user|>", "<|assistant|>"], chat_template=TEMPLATE
    )
    row = {"prompt": [{"role": "user", "content": "6 * 7 ="}]}
    row |= {
        name: [{"role": "assistant", "content": text}]
        for name, text in (("chosen", "42"), ("rejected", "4 1"))
    }
    (tmp_path / "pairs.jsonl").write_text(json.dumps(row) + "\n")
    batch = ascent.Policy(str(folder)).pack(
        ascent.load_data(str(tmp_path / "pairs.jsonl"), "pairs")
    )
    ours = [each.tolist() for each in batch["tokens_T"].split(batch["segments"].lengths_B.tolist())]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    given = study("peers").as_text(row, tokenizer)
    texts = [given["prompt"] + given[name] + tokenizer.eos_token for name in ("chosen", "rejected")]
    assert ours == [tokenizer(text)["input_ids"] for text in texts]
