"""Objectives read off the rows of the table."""

from __future__ import annotations

import pytest

from ascent.algorithms import TABLE
from ascent.update.objective import MISMATCHED, MODEL_OUTPUTS, Objective, critic_objective, objective_of

# Their losses read what models do not give yet; `ascent.plan.compatibility` refuses them before anything is built.
UNBUILT = ("gkd", "kd", "prm", "prm_soft")


@pytest.mark.parametrize("name", [name for name in TABLE if name not in UNBUILT])
def test_every_row_has_an_objective(name: str) -> None:
    found = objective_of(TABLE[name])
    assert found.want and found.want <= MODEL_OUTPUTS
    assert found.weights == TABLE[name].weights


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("sft", {"logprobs_T"}),
        ("dpo", {"logprobs_T"}),
        ("reward_model", {"scores_B"}),
        ("reward_model_kwise", {"scores_B"}),
        ("grpo", {"logprobs_T", "entropy_T"}),
        ("ppo", {"logprobs_T", "entropy_T", "values_T"}),
    ],
)
def test_what_a_row_wants_of_the_model(name: str, want: set[str]) -> None:
    assert objective_of(TABLE[name]).want == want


def test_kto_alone_needs_a_second_batch() -> None:
    built = [name for name in TABLE if name not in UNBUILT]
    assert [name for name in built if objective_of(TABLE[name]).statistics] == ["kto"]
    assert objective_of(TABLE["kto"]).statistics == (MISMATCHED,)


def test_what_couples_a_step_is_read_off_the_cells() -> None:
    built = [name for name in TABLE if name not in UNBUILT]
    found = {name: objective_of(TABLE[name]) for name in built if objective_of(TABLE[name]).coupling}
    assert sorted(found) == [
        "aot", "aot_unpaired", "bco", "clip_cov", "high_entropy", "kl_cov", "real", "scale_rl", "skywork_or1",
    ]  # fmt: skip
    assert found["aot"].coupling_want == {"logprobs_T"}
    assert found["high_entropy"].coupling_want == {"entropy_T"}
    assert found["scale_rl"].coupling_want == frozenset()
    assert {name: each.carried for name, each in found.items() if each.carried} == {
        "bco": ("reward_memory",), "skywork_or1": ("entropy_memory",),
    }  # fmt: skip


def test_an_unknown_output_is_refused() -> None:
    with pytest.raises(ValueError, match=r"wants \['hidden_TD'\] of the model; choose from \['entropy_T'"):
        Objective(lambda available: {}, {}, frozenset({"hidden_TD"}))
    with pytest.raises(ValueError, match="wants nothing of the model"):
        Objective(lambda available: {}, {}, frozenset())


def test_a_second_model_learns_the_values_alone_and_the_policy_without_them() -> None:
    critic, policy = critic_objective(TABLE["ppo"]), objective_of(TABLE["ppo"], critic=False)
    assert critic.want == {"values_T"} and critic.weights == {"value": 1.0}
    assert "values_T" not in policy.want
    with pytest.raises(ValueError, match="'grpo' has no value loss"):
        critic_objective(TABLE["grpo"])


def test_pretraining_text_is_trained_beside_the_rollouts() -> None:
    found = objective_of(TABLE["instructgpt"])
    assert found.beside is not None and found.beside.companion == "pretraining"
    assert "pretraining_nll" in found.weights
    assert all(objective_of(TABLE[name]).beside is None for name in TABLE if name not in (*UNBUILT, "instructgpt"))
