"""Objectives read off the rows of the table."""

from __future__ import annotations

import pytest

from ascent.algorithms import TABLE
from ascent.update.objective import MISMATCHED, MODEL_OUTPUTS, Objective, objective_of


@pytest.mark.parametrize("name", TABLE)
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
        ("grpo", {"logprobs_T"}),
        ("ppo", {"logprobs_T", "values_T"}),
    ],
)
def test_what_a_row_wants_of_the_model(name: str, want: set[str]) -> None:
    assert objective_of(TABLE[name]).want == want


def test_kto_alone_needs_a_step_statistic() -> None:
    assert [name for name in TABLE if objective_of(TABLE[name]).statistics] == ["kto"]
    assert objective_of(TABLE["kto"]).statistics == (MISMATCHED,)


def test_an_unknown_output_is_refused() -> None:
    with pytest.raises(ValueError, match=r"wants \['logits_TV'\] of the model; choose from \['entropy_T'"):
        Objective(lambda available: {}, {}, frozenset({"logits_TV"}))
    with pytest.raises(ValueError, match="wants nothing of the model"):
        Objective(lambda available: {}, {}, frozenset())
