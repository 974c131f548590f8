import math

import pytest
import torch

from ascent.config.validate import nearest_keys, validate

LEAST = {"algorithm": "rlvr", "model": {"policy": "p"}, "data": {"train": "t"}}


def test_the_least_recipe_is_valid():
    config = validate(LEAST)
    assert config.rollouts.temperature == 1.0
    assert config.model_dump(exclude_unset=True) == LEAST


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"rollouts": {"grup_size": 3}},
            "rollouts.grup_size is not a key; did you mean rollouts.group_size?",
        ),
        ({"learning_rate": 1.0}, "learning_rate is not a key; did you mean update.learning_rate"),
        (
            {"optimizer": {"lr": 1.0}},
            "optimizer.lr is not a key; did you mean update.learning_rate?",
        ),
        ({"kl": {"weight": 1.0}}, "kl.weight is not a key; did you mean cells.kl.weight"),
        (
            {"policy_loss": {"low": 1.0}},
            "policy_loss.low is not a key; did you mean cells.policy_loss.low?",
        ),
        (
            {"cells": {"polcy_loss": {"low": 1}}},
            "cells.polcy_loss.low is not a key; did you mean cells.policy_loss",
        ),
        ({"qqq": 1}, "qqq is not a key; ascent show schema lists every key"),
        ({"rewards": [{"wieght": 1}]}, "rewards[0].use is missing"),
        ({"env": {"max_turns": 4}}, "env.use is missing"),
        ({"rollouts": {"temperature": 0}}, "rollouts.temperature=0, but it must be at least 1e-06"),
        (
            {"rollouts": {"temperature": -1.0}},
            "rollouts.temperature=-1.0, but it must be at least 1e-06",
        ),
        ({"rollouts": {"top_p": 1.5}}, "rollouts.top_p=1.5, but it must be at most 1"),
        ({"rollouts": {"group_size": 0}}, "rollouts.group_size=0, but it must be at least 1"),
        (
            {"rollouts": {"group_size": True}},
            "rollouts.group_size=true, but it must be a whole number",
        ),
        (
            {"rollouts": {"group_size": 1.5}},
            "rollouts.group_size=1.5, but it must be a whole number",
        ),
        ({"update": {"learning_rate": "3"}}, "update.learning_rate='3', but it must be a number"),
        (
            {"update": {"learning_rate": math.inf}},
            "update.learning_rate=inf, but it must be a finite number",
        ),
        ({"update": {"adam_beta1": 1.0}}, "update.adam_beta1=1.0, but it must be below 1"),
        (
            {"update": {"schedule": "step"}},
            "update.schedule='step', but it must be one of 'constant', 'linear'",
        ),
        (
            {"model": {"policy": "p", "gradient_checkpointing": 1}},
            "model.gradient_checkpointing=1, but it must be true or false",
        ),
        ({"model": {"policy": "p", "lora": 0}}, "model.lora=0, but it must be at least 1"),
        ({"model": {"policy": "p", "lora": 1.5}}, "model.lora=1.5, but it must be a whole number"),
        (
            {"model": {"policy": "p", "trust_remote_code": "yes"}},
            "model.trust_remote_code='yes', but it must be true",
        ),
        (
            {"data": {"train": "t", "mix": [{"use": "u", "share": 1}]}},
            "data.mix[0].share=1, but it must be below 1",
        ),
        ({"data": {"train": "t", "mix": [{"use": "u"}]}}, "data.mix[0].share is missing"),
        ({"data": {"train": "t", "mix": {"u": 0.5}}}, "data.mix={'u': 0.5}, but it must be a list"),
        ({"run": {"keep_best": -1}}, "run.keep_best=-1, but it must be at least 0"),
        (
            {"run": {"trackers": ["mlflow"]}},
            "run.trackers[0]='mlflow', but it must be one of 'tensorboard' or 'wandb'",
        ),
        ({"run": {"trackers": "wandb"}}, "run.trackers='wandb', but it must be a list"),
        ({"model": {"policy": ""}}, "model.policy='', but it must be given"),
        ({"model": {}}, "model.policy is missing (The model to train"),
        ({"rollouts": 3}, "rollouts=3, but it must be a section"),
        ({"rollouts": None}, "rollouts=null, but it must be a section"),
        ({"rewards": {"use": "x"}}, "rewards={'use': 'x'}, but it must be a list"),
        ({"cells": {"policy_loss": True}}, "cells.policy_loss=true, but it must be a section"),
        ({"cells": {"policy_loss": None}}, "cells.policy_loss=null, but it must be a section"),
        (
            {"cells": {"policy_loss": {"use": None}}},
            "cells.policy_loss.use=null, but it must be a word",
        ),
        (
            {"cells": {"policy_loss": {"low": [1]}}},
            "cells.policy_loss.low=[1], but it must be a number, true, false or a word",
        ),
        (
            {"cells": {"reward_shaping": {"clip": {"low": None}}}},
            "cells.reward_shaping.clip.low=null, but it must be a number",
        ),
        ({"cells": {"kl": {"weight": -1}}}, "cells.kl.weight=-1, but it must be at least 0"),
        (
            {"seed": 10**30},
            f"seed=1{'0' * 30}, but it must be at most 9223372036854775807 (The same seed",
        ),
        (
            {"data": {"train": "t", "batch_size": 10**30}},
            f"data.batch_size=1{'0' * 30}, but it must be at most 1000000 (",
        ),
        ({"run": {"steps": 10**30}}, f"run.steps=1{'0' * 30}, but it must be at most 1000000000 ("),
        (
            {"run": {"steps": 10**5000}},
            "run.steps=a number of about 5000 digits, but it must be at most 1000000000",
        ),
        (
            {"rollouts": {"max_new_tokens": 10**12}},
            "rollouts.max_new_tokens=1000000000000, but it must be at most",
        ),
        (
            {"update": {"learning_rate": 3.0}},
            "update.learning_rate=3.0, but it must be at most 1 (Peak",
        ),
        (
            {"update": {"max_grad_norm": 10**400}},
            "update.max_grad_norm=a number of about 400 digits, but it must be at mo",
        ),
        (
            {"rewards": [{"use": "x", "weight": -1e300}]},
            "rewards[0].weight=-1e+300, but it must be at least -1e+30",
        ),
        ({"rewards": [{"use": "x", "a": [10**400]}]}, "rewards[0].a=[1000"),
        (
            {"env": {"use": "x", "max_turns": 10**400}},
            "env.max_turns=a number of about 400 digits, but it must be a number",
        ),
        (
            {"cells": {"policy_loss": {"low": 10**400}}},
            "cells.policy_loss.low=a number of about 400 digits, but it must be a number wi",
        ),
        ({"rollouts": {"group_size": "x" * 5000}}, "rollouts.group_size='xxx"),
        ({"x" * 5000: 1}, "xxx"),
    ],
)
def test_an_error_says_key_value_rule_and_fix(changes, words):
    with pytest.raises(ValueError) as caught:
        validate({**LEAST, **changes})
    assert str(caught.value).startswith(words)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("changes", "fix"),
    [
        ({"rewards": {"use": "x"}}, "the reward); write [{use: x}]"),
        ({"rewards": "x"}, "the reward); write [{use: x}]"),
        ({"rewards": ["x"]}, "a section with keys of its own; write {use: x}"),
        ({"env": "x"}, "single-turn); write {use: x}"),
        ({"rewards": [{"use": "x", "weight": "y"}]}, "but it must be a number"),
        (
            {"cells": {"aggregation": "token_mean"}},
            "aggregated); write {use: token_mean} (as an override: cells.aggregation.use=token_mean)",
        ),
        (
            {"cells": {"advantage_norm": "none"}},
            "write {use: none} (as an override: cells.advantage_norm.use=none)",
        ),
        ({"cells": {"filter": "not_truncated"}}, "write {not_truncated: {}}"),
        (
            {"cells": {"filter": {"not_truncated": True}}},
            "a section with keys of its own; write {}",
        ),
        ({"cells": {"kl": None}}, "(KL loss); write false to remove it"),
        ({"cells": {"kl": "none"}}, "(KL loss); write false to remove it"),
        ({"cells": {"kl_controller": None}}, "write false to remove it"),
        ({"cells": {"kl": True}}, "(KL loss)"),
        ({"cells": {"policy_loss": None}}, "the importance ratio is clipped)"),
    ],
)
def test_a_bare_name_is_answered_with_what_to_write(changes, fix):
    with pytest.raises(ValueError) as caught:
        validate({**LEAST, **changes})
    assert str(caught.value).endswith(fix)


def test_the_largest_seed_is_one_that_torch_takes():
    assert (
        validate({**LEAST, "seed": 2**63 - 1}).seed
        == torch.Generator().manual_seed(2**63 - 1).initial_seed()
    )


def test_an_option_may_be_infinite():
    assert (
        validate({**LEAST, "rewards": [{"use": "x", "clip": [-math.inf, 1]}]})
        .rewards[0]
        .options["clip"][1]
        == 1
    )


def test_every_problem_gets_a_line_of_its_own():
    with pytest.raises(ValueError) as caught:
        validate({**LEAST, "seed": -1, "run": {"steps": 0}})
    assert [line.partition("=")[0] for line in str(caught.value).splitlines()] == [
        "seed",
        "run.steps",
    ]


def test_a_missing_section_is_named():
    with pytest.raises(ValueError, match=r"^data\.train is missing \(Training dataset"):
        validate({"algorithm": "sft", "model": {"policy": "p"}})


def test_a_cell_may_be_switched_off_or_given_other_numbers():
    config = validate(
        {
            **LEAST,
            "cells": {
                "kl": False,
                "policy_loss": {"use": "clip", "low": 0.1},
                "reward_shaping": {"clip": False},
            },
        }
    )
    assert config.model_dump(exclude_unset=True)["cells"] == {
        "kl": False,
        "policy_loss": {"use": "clip", "low": 0.1},
        "reward_shaping": {"clip": False},
    }


def test_nearest_keys_finds_initials_and_misplaced_words():
    assert nearest_keys("lr") == ["update.learning_rate"]
    assert nearest_keys("temperature") == ["rollouts.temperature"]
    assert nearest_keys("rollout.group_size")[0] == "rollouts.group_size"
    assert nearest_keys("zzz") == []
