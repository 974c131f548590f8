"""Reward shaping by hand."""

from __future__ import annotations

import pytest
import torch

from ascent.advantages import returns, reward_shaping
from ascent.algorithms import TABLE
from ascent.maths.segments import Segments

ONE, ALL = Segments.from_lengths([4]), torch.ones(4, dtype=torch.bool)
OLD = torch.tensor([-1.0, -2.0, -0.5, -0.1], dtype=torch.float64)
REF = torch.tensor([-1.2, -1.5, -0.5, -0.3], dtype=torch.float64)


def test_golden_numbers_g3b() -> None:
    placed = reward_shaping.on_last_token(torch.tensor([1.0], dtype=torch.float64), ALL, ONE)
    rewards = placed + reward_shaping.kl_penalty(OLD, REF, ALL, beta=0.1)
    assert rewards.tolist() == pytest.approx([-0.02, 0.05, 0, 0.98])
    to_go = returns.reward_to_go(rewards, ALL, ONE).advantages_T
    assert to_go.tolist() == pytest.approx([1.01, 1.03, 0.98, 0.98])


def test_score_minus_six_tokens_of_kl() -> None:
    old, ref = torch.zeros(6), torch.full((6,), -0.05)
    penalty = reward_shaping.kl_penalty(old, ref, torch.ones(6, dtype=torch.bool), beta=1.0)
    assert 0.8 + float(penalty.sum()) == pytest.approx(0.5)


def test_golden_numbers_g12_soft_overlong() -> None:
    zero = torch.zeros(5, dtype=torch.float64)
    lengths = torch.tensor([10, 80, 90, 100, 110])
    assert reward_shaping.soft_overlong(zero, lengths, max_length=100, cache=20).tolist() == [
        0,
        0,
        -0.5,
        -1,
        -1,
    ]
    with pytest.raises(ValueError, match="cache=200 > max_length=100"):
        reward_shaping.soft_overlong(zero, lengths, max_length=100, cache=200)


@pytest.mark.parametrize(("wrong", "right", "penalty"), [(-1.0, 1.0, 1.0), (0.0, 1.0, 0.5)])
def test_a_right_answer_at_the_limit_is_still_better_than_a_wrong_one(
    wrong: float, right: float, penalty: float
) -> None:
    """z-scores do not see how rewards are scaled: the paper's -1 and 1 with penalty 1 are 0 and 1 with penalty .5."""
    rewards, lengths = (
        torch.tensor([right, right, wrong, wrong], dtype=torch.float64),
        torch.tensor([50, 100, 50, 50]),
    )
    shaped = reward_shaping.soft_overlong(
        rewards, lengths, max_length=100, cache=20, penalty=penalty
    )
    z = (shaped - shaped.mean()) / shaped.std()
    assert z.tolist() == pytest.approx([1.3056, 0.2611, -0.7833, -0.7833], abs=1e-4)


def test_dapos_penalty_is_for_rewards_of_zero_and_one() -> None:
    (penalty,) = [
        each
        for each in TABLE["dapo"].reward_shaping
        if each.function is reward_shaping.soft_overlong
    ]
    assert penalty.numbers["penalty"] == 0.5


def test_eos_rules_and_clip() -> None:
    rewards, cut = torch.tensor([0.7, 0.7]), torch.tensor([False, True])
    assert reward_shaping.eos_replace(rewards, cut, score=-1).tolist() == pytest.approx([0.7, -1])
    assert reward_shaping.eos_subtract(rewards, cut, penalty=1.0).tolist() == pytest.approx(
        [0.7, -0.3]
    )
    assert reward_shaping.clip(torch.tensor([-9.0, 0.5, 9.0]), low=-1, high=2).tolist() == [
        -1,
        0.5,
        2,
    ]
    with pytest.raises(ValueError, match="low=1 > high=0"):
        reward_shaping.clip(rewards, low=1, high=0)


def test_the_reward_sits_on_the_last_trained_token_even_behind_an_observation() -> None:
    segments = Segments.from_lengths([3, 2])
    trained = torch.tensor([True, True, False, False, False])
    assert reward_shaping.on_last_token(torch.tensor([5.0, 7.0]), trained, segments).tolist() == [
        0,
        5,
        0,
        0,
        0,
    ]


def test_kl_in_the_reward_carries_no_gradient_and_no_negative_beta() -> None:
    old = OLD.clone().requires_grad_()
    assert not reward_shaping.kl_penalty(old, REF, ALL, beta=0.1).requires_grad
    with pytest.raises(ValueError, match=r"beta=-0.1.*at least 0"):
        reward_shaping.kl_penalty(OLD, REF, ALL, beta=-0.1)


def test_eos_scale_keeps_a_share_of_what_never_ended() -> None:
    rewards, cut = torch.tensor([1.0, -2.0, 1.0]), torch.tensor([True, True, False])
    assert reward_shaping.eos_scale(rewards, cut, factor=0.25).tolist() == [0.25, -0.5, 1.0]


def test_reward_whitening_scales_and_leaves_the_mean() -> None:
    """Rewards 0 0 0 1 and one outside the mask: mean .25, sample std .5."""
    rewards = torch.tensor([0.0, 0.0, 0.0, 1.0, 99.0], dtype=torch.float64)
    kept = torch.tensor([True, True, True, True, False])
    assert reward_shaping.whiten_rewards(rewards, kept).tolist() == pytest.approx(
        [-0.25, -0.25, -0.25, 1.75, 0], abs=1e-6
    )
