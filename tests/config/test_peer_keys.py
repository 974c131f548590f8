"""Names of settings in other libraries are answered with keys that exist."""

from __future__ import annotations

import re
from inspect import signature
from pathlib import Path

import pytest

import ascent
from ascent.algorithms import VOCABULARY
from ascent.cells import recipe_numbers
from ascent.config.load import merge_configs, nest_keys
from ascent.config.peer_keys import ARGUMENTS, KEYS, REMARKS
from ascent.config.schema import MULTI_CELL_SLOTS, TERM_SLOTS, leaves
from ascent.config.validate import validate

LEAST = {"algorithm": "rlvr", "model": {"policy": "p"}, "data": {"train": "t"}}
PAGES = sorted((Path(__file__).parents[2] / "docs/coming-from").glob("*.md"))
# Not among the flags of docs/coming-from: a second name there of what is, and arguments.
NO_FLAGS = ("response_length", "train_dataset", "eval_dataset")
# What a user types, and the words that the error must have besides.
TYPED = {
    "rollouts.n": "rollouts.group_size?",
    "actor_rollout_ref.rollout.n": "rollouts.group_size?",
    "actor_rollout_ref.rollout.response_length": "rollouts.max_new_tokens?",
    "rollouts.response_length": "rollouts.max_new_tokens?",
    "update.gradient_accumulation_steps": "update.tokens_per_microbatch",
    "run.report_to": "run.trackers",
    "model.attn_implementation": "the attention kernel follows from the device",
    "model.lora_target_modules": "every linear layer",
    "learning_rate": "update.learning_rate?",
    "output_dir": "--run FOLDER",
    "reward_shaping.kl_penalty.beta": "did you mean cells.reward_shaping.kl_penalty.beta?",
    "peft_config": "model.lora (the rank)",
    "kl_ctrl.kl_coef": "cells.reward_shaping.kl_penalty.beta",
}


def refusal(key: str) -> str:
    with pytest.raises(ValueError) as caught:
        validate(merge_configs(LEAST, nest_keys({key: 1})))
    return str(caught.value)


def exists(key: str) -> bool:
    section, slot, *rest = [*key.split("."), ""]
    if section != "cells" or key in leaves():
        return key in leaves()
    if slot in MULTI_CELL_SLOTS:
        return rest[1] in recipe_numbers(VOCABULARY[slot][rest[0]])
    known = {"use", *(["weight"] if slot in TERM_SLOTS else [])}
    return rest[0] in known.union(
        *(recipe_numbers(function) for function in VOCABULARY[slot].values())
    )


@pytest.mark.parametrize(("name", "key"), KEYS.items())
def test_a_name_is_refused_with_its_key(name: str, key: str) -> None:
    assert exists(key)
    assert refusal(name) == f"{name} is not a key; did you mean {key}?"
    if name in NO_FLAGS:
        return
    lines = [line for page in PAGES for line in page.read_text(encoding="utf-8").splitlines()]
    assert any(re.search(rf"\b{name.rpartition('.')[2]}\b", line) and key in line for line in lines)


@pytest.mark.parametrize(("name", "remark"), REMARKS.items())
def test_a_name_is_refused_with_a_remark_whose_keys_exist(name: str, remark: str) -> None:
    keys = re.findall(r"\b(?:model|data|rollouts|update|cells|run)(?:\.[a-z_]+)+", remark)
    assert all(exists(key) for key in keys), keys
    assert refusal(name) == f"{name} is not a key; {remark}"


@pytest.mark.parametrize(("typed", "words"), TYPED.items())
def test_a_name_in_a_section_is_refused_with_its_key(typed: str, words: str) -> None:
    assert refusal(typed).startswith(f"{typed} is not a key; ")
    assert words in refusal(typed)


def test_no_name_is_a_key_and_none_has_two_answers() -> None:
    assert not {*KEYS, *REMARKS} & set(leaves())
    assert not set(KEYS) & set(REMARKS)


@pytest.mark.parametrize(("name", "argument"), ARGUMENTS.items())
def test_an_argument_of_a_trainer_is_refused_with_ours(name: str, argument: str) -> None:
    assert argument in signature(ascent.train).parameters
    with pytest.raises(TypeError) as caught:
        ascent.train("sft", **{name: []})
    assert str(caught.value) == f"ascent.train has no argument {name!r}; write {argument}="


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("peft_config", "write model.lora (the rank) and model.lora_alpha"),
        ("learning_rate", "did you mean update.learning_rate?"),
        ("num_generations", "did you mean rollouts.group_size?"),
        ("zzz", "ascent show schema lists every key"),
    ],
)
def test_a_key_as_an_argument_is_refused_with_its_place(name: str, words: str) -> None:
    with pytest.raises(TypeError) as caught:
        ascent.train("sft", **{name: 1})
    assert (
        str(caught.value)
        == f"ascent.train has no argument {name!r}; keys are in the second argument: {words}"
    )
