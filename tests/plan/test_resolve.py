import pytest

from ascent.algorithms import TABLE
from ascent.config import yaml_text
from ascent.config.changes import flatten
from ascent.config.iterate import KEY as ROUNDS
from ascent.config.load import read_recipe, shipped_recipes
from ascent.config.schema import leaves
from ascent.config.show import as_yaml
from ascent.config.validate import validate
from ascent.plan import find_row, resolve
from ascent.plan.load import load_config
from tests.recipes import least


def test_every_row_resolves_to_itself():
    for name in TABLE:
        plan = resolve(validate(least(name)))
        text = as_yaml(plan.config)
        again = resolve(validate(yaml_text.read(text, name)))
        assert as_yaml(again.config) == text, name
        assert again == plan, name
        assert plan.row == TABLE[name], name


def test_changed_rows_resolve_to_themselves():
    for name, cells in (
        ("grpo", {"kl": False, "kl_controller": False, "policy_loss": {"use": "sapo"}}),
        (
            "dapo",
            {
                "reward_shaping": {"soft_overlong": False, "clip": {"low": -1.0, "high": 1.0}},
                "filter": {"not_truncated": {}},
            },
        ),
        (
            "ppo",
            {
                "reward_shaping": {"kl_penalty": {"beta": 0.1}},
                "entropy_bonus": {"use": "bonus", "weight": 0.01},
            },
        ),
        ("orpo", {"loss": {"weight": 0.5}, "extra_losses": {"chosen_nll": False}}),
    ):
        plan = resolve(validate({**least(name), "cells": cells}))
        again = resolve(validate(yaml_text.read(as_yaml(plan.config), name)))
        assert again == plan, name
        assert plan.row != TABLE[name], name


@pytest.mark.parametrize(
    "name", [name for name in shipped_recipes() if ROUNDS not in read_recipe(name)]
)
def test_shipped_recipes_resolve(name):
    both = ["model=m", "model.reward_model=r"]  # what earlier stages make
    earlier = {"tldr_ppo": both, "digest_ppo": both, "gsm8k_dpo": ["data=pairs.jsonl"]}
    assert (
        resolve(load_config(name, earlier.get(name, []))).row.name == read_recipe(name)["algorithm"]
    )


def test_order_is_schema_then_row_then_recipe():
    plain = resolve(validate(least("dr_grpo"))).config
    assert (
        plain.rollouts.max_new_tokens
        == TABLE["dr_grpo"].defaults["rollouts.max_new_tokens"]
        == 3000
    )
    assert plain.rollouts.prompts_per_step == leaves()["rollouts.prompts_per_step"].default
    given = validate({**least("dr_grpo"), "rollouts": {"max_new_tokens": 64}})
    assert resolve(given).config.rollouts.max_new_tokens == 64


def test_dr_grpos_constant_is_the_budget_unless_it_is_named():
    def length(**changes):
        return resolve(validate({**least("dr_grpo"), **changes})).row.aggregation.numbers["length"]

    assert length() == 3000
    assert length(rollouts={"max_new_tokens": 64}) == 64
    named = {"aggregation": {"length": 128}}
    assert length(rollouts={"max_new_tokens": 64}, cells=named) == 128
    plan = resolve(validate({**least("dr_grpo"), "rollouts": {"max_new_tokens": 64}}))
    assert resolve(validate(yaml_text.read(as_yaml(plan.config), "again"))) == plan


def test_defaults_of_every_row_are_keys_that_have_an_effect():
    for name, row in TABLE.items():
        text = as_yaml(resolve(validate(least(name))).config)
        tree = yaml_text.read(text, name)
        for key, value in row.defaults.items():
            section, _, leaf = key.partition(".")
            assert tree[section][leaf] == value, f"{name}: {key}"


def test_the_resolved_config_spells_out_every_cell():
    row, config = TABLE["ppo"], resolve(validate(least("ppo"))).config
    cells = config.model_dump(exclude_unset=True)["cells"]
    assert cells["policy_loss"] == {"use": "clip", "low": 0.2, "high": 0.2}
    assert cells["value_loss"] == {"use": "clipped", "weight": 0.1, "radius": 0.2}
    assert list(cells["reward_shaping"]) == ["eos_replace", "kl_penalty"]
    assert set(cells) == {slot for slot, _ in row.cells()}


def test_reward_weights_are_spelled_out():
    config = resolve(
        validate({**least("grpo"), "rewards": [{"use": "a"}, {"use": "b", "weight": 0.5}]})
    ).config
    assert config.model_dump(exclude_unset=True)["rewards"] == (
        {"use": "a", "weight": 1.0},
        {"use": "b", "weight": 0.5},
    )


def test_an_unknown_algorithm_names_the_nearest():
    with pytest.raises(ValueError, match="no algorithm named 'gprpo'; did you mean grpo"):
        find_row("gprpo")
    with pytest.raises(ValueError, match="no algorithm named 'gprpo'"):
        resolve(validate({**least("grpo"), "algorithm": "gprpo"}))


def test_every_value_has_an_origin():
    plan = resolve(
        validate(
            {**least("grpo"), "cells": {"policy_loss": {"high": 0.3}}, "update": {"epochs": 2}}
        )
    )
    assert plan.origins.keys() == flatten(plan.config).keys()
    expected = {
        "update.epochs": "recipe",
        "cells.policy_loss.high": "recipe",
        "cells.policy_loss.low": "row",
        "rewards[0].use": "recipe",
        "rollouts.group_size": "row",
        "run.keep": "default",
    }
    assert {key: plan.origins[key] for key in expected} == expected
