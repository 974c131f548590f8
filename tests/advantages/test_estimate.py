"""The order of operations: shape, place, credit, normalize; what cannot be scored takes no part."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ascent.advantages import group_baselines, normalize, returns, reward_shaping
from ascent.advantages.estimate import estimate
from ascent.cells import cell
from ascent.maths.groups import Groups
from ascent.maths.segments import Segments

NONE = cell(normalize.none)


def batch() -> dict[str, Any]:
    return {
        "segments": Segments.from_lengths([2, 1, 2]),
        "groups": Groups.from_ids([0, 0, 0]),
        "loss_mask_T": torch.ones(5, dtype=torch.bool),
        "rewards_B": torch.tensor([1.0, 0.0, 0.5], dtype=torch.float64),
        "old_logprobs_T": torch.tensor([-1.0, -1.0, -2.0, -1.0, -1.0], dtype=torch.float64),
        "ref_logprobs_T": torch.full((5,), -1.0, dtype=torch.float64),
        "truncated_B": torch.tensor([False, False, True]),
    }


def test_the_eos_rule_comes_before_the_baseline_and_kl_enters_the_sequence_reward() -> None:
    shapes = (
        cell(reward_shaping.eos_replace, score=-1.0),
        cell(reward_shaping.kl_penalty, beta=0.1),
    )
    result = estimate(
        batch(),
        reward_shaping=shapes,
        advantage=cell(group_baselines.leave_one_out),
        advantage_norm=NONE,
    )
    assert result.rewards_B.tolist() == pytest.approx([1.0, 0.1, -1.0])
    assert result.advantages_T.tolist() == pytest.approx([1.45, 1.45, 0.1, -1.55, -1.55])


def test_token_credit_sees_the_score_on_the_last_token_plus_kl() -> None:
    result = estimate(
        batch(),
        reward_shaping=(cell(reward_shaping.kl_penalty, beta=0.1),),
        advantage=cell(returns.reward_to_go),
        advantage_norm=NONE,
    )
    assert result.advantages_T.tolist() == pytest.approx([1.0, 1.0, 0.1, 0.5, 0.5])


def test_an_unscored_sequence_gets_zero_and_does_not_enter_token_statistics() -> None:
    known = batch()
    known["rewards_B"][1] = float("nan")
    result = estimate(
        known,
        reward_shaping=(),
        advantage=cell(returns.reward_to_go),
        advantage_norm=cell(normalize.whiten_token),
    )
    assert float(result.advantages_T[2]) == 0
    assert result.advantages_T[[0, 1, 3, 4]].tolist() == pytest.approx(
        [0.8660254, 0.8660254, -0.8660254, -0.8660254]
    )
    assert result.metrics["reward/mean"].value() == 0.75


def test_the_eos_rule_does_not_score_what_could_not_be_scored() -> None:
    known = batch()
    known["rewards_B"][2] = float("nan")
    result = estimate(
        known,
        reward_shaping=(cell(reward_shaping.eos_replace),),
        advantage=cell(group_baselines.group_mean_baseline),
        advantage_norm=NONE,
    )
    assert result.advantages_T.tolist() == pytest.approx([0.5, 0.5, -0.5, 0, 0])


def test_an_empty_completion_stays_in_the_baseline() -> None:
    known = batch()
    known["loss_mask_T"] = torch.tensor([True, True, False, True, True])
    result = estimate(
        known,
        reward_shaping=(),
        advantage=cell(group_baselines.group_mean_baseline),
        advantage_norm=NONE,
    )
    assert result.advantages_T.tolist() == pytest.approx([0.5, 0.5, 0, 0, 0])


def test_everything_is_frozen() -> None:
    known = batch()
    known["old_logprobs_T"].requires_grad_()
    result = estimate(
        known,
        reward_shaping=(cell(reward_shaping.kl_penalty, beta=0.1),),
        advantage=cell(group_baselines.group_mean_baseline),
        advantage_norm=NONE,
    )
    assert not result.advantages_T.requires_grad and not result.rewards_B.requires_grad


def test_a_missing_input_is_named() -> None:
    known = batch()
    with pytest.raises(KeyError, match="values_T"):
        estimate(known, reward_shaping=(), advantage=cell(returns.gae), advantage_norm=NONE)


def test_rewards_are_whitened_last_with_the_kl_in_them_and_without_what_is_unscored() -> None:
    """Token rewards 0 1 | .1 | 0 .5 with KL; the third sequence unscored leaves 0 1 .1: mean .36667, std .55076."""
    known = batch()
    known["rewards_B"][2] = float("nan")
    shapes = (cell(reward_shaping.kl_penalty, beta=0.1), cell(reward_shaping.whiten_rewards))
    result = estimate(
        known, reward_shaping=shapes, advantage=cell(returns.reward_to_go), advantage_norm=NONE
    )
    white = [0.366667 + (each - 0.366667) / 0.550757 for each in (0.0, 1.0, 0.1)]
    assert result.advantages_T.tolist() == pytest.approx(
        [white[0] + white[1], white[1], white[2], 0, 0], abs=1e-5
    )
    assert result.rewards_B.tolist()[:2] == pytest.approx([white[0] + white[1], white[2]], abs=1e-5)
    assert result.rewards_B.isnan().tolist() == [False, False, True]


def stepwise() -> dict[str, Any]:
    """Two sequences of four tokens: one with steps 1 and .5 that end at tokens 1 and 3, one with a score of 2 alone."""
    return {
        "segments": Segments.from_lengths([4, 4]),
        "groups": Groups.from_ids([0, 1]),
        "loss_mask_T": torch.ones(8, dtype=torch.bool),
        "rewards_B": torch.tensor([1.5, 2.0], dtype=torch.float64),
        "step_rewards_T": torch.tensor([0, 1, 0, 0.5, 0, 0, 0, 0], dtype=torch.float64),
        "step_ends_T": torch.tensor([0, 1, 0, 1, 0, 0, 0, 0], dtype=torch.bool),
        "values_T": torch.tensor([0.5, 0.5, 0.25, 0.25, 0, 0, 0, 0], dtype=torch.float64),
        "truncated_B": torch.tensor([True, False]),
        "old_logprobs_T": torch.full((8,), -1.0, dtype=torch.float64),
        "ref_logprobs_T": torch.full((8,), -1.5, dtype=torch.float64),
    }


def test_gae_reads_step_rewards_where_the_steps_end() -> None:
    """By hand, lam .5, gamma 1: TD errors [0, .75, 0, .25], so A = [.40625, .8125, .125, .25] and A + V are targets."""
    result = estimate(
        stepwise(), reward_shaping=(), advantage=cell(returns.gae, lam=0.5), advantage_norm=NONE
    )
    assert result.advantages_T[:4].tolist() == pytest.approx([0.40625, 0.8125, 0.125, 0.25])
    assert result.returns_T is not None
    assert result.returns_T[:4].tolist() == pytest.approx([0.90625, 1.3125, 0.375, 0.5])
    assert result.advantages_T[4:].tolist() == pytest.approx(
        [0.25, 0.5, 1, 2]
    )  # the score is at the last token
    assert result.rewards_B.tolist() == [1.5, 2.0]


def test_reward_to_go_of_steps_and_what_shaping_adds_to_them() -> None:
    """The EOS rule makes -1 of the first total, 1.5: the 2.5 between stand at the last token. KL adds .05 a token."""
    shapes = (
        cell(reward_shaping.eos_replace, score=-1.0),
        cell(reward_shaping.kl_penalty, beta=0.1),
    )
    to_go = cell(returns.reward_to_go)
    plain = estimate(stepwise(), reward_shaping=(), advantage=to_go, advantage_norm=NONE)
    assert plain.advantages_T.tolist() == pytest.approx([1.5, 1.5, 0.5, 0.5, 2, 2, 2, 2])
    shaped = estimate(stepwise(), reward_shaping=shapes, advantage=to_go, advantage_norm=NONE)
    wanted = [-1.2, -1.15, -2.1, -2.05, 1.8, 1.85, 1.9, 1.95]
    assert shaped.advantages_T.tolist() == pytest.approx(wanted)
    assert shaped.rewards_B.tolist() == pytest.approx([-1.2, 1.8])


def test_without_steps_every_bit_is_as_without_their_names() -> None:
    known = stepwise()
    known["step_rewards_T"], known["step_ends_T"] = torch.zeros(8), torch.zeros(8, dtype=torch.bool)
    without = {name: value for name, value in known.items() if not name.startswith("step_")}
    shapes = (
        cell(reward_shaping.eos_replace, score=-0.3),
        cell(reward_shaping.kl_penalty, beta=0.07),
    )
    both = [
        estimate(each, reward_shaping=shapes, advantage=cell(returns.gae), advantage_norm=NONE)
        for each in (known, without)
    ]
    assert torch.equal(both[0].advantages_T, both[1].advantages_T)
