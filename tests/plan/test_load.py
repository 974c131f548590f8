"""Recipes with overrides: files, shipped ones, mappings, algorithms by name, and what an override takes along."""

from __future__ import annotations

from pathlib import Path

import pytest

from ascent.algorithms import TABLE
from ascent.config.load import shipped_recipes
from ascent.plan.load import load_config
from ascent.plan.resolve import resolve

LEAST = "algorithm: rlvr\nmodel: {policy: p}\ndata: {train: t}\n"
TWO = ["model=m", "data=d"]
# What an algorithm needs besides a model and data.
ALSO = {"rlsd": ["model.teacher=t"], "gkd": ["model.teacher=t"], "kd": ["model.teacher=t"]}
ALSO |= {"instructgpt": ["data.pretraining=t"]}


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    path = tmp_path / "mine.yaml"
    path.write_text(LEAST)
    return str(path)


def test_overrides_win_over_the_recipe(recipe: str) -> None:
    config = load_config(
        recipe, ["update.learning_rate=1e-6", "rollouts.group_size=4", "model.policy=q"]
    )
    assert config.update.learning_rate == 1e-6
    assert config.rollouts.group_size == 4
    assert config.model.policy == "q"
    assert config.data.train == "t"


def test_cells_of_one_algorithm_do_not_slip_into_another(tmp_path: Path, recipe: str) -> None:
    path = tmp_path / "resolved.yaml"
    path.write_text(LEAST + "cells: {policy_loss: {low: 0.1}}\n")
    with pytest.raises(
        ValueError, match=r"algorithm=dapo on top of .* would keep the cells .* for rlvr"
    ):
        load_config(str(path), ["algorithm=dapo"])
    assert load_config(str(path), ["algorithm=rlvr"]).algorithm == "rlvr"
    assert load_config(recipe, ["algorithm=dapo"]).algorithm == "dapo"


@pytest.mark.parametrize("name", TABLE)
def test_every_algorithm_is_a_recipe_by_its_name(name: str) -> None:
    """With a model and data alone; the few that need another model or text ask for it, and for nothing else."""
    also = ALSO.get(name, [])
    if also:
        with pytest.raises(ValueError, match=f"{also[0].partition('=')[0]} is missing: {name} "):
            resolve(load_config(name, TWO))
    plan = resolve(load_config(name, [*TWO, *also]))
    assert plan.row.name == name
    config = plan.config
    assert (config.model.policy, config.data.train) == ("m", "d")
    if name not in shipped_recipes():
        assert config.update.learning_rate == TABLE[name].defaults.get("update.learning_rate", 1e-6)
    if plan.row.samples:
        assert config.rollouts.prompts_per_step * config.rollouts.group_size <= 1024
        assert config.rollouts.max_new_tokens <= 512
    else:
        assert config.data.epochs in (1, 3)
    assert config.data.evaluate in ("5%", "1%")


def test_an_algorithm_by_its_name_asks_for_model_and_data() -> None:
    with pytest.raises(
        ValueError,
        match=r"^model\.policy is missing \(The model to train.*\ndata\.train is missing \(",
    ):
        load_config("ipo")
    with pytest.raises(ValueError, match=r"no recipe named 'gropo'; did you mean .*grpo"):
        load_config("gropo", TWO)


def test_the_reward_of_an_algorithm_by_its_name_follows_what_it_is_given() -> None:
    def rewards(*overrides: str) -> list[str]:
        return [each.use for each in load_config("grpo", overrides).rewards]

    assert rewards("model=m", "data=questions.jsonl") == ["mathematics"]
    assert rewards("model=m", "data=sort_digits:64") == ["verifier"]
    assert rewards("model=m", "data=questions.jsonl", "model.reward_model=r") == []
    assert rewards("model=m", "data=questions.jsonl", "rewards=[{use: exact}]") == ["exact"]


def test_dapo_by_its_name_penalizes_length_within_the_budget_that_is_given() -> None:
    for budget, more in ((512, []), (2000, ["rollouts.max_new_tokens=2000"])):
        (overlong,) = resolve(load_config("dapo", [*TWO, *more])).row.reward_shaping
        assert (overlong.numbers["max_length"], overlong.numbers["cache"]) == (
            budget,
            round(budget * 0.2),
        )
    (smallest,) = resolve(
        load_config("dapo", [*TWO, "rollouts.max_new_tokens=2"])
    ).row.reward_shaping
    assert (smallest.numbers["max_length"], smallest.numbers["cache"]) == (2, 1)


def test_an_override_that_empties_a_key_takes_along_what_only_it_gave_a_meaning() -> None:
    recipe = {
        **{
            "algorithm": "grpo",
            "model": "m",
            "data": "d",
            "data.evaluate": "e",
            "run.evaluate_every": 5,
        },
        **{
            "run.save_every": 10,
            "run.keep_best": 1,
            "run.best_metric": "reward/mean",
            "rewards": [{"use": "exact"}],
        },
        **{
            "model.lora": 8,
            "model.lora_alpha": 16.0,
            "model.reference": "r",
            "run.max_ref_kl": 1.0,
        },
    }
    resolve(load_config(recipe))
    off = resolve(load_config(recipe, ["data.evaluate=null"])).config
    assert off.data.evaluate is None and off.run.save_every == 10
    assert not {"evaluate_every", "keep_best", "best_metric"} & off.run.model_fields_set
    assert (
        "best_metric"
        not in resolve(load_config(recipe, ["run.keep_best=0"])).config.run.model_fields_set
    )
    assert (
        "lora_alpha"
        not in resolve(load_config(recipe, ["model.lora=null"])).config.model.model_fields_set
    )
    no_kl = resolve(load_config(recipe, ["cells.kl=false", "cells.kl_controller=false"])).config
    assert (
        "reference" not in no_kl.model.model_fields_set
        and "max_ref_kl" not in no_kl.run.model_fields_set
    )


@pytest.mark.parametrize(
    ("overrides", "refused"),
    [
        (["data.evaluate=null", "run.evaluate_every=5"], "run.evaluate_every=5 has no effect"),
        (["data.evaluate=null", "run.keep_best=1"], "run.keep_best=1 has no effect"),
        (
            ["data.evaluate=null", "model.lora_alpha=4.0"],
            "model.lora_alpha=4.0 has no effect",
        ),  # useless all along
        (["algorithm=sft"], "rewards=.* has no effect"),  # another algorithm empties nothing
    ],
)
def test_a_useless_key_that_is_given_is_still_refused(
    overrides: list[str], refused: str, recipe: str
) -> None:
    Path(recipe).write_text(LEAST + "rewards: [{use: exact}]\nrun: {evaluate_every: 5}\n")
    with pytest.raises(ValueError, match=refused):
        resolve(
            load_config(
                recipe, ["data.evaluate=e", *overrides] if len(overrides) == 1 else overrides
            )
        )


def test_a_useless_key_of_the_recipe_itself_is_still_refused(recipe: str) -> None:
    Path(recipe).write_text(
        LEAST.replace("policy: p", "policy: p, lora_alpha: 4.0") + "rewards: [{use: exact}]\n"
    )
    with pytest.raises(ValueError, match=r"model\.lora_alpha=4\.0 has no effect"):
        resolve(load_config(recipe, ["data.evaluate=null"]))


def test_epochs_and_steps_replace_each_other_and_exclude_each_other() -> None:
    assert resolve(load_config("dpo", [*TWO, "run.steps=10"])).config.data.epochs is None
    recipe = {"algorithm": "sft", "model": "m", "data": "d", "run.steps": 500}
    plan = resolve(load_config(recipe, ["data.epochs=2"]))
    assert plan.config.data.epochs == 2 and "steps" not in plan.config.run.model_fields_set
    given = load_config("sft", [*TWO, "run.steps=10", "data.epochs=2"])
    for both in (given, load_config({**recipe, "data.epochs": 2})):
        with pytest.raises(
            ValueError, match=r"run\.steps=\d+ has no effect: data\.epochs gives the length"
        ):
            resolve(both)
    with pytest.raises(
        ValueError, match=r"data\.epochs=2\.0 has no effect: grpo samples .* set run\.steps"
    ):
        resolve(load_config("grpo", [*TWO, "data.epochs=2"]))
    assert resolve(load_config("dpo", [*TWO, "data.epochs=null"])).config.run.steps == 100


@pytest.mark.parametrize("share", ["0%", "100%", "-5%", "x%", "nan%"])
def test_a_held_out_share_lies_between_none_and_all(share: str) -> None:
    with pytest.raises(
        ValueError, match=r"data\.evaluate=.*must be a dataset, or a share above 0% and below 100%"
    ):
        load_config("sft", [*TWO, f"data.evaluate={share}"])
