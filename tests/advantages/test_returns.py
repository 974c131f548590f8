"""Returns and critic advantages: numbers by hand, identities, observation tokens, borders, a float64 loop."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ascent.advantages import returns
from ascent.maths.segments import Segments

ONE = Segments.from_lengths([4])
R = torch.tensor([0.0, 0.0, 0.0, 1.0], dtype=torch.float64)
V = torch.tensor([0.2, 0.4, 0.1, 0.6], dtype=torch.float64)
ALL = torch.ones(4, dtype=torch.bool)


def near(x: Tensor, *expected: float) -> None:
    assert x.tolist() == pytest.approx(list(expected), abs=1e-9)


def test_golden_numbers_g3() -> None:
    near(returns.td(R, V, ALL, ONE).advantages_T, 0.2, -0.3, 0.5, 0.4)
    near(returns.gae(R, V, ALL, ONE, lam=0.0).advantages_T, 0.2, -0.3, 0.5, 0.4)
    credit = returns.gae(R, V, ALL, ONE, lam=0.95)
    assert credit.advantages_T.tolist() == pytest.approx([0.7092, 0.536, 0.88, 0.4], abs=1e-4)
    near(returns.gae(R, V, ALL, ONE, lam=1.0).advantages_T, 0.8, 0.6, 0.9, 0.4)
    full = returns.monte_carlo(R, V, ALL, ONE)
    near(full.advantages_T, 0.8, 0.6, 0.9, 0.4)
    assert full.returns_T is not None
    near(full.returns_T, 1, 1, 1, 1)


def test_golden_numbers_g14_reward_on_the_eos_token() -> None:
    values = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5], dtype=torch.float64)
    rewards = torch.tensor([0.0, 0, 0, 0, 1], dtype=torch.float64)
    credit = returns.gae(
        rewards, values, torch.ones(5, dtype=torch.bool), Segments.from_lengths([5]), lam=0.95
    )
    assert credit.advantages_T.tolist() == pytest.approx(
        [0.778241, 0.713937, 0.64625, 0.575, 0.5], abs=1e-6
    )
    # The slot after EOS is the same function with one more (value) position, shown here so the difference stays known.
    later = returns.gae(
        torch.tensor([0.0, 0, 0, 0, 0, 1], dtype=torch.float64),
        torch.cat([values, torch.tensor([0.6], dtype=torch.float64)]),
        torch.ones(6, dtype=torch.bool),
        Segments.from_lengths([6]),
        lam=0.95,
    )
    assert later.advantages_T[:5].tolist() == pytest.approx(
        [0.76195, 0.69679, 0.6282, 0.556, 0.48], abs=1e-4
    )


def test_reward_to_go_and_the_whole_return() -> None:
    rewards = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0], dtype=torch.float64)
    segments, trained = Segments.from_lengths([2, 0, 3]), torch.ones(5, dtype=torch.bool)
    near(returns.reward_to_go(rewards, trained, segments).advantages_T, 3, 2, 28, 24, 16)
    near(returns.reward_to_go(rewards, trained, segments, gamma=0.5).advantages_T, 2, 2, 12, 16, 16)
    near(returns.whole_return(rewards, trained, segments, gamma=0.5).advantages_T, 2, 2, 12, 12, 12)


def test_a_truncated_sequence_bootstraps_from_the_critic() -> None:
    beyond = torch.tensor([0.5], dtype=torch.float64)
    near(returns.td(R, V, ALL, ONE, beyond).advantages_T, 0.2, -0.3, 0.5, 0.9)
    near(returns.monte_carlo(R, V, ALL, ONE, beyond).advantages_T, 1.3, 1.1, 1.4, 0.9)
    near(
        returns.reward_to_go(R, ALL, ONE, beyond, gamma=0.5).advantages_T,
        0.15625,
        0.3125,
        0.625,
        1.25,
    )


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 1000),
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=5),
    gamma=st.sampled_from([1.0, 0.9, 0.0]),
    lam=st.sampled_from([0.0, 0.3, 0.95, 1.0]),
)
def test_gae_equals_the_loop_and_steps_over_observations(
    seed: int, lengths: list[int], gamma: float, lam: float
) -> None:
    segments = Segments.from_lengths(lengths)
    rng = torch.Generator().manual_seed(seed)
    rewards, values = torch.randn(2, segments.total, dtype=torch.float64, generator=rng)
    beyond = torch.randn(segments.count, dtype=torch.float64, generator=rng)
    trained = torch.rand(segments.total, generator=rng) < 0.7
    expected, start = torch.zeros_like(rewards), 0
    for b, length in enumerate(lengths):
        value, advantage = beyond[b], torch.tensor(0.0, dtype=torch.float64)
        for t in reversed(range(start, start + length)):
            if trained[t]:
                advantage = rewards[t] + gamma * value - values[t] + gamma * lam * advantage
                value = values[t]
                expected[t] = advantage
        start += length
    credit = returns.gae(rewards, values, trained, segments, beyond, gamma=gamma, lam=lam)
    torch.testing.assert_close(credit.advantages_T, expected, rtol=1e-12, atol=1e-12)
    assert credit.returns_T is not None
    torch.testing.assert_close(
        credit.returns_T, torch.where(trained, expected + values, 0), rtol=1e-12, atol=1e-12
    )


def test_observation_tokens_do_not_decay_credit() -> None:
    """Two observation tokens between policy tokens: the first advantage is that of the sequence without them."""
    rewards = torch.tensor(
        [0.0, 5.0, 5.0, 1.0], dtype=torch.float64
    )  # what lies on observations is not read
    trained = torch.tensor([True, False, False, True])
    with_holes = returns.gae(rewards, V, trained, ONE, lam=0.9).advantages_T
    short = returns.gae(
        rewards[trained],
        V[trained],
        torch.ones(2, dtype=torch.bool),
        Segments.from_lengths([2]),
        lam=0.9,
    )
    near(with_holes[trained], *short.advantages_T.tolist())
    assert with_holes[~trained].tolist() == [0, 0]


@pytest.mark.parametrize("n", [1, 2, 3, 4, 9])
def test_n_step_by_definition_and_gae_is_their_mixture(n: int) -> None:
    gamma, lam = 0.9, 0.7
    expected = []
    for t in range(4):
        upto = min(t + n, 4)
        total = sum(gamma ** (k - t) * float(R[k]) for k in range(t, upto))
        expected.append(total + (gamma**n * float(V[t + n]) if t + n < 4 else 0) - float(V[t]))
    near(returns.n_step(R, V, ALL, ONE, n=n, gamma=gamma).advantages_T, *expected)
    by_n = [returns.n_step(R, V, ALL, ONE, n=k, gamma=gamma).advantages_T for k in range(1, 5)]
    gae = returns.gae(R, V, ALL, ONE, gamma=gamma, lam=lam).advantages_T
    for t in range(4):
        left = 4 - t
        mixture = (1 - lam) * sum(lam ** (k - 1) * float(by_n[k - 1][t]) for k in range(1, left))
        mixture += lam ** (left - 1) * float(by_n[left - 1][t])
        assert float(gae[t]) == pytest.approx(mixture, abs=1e-12)


def test_decoupled_gae_uses_one_lambda_for_each() -> None:
    both = returns.decoupled_gae(R, V, ALL, ONE, policy_lam=0.5, critic_lam=1.0)
    policy, critic = returns.gae(R, V, ALL, ONE, lam=0.5), returns.gae(R, V, ALL, ONE, lam=1.0)
    assert both.returns_T is not None and critic.returns_T is not None
    near(both.advantages_T, *policy.advantages_T.tolist())
    near(both.returns_T, *critic.returns_T.tolist())


def test_length_adaptive_lambda_grows_with_length_and_is_clamped() -> None:
    segments = Segments.from_lengths([4, 40])
    rng = torch.Generator().manual_seed(0)
    rewards, values = torch.randn(2, 44, dtype=torch.float64, generator=rng)
    trained = torch.ones(44, dtype=torch.bool)
    adaptive = returns.length_adaptive_gae(
        rewards, values, trained, segments, alpha=0.05
    ).advantages_T
    near(
        adaptive[:4], *returns.td(rewards, values, trained, segments).advantages_T[:4].tolist()
    )  # 1 - 1/.2 < 0 -> 0
    near(
        adaptive[4:],
        *returns.gae(rewards, values, trained, segments, lam=0.5).advantages_T[4:].tolist(),
    )


def test_no_gradient_reaches_the_critic_or_the_reward() -> None:
    values, rewards = V.clone().requires_grad_(), R.clone().requires_grad_()
    for function in (
        returns.gae,
        returns.td,
        returns.monte_carlo,
        returns.length_adaptive_gae,
        returns.decoupled_gae,
    ):
        credit = function(rewards, values, ALL, ONE)
        assert not credit.advantages_T.requires_grad
        assert credit.returns_T is not None and not credit.returns_T.requires_grad


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: returns.gae(R, V, ALL, ONE, lam=1.5), r"lam=1.5.*at most 1"),
        (lambda: returns.gae(R, V, ALL, ONE, gamma=-0.1), r"gamma=-0.1.*at least 0"),
        (lambda: returns.n_step(R, V, ALL, ONE, n=0), r"n=0.*at least 1"),
        (lambda: returns.gae(R[:3], V, ALL, ONE), "mismatched lengths"),
    ],
)
def test_bad_numbers_are_refused(call, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        call()
