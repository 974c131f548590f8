import pytest

from ascent.algorithms import TABLE
from ascent.config.schema import leaves
from ascent.config.validate import validate
from ascent.plan import resolve
from ascent.plan.unused_keys import RULES, unused_keys
from tests.recipes import least


def with_key(algorithm, key, value, **extra):
    recipe = {**least(algorithm), **extra}
    section, _, leaf = key.partition(".")
    if leaf:
        recipe[section] = {**recipe.get(section, {}), leaf: value}
    else:
        recipe[section] = value
    return resolve(validate(recipe))


@pytest.mark.parametrize(
    ("algorithm", "key", "value", "why"),
    [
        ("sft", "rollouts.group_size", 4, "sft learns from files (examples), not from rollouts"),
        ("dpo", "rewards", [{"use": "exact"}], "dpo learns from files (pairs), not from rollouts"),
        ("sft", "update.epochs", 2, "sft learns from files (examples); set run.steps"),
        (
            "grpo",
            "rollouts.servers",
            ["http://a:8000/v1"],
            "completions are sampled in this process; remove it, or set",
        ),
        ("grpo", "data.batch_size", 4, "grpo samples its batches; set rollouts.prompts_per_step"),
        ("dpo", "data.train_on", "all", "dpo learns from pairs; only what learns from examples"),
        (
            "grpo",
            "data.train_on",
            "all",
            "grpo learns from rollouts; only what learns from examples",
        ),
        ("grpo", "data.pretraining", "text", "grpo mixes in no pretraining text"),
        (
            "dapo",
            "model.reference",
            "r",
            "no cell of dapo compares with a reference model; add a KL cell",
        ),
        ("simpo", "model.reference", "r", "no cell of simpo compares with a reference model"),
        ("grpo", "model.critic", "head", "grpo has no critic"),
        ("sft", "model.teacher", "b", "no cell of sft asks a teacher"),
        (
            "sft",
            "data.on_policy_fraction",
            0.5,
            "sft has no teacher to say what it thinks of other answers",
        ),
        ("kd", "rollouts.max_new_tokens", 64, "kd learns from files (examples), not from rollouts"),
        ("grpo", "model.critic_from", "c", "grpo has no critic with weights of its own"),
        ("grpo", "update.critic_learning_rate", 1e-6, "grpo has no critic with weights of its own"),
        ("grpo", "update.critic_warmup_steps", 2, "grpo has no critic with weights of its own"),
        ("dapo", "run.max_ref_kl", 0.5, "dapo knows no reference to be far from"),
        ("dpo", "run.max_ref_kl", 0.5, "dpo knows no reference to be far from"),
        (
            "grpo",
            "model.reward_model",
            "m",
            "grpo does not score with it; add {use: reward_model} to rewards",
        ),
        ("dpo", "model.reward_model", "m", "dpo does not score with it"),
        (
            "grpo",
            "rollouts.dynamic_sampling_tries",
            3,
            "grpo has no filter that could drop a group; add cells.filter.nonzero_variance",
        ),
        ("grpo", "run.evaluate_every", 5, "there is nothing to evaluate; set data.evaluate"),
        ("sft", "run.keep_best", 1, "there is nothing to evaluate; set data.evaluate"),
        (
            "sft",
            "run.best_metric",
            "nll",
            "no checkpoint is kept for being good; set data.evaluate and run.keep_best",
        ),
        (
            "sft",
            "run.project",
            "mine",
            "nothing is sent to Weights & Biases; add wandb to run.trackers",
        ),
        ("sft", "model.lora_alpha", 16.0, "all weights are trained; set model.lora"),
        (
            "sft",
            "model.routing_replay",
            True,
            "sft learns from files (examples), not from rollouts",
        ),
        ("sft", "data.centering_data", "d", "sft trains no reward model"),
        ("dpo", "data.centering_data", "d", "dpo trains no reward model"),
        (
            "reward_model",
            "data.step_separator",
            " ",
            "reward_model trains no process reward model, which judges steps",
        ),
        ("grpo_process", "data.step_separator", " ", "grpo_process trains no process reward model"),
        (
            "grpo",
            "data.mix",
            [{"use": "d", "share": 0.5}],
            "grpo samples answers to the prompts of data.train alone",
        ),
    ],
)
def test_a_key_without_effect_is_refused_with_the_reason(algorithm, key, value, why):
    with pytest.raises(ValueError) as caught:
        with_key(algorithm, key, value)
    assert str(caught.value).startswith(f"{key}=")
    assert f" has no effect: {why}" in str(caught.value)


@pytest.mark.parametrize(
    ("algorithm", "key", "value", "extra"),
    [
        ("grpo", "rollouts.group_size", 4, {}),
        ("sft", "data.train_on", "all", {}),
        ("sft", "data.batch_size", 4, {}),
        ("grpo", "model.reference", "r", {}),
        ("dpo", "model.reference", "r", {}),
        ("dapo", "model.reference", "r", {"cells": {"kl": {"use": "k2", "weight": 0.1}}}),
        ("ppo", "model.critic", "head", {}),
        ("gkd", "model.teacher", "b", {}),
        ("gkd", "data.on_policy_fraction", 0.25, {}),
        ("gkd", "rollouts.max_new_tokens", 64, {}),
        ("grpo", "model.teacher", "b", {"cells": {"token_weights": {"teacher_agreement": {}}}}),
        ("ppo", "model.critic_from", "c", {}),
        ("ppo", "update.critic_learning_rate", 1e-6, {}),
        ("ppo", "update.critic_warmup_steps", 2, {}),
        ("ppo", "run.max_ref_kl", 0.5, {}),
        ("instructgpt", "data.batch_size", 4, {}),
        ("dapo", "rollouts.dynamic_sampling_tries", 3, {}),
        ("ppo", "rollouts.dynamic_sampling_tries", 3, {"cells": {"filter": {"not_truncated": {}}}}),
        ("grpo", "run.evaluate_every", 5, {"data": {"train": "t", "evaluate": "e"}}),
        (
            "grpo",
            "model.reward_model",
            "m",
            {"rewards": [{"use": "reward_model"}, {"use": "exact"}]},
        ),
        ("sft", "run.keep_best", 1, {"data": {"train": "t", "evaluate": "e"}}),
        (
            "sft",
            "run.best_metric",
            "nll",
            {"data": {"train": "t", "evaluate": "e"}, "run": {"keep_best": 1}},
        ),
        ("sft", "run.project", "mine", {"run": {"trackers": ["tensorboard", "wandb"]}}),
        ("sft", "model.lora_alpha", 16.0, {"model": {"policy": "p", "lora": 8}}),
        ("reward_model", "data.centering_data", "d", {}),
        ("reward_model_kwise", "data.centering_data", "d", {}),
        ("prm", "data.step_separator", " ", {}),
        ("prm_soft", "data.step_separator", "\n\n", {}),
    ],
)
def test_the_same_key_is_kept_where_it_counts(algorithm, key, value, extra):
    config = with_key(algorithm, key, value, **extra).config
    section, _, leaf = key.partition(".")
    assert getattr(getattr(config, section), leaf) == value


def test_a_head_is_no_second_model():
    with pytest.raises(
        ValueError,
        match=r"model.critic_from='c' has no effect: ppo has no critic with weights of its own",
    ):
        with_key("ppo", "model.critic_from", "c", model={"policy": "p", "critic": "head"})


@pytest.mark.parametrize("key", ["update.critic_learning_rate", "update.critic_warmup_steps"])
def test_a_head_learns_with_its_trunk(key):
    with pytest.raises(
        ValueError, match=rf"{key}=1(\.0)? has no effect: ppo has no critic with weights of its own"
    ):
        with_key("ppo", key, 1, model={"policy": "p", "critic": "head"})


def test_removing_the_kl_removes_the_need_for_a_reference():
    cells = {"kl": False, "kl_controller": False}
    with pytest.raises(ValueError, match=r"model\.reference='r' has no effect"):
        with_key("grpo", "model.reference", "r", cells=cells)


def test_all_ineffective_keys_are_named_at_once():
    with pytest.raises(ValueError) as caught:
        resolve(validate({**least("sft"), "rollouts": {"group_size": 4, "top_p": 0.9}}))
    assert [line.partition("=")[0] for line in str(caught.value).splitlines()] == [
        "rollouts.group_size",
        "rollouts.top_p",
    ]


SET = {
    "rollouts.engine": "remote",
    "data.evaluate": "e",
    "data.epochs": 2.0,
    "run.keep_best": 1,
    "run.trackers": ("wandb",),
    "model.lora": 8,
}


def test_every_rule_names_keys_that_exist_and_matters_for_some_row():
    defaults = {key: field.get_default() for key, field in leaves().items()}
    for rule in RULES:
        for key in rule.keys:
            assert any(known.startswith(key) for known in leaves()), key
        outcomes = {
            rule.applies(row, defaults | given) for row in TABLE.values() for given in ({}, SET)
        }
        assert outcomes == {True, False}, rule.keys


def test_reasons_carry_the_rows_name():
    values = {key: field.get_default() for key, field in leaves().items()}
    assert "sft" in unused_keys(TABLE["sft"], values)["rollouts.group_size"]
    assert "rollouts.group_size" not in unused_keys(TABLE["grpo"], values)
