"""Objectives read off the rows of the table."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from ascent.algorithms import TABLE
from ascent.cells import Cell
from ascent.losses.loss import ItemLosses, Terms
from ascent.update.objective import MODEL_OUTPUTS, Objective, critic_objective, objective_of
from ascent.update.reward_model_metrics import with_reward_model_metrics
from tests.batches import random_batch


@pytest.mark.parametrize("name", TABLE)
def test_every_row_has_an_objective(name: str) -> None:
    found = objective_of(TABLE[name])
    assert found.want and found.want <= MODEL_OUTPUTS
    assert found.weights == TABLE[name].weights


def results_of(objective: Objective) -> tuple[dict[str, Tensor], Terms]:
    batch = random_batch(0)
    batch |= {"advantages_T": batch["values_T"] + 1, "returns_T": batch["values_T"] * 2}
    statistics = objective.step_statistics(batch) if objective.statistics else {}
    return statistics, objective.terms({**batch, **statistics})


@pytest.mark.parametrize("name", TABLE)
def test_a_pickled_objective_is_the_same_objective(name: str) -> None:
    made = [objective_of(TABLE[name]), with_reward_model_metrics(objective_of(TABLE[name]))]
    if TABLE[name].value_loss is not None:
        made += [objective_of(TABLE[name], critic=False), critic_objective(TABLE[name])]
    for objective in made:
        statistics, terms = results_of(objective)
        again = pickle.loads(pickle.dumps(objective))
        assert again == objective
        other_statistics, other_terms = results_of(again)
        assert statistics.keys() == other_statistics.keys() and terms.keys() == other_terms.keys()
        assert all(torch.equal(value, other_statistics[each]) for each, value in statistics.items())
        for each, loss in terms.items():
            other = other_terms[each]
            assert torch.equal(loss.numerator, other.numerator) and torch.equal(
                loss.denominator, other.denominator
            )
            assert repr(loss.metrics) == repr(other.metrics)


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
    assert [name for name in TABLE if objective_of(TABLE[name]).wants_mismatched] == ["kto"]


def test_step_statistics_are_read_off_the_cells() -> None:
    found = {name: objective_of(row) for name, row in TABLE.items() if objective_of(row).statistics}
    assert sorted(found) == [
        "aot",
        "aot_unpaired",
        "bco",
        "clip_cov",
        "high_entropy",
        "kl_cov",
        "real",
        "scale_rl",
        "skywork_or1",
    ]
    assert found["aot"].statistics_want == {"logprobs_T"}
    assert found["high_entropy"].statistics_want == {"entropy_T"}
    assert found["scale_rl"].statistics_want == frozenset()
    assert {name: each.persistent for name, each in found.items() if each.persistent} == {
        "bco": ("reward_memory",),
        "skywork_or1": ("entropy_memory",),
    }


def test_a_loss_that_reads_nothing_of_the_model_is_refused() -> None:
    def constant(loss_mask_T: Tensor) -> ItemLosses:
        return ItemLosses(loss_mask_T.double(), loss_mask_T, {})

    with pytest.raises(
        ValueError, match=r"'sft' read no model output; one must take one of \['entropy_T'"
    ):
        objective_of(replace(TABLE["sft"], loss=Cell(constant)))
    with pytest.raises(ValueError, match="'grpo' has neither a loss nor all of rollout_correction"):
        objective_of(replace(TABLE["grpo"], ratio=None))


def test_a_second_model_learns_the_values_alone_and_the_policy_without_them() -> None:
    critic, policy = critic_objective(TABLE["ppo"]), objective_of(TABLE["ppo"], critic=False)
    assert critic.want == {"values_T"} and critic.weights == {"value_loss": 1.0}
    assert "values_T" not in policy.want
    with pytest.raises(ValueError, match="'grpo' has no value loss"):
        critic_objective(TABLE["grpo"])


def test_pretraining_text_is_an_auxiliary_batch() -> None:
    found = objective_of(TABLE["instructgpt"])
    assert found.auxiliary is not None and found.auxiliary.name == "pretraining"
    assert "pretraining_nll" in found.weights
    assert [name for name in TABLE if objective_of(TABLE[name]).auxiliary] == ["instructgpt"]
