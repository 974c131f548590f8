"""From scored rollouts to advantages: truncated completions."""

from __future__ import annotations

import math

import pytest
import torch

from ascent.advantages import normalize, returns
from ascent.advantages.estimate import estimate
from ascent.algorithms import TABLE
from ascent.cells import cell
from ascent.maths.segments import Segments
from ascent.rollouts.config import RolloutConfig
from ascent.rollouts.experience import bootstrap_truncated, needs_old_logprobs


def test_the_critic_stands_in_where_a_budget_cut() -> None:
    """Rewards 1 (ended), .7 (cut), none (cut); values .5 .25 | .1 .2 | 0 0; at the three ends 9, .6, 4.

    Of the second, the score of the half answer is dropped and what follows is worth .6: TD [.1, .4], returns [.2, .6].
    """
    whole = bootstrap_truncated(
        {
            "segments": Segments.from_lengths([2, 2, 2]),
            "loss_mask_T": torch.ones(6, dtype=torch.bool),
            "truncated_B": torch.tensor([False, True, True]),
            "rewards_B": torch.tensor([1.0, 0.7, math.nan]),
            "scores_B": torch.tensor([9.0, 0.6, 4.0]),
            "values_T": torch.tensor([0.5, 0.25, 0.1, 0.2, 0.0, 0.0]),
        }
    )
    assert whole["bootstrap_B"].tolist() == pytest.approx([0, 0.6, 0])
    assert whole["rewards_B"].tolist() == pytest.approx([1, 0, math.nan], nan_ok=True)
    assert "scores_B" not in whole
    found = estimate(
        whole, reward_shaping=(), advantage=cell(returns.td), advantage_norm=cell(normalize.none)
    )
    assert found.advantages_T.tolist() == pytest.approx([-0.25, 0.75, 0.1, 0.4, 0, 0])
    assert found.returns_T is not None
    assert found.returns_T.tolist() == pytest.approx([0.25, 1, 0.2, 0.6, 0, 0])


def test_steps_that_had_ended_before_a_budget_cut_keep_their_rewards() -> None:
    """Steps 1 and .4, the second one cut; the critic values what follows at .6. Values 0: TD [0, 1, .6], no .4."""
    whole = bootstrap_truncated(
        {
            "segments": Segments.from_lengths([3, 2]),
            "loss_mask_T": torch.ones(5, dtype=torch.bool),
            "truncated_B": torch.tensor([True, False]),
            "rewards_B": torch.tensor([1.4, 0.9]),
            "step_rewards_T": torch.tensor([0.0, 1.0, 0.4, 0.0, 0.9]),
            "step_ends_T": torch.tensor([False, True, True, False, True]),
            "scores_B": torch.tensor([0.6, 5.0]),
            "values_T": torch.zeros(5),
        }
    )
    assert whole["rewards_B"].tolist() == pytest.approx([1, 0.9])
    found = estimate(
        whole, reward_shaping=(), advantage=cell(returns.td), advantage_norm=cell(normalize.none)
    )
    assert found.advantages_T.tolist() == pytest.approx([0, 1, 0.6, 0, 0.9])


@pytest.mark.parametrize(
    ("row", "changes", "needed"),
    [
        ("reinforce", {}, False),  # the loss of a single update reads what it has just computed
        ("reinforce", {"epochs": 2}, True),
        ("reinforce", {"minibatches": 2}, True),
        ("reinforce", {"max_ref_kl": 0.1}, True),
        ("remax", {}, True),  # its KL penalty is part of the reward
        ("optimal_baseline", {}, True),  # its advantage is weighted by them
        ("grpo", {}, False),
        ("grpo_rejection", {}, True),  # they correct what was sampled
    ],
)
def test_who_reads_the_log_probs_of_the_policy_that_sampled(row, changes, needed) -> None:
    config = RolloutConfig(prompts_per_step=2, group_size=2, **changes)
    assert needs_old_logprobs(TABLE[row], config) is needed
