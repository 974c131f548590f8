import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from ascent.advantages import returns
from ascent.classic.collect import (
    Environments,
    ObservationScale,
    RunningMoments,
    collect_episodes,
    collect_steps,
)
from ascent.classic.policies import build_policy
from ascent.classic.result import evaluate
from ascent.classic.run import critic_values

CLOCK, BOXED = "tests/Clock-v0", "tests/ClockBox-v0"


class Clock(gymnasium.Env):
    """Observations are (episode, age), the reward is the age. Even episodes terminate at age 4; odd ones never do."""

    def __init__(self, continuous=False):
        self.observation_space = spaces.Box(0, 1000, (2,), np.float32)
        self.action_space = (
            spaces.Box(-0.5, 0.5, (1,), np.float32) if continuous else spaces.Discrete(2)
        )
        self.episode, self.age, self.told = -1, 0, []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.age = self.episode + 1, 0
        return np.array([self.episode, self.age], np.float32), {}

    def step(self, action):
        self.told.append(action)
        self.age += 1
        over = self.episode % 2 == 0 and self.age == 4
        return np.array([self.episode, self.age], np.float32), float(self.age), over, False, {}


@pytest.fixture(scope="module", autouse=True)
def clock():
    gymnasium.register(CLOCK, entry_point=Clock, max_episode_steps=6)
    gymnasium.register(BOXED, entry_point=Clock, max_episode_steps=6, kwargs={"continuous": True})
    yield
    del gymnasium.registry[CLOCK], gymnasium.registry[BOXED]


def parts(env_id=CLOCK, count=2, **more):
    environments = Environments(env_id, count, seed=0, **more)
    torch.manual_seed(0)
    policy = build_policy(environments.observation_space, environments.action_space, hidden=(8,))
    return environments, policy, np.random.default_rng(0)


class Oracle(torch.nn.Module):
    """A critic that names the state it was asked about: 100 * episode + age."""

    def forward(self, observations):
        return 100 * observations[:, 0] + observations[:, 1]


def test_pieces_end_where_episodes_do_and_name_the_state_after_their_last_step():
    environments, policy, rng = parts()
    rollout = collect_steps(policy, environments, 12, rng)
    # Each environment: episode 0 terminates after 4 steps, episode 1 is truncated after 6, episode 2 is cut after 2.
    assert rollout.segments.lengths_B.tolist() == [4, 6, 2, 4, 6, 2]
    assert rollout.terminated_B.tolist() == [True, False, False] * 2
    assert rollout.last_observations_BO.tolist() == [[0, 4], [1, 6], [2, 2]] * 2
    episodes = [0] * 4 + [1] * 6 + [2] * 2
    ages = [0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 0, 1]
    assert (
        rollout.observations_TO.tolist()
        == [[e, a] for e, a in zip(episodes, ages, strict=True)] * 2
    )
    assert rollout.rewards_T.tolist() == [age + 1.0 for age in ages] * 2


def test_only_termination_makes_the_future_worthless():
    environments, policy, rng = parts(count=1)
    rollout = collect_steps(policy, environments, 12, rng)
    values_T, bootstrap_B = critic_values(Oracle(), rollout)
    assert values_T[:4].tolist() == [0, 1, 2, 3]
    assert bootstrap_B.tolist() == [0, 106, 202]


def test_an_episode_goes_on_in_the_next_rollout():
    environments, policy, rng = parts(count=1)
    first = collect_steps(policy, environments, 7, rng)
    second = collect_steps(policy, environments, 5, rng)
    assert first.last_observations_BO[-1].tolist() == [1, 3] == second.observations_TO[0].tolist()
    assert second.segments.lengths_B.tolist() == [3, 2]
    assert second.terminated_B.tolist() == [False, False]
    assert environments.returns == [10.0, 21.0]
    assert environments.steps == [4, 10]


def test_a_rollout_that_stops_exactly_at_an_ending_has_no_empty_piece():
    environments, policy, rng = parts(count=1)
    rollout = collect_steps(policy, environments, 4, rng)
    assert rollout.segments.lengths_B.tolist() == [4]
    assert rollout.terminated_B.tolist() == [True]
    assert rollout.last_observations_BO.tolist() == [[0, 4]]


def test_gae_on_packed_pieces_equals_a_loop_over_each_environment():
    environments, policy, rng = parts(count=3)
    rollout = collect_steps(policy, environments, 13, rng)
    values_T, bootstrap_B = critic_values(Oracle(), rollout)
    found_T = returns.gae(
        rollout.rewards_T,
        values_T,
        rollout.loss_mask_T,
        rollout.segments,
        bootstrap_B,
        gamma=0.9,
        lam=0.8,
    ).advantages_T
    # Replay the clock by hand, backwards, one environment.
    steps = [(0, age, age == 3, age == 3) for age in range(4)] + [
        (1, age, age == 5, False) for age in range(6)
    ]
    steps += [(2, age, False, False) for age in range(3)]
    expected, ahead = [], 0.0
    for k, (episode, age, ended, terminated) in reversed(list(enumerate(steps))):
        ended = ended or k == len(steps) - 1
        following = 0.0 if terminated else 100 * episode + age + 1
        delta = age + 1 + 0.9 * following - (100 * episode + age)
        ahead = delta + 0.9 * 0.8 * (0.0 if ended else ahead)
        expected.append(ahead)
    torch.testing.assert_close(found_T, torch.tensor(expected[::-1] * 3))


def test_whole_episodes_are_counted_not_steps():
    environments, policy, rng = parts(count=2)
    rollout = collect_episodes(policy, environments, 4, rng)
    assert rollout.segments.lengths_B.tolist() == [4, 6, 4, 6]
    assert rollout.terminated_B.tolist() == [True, False, True, False]
    assert rollout.last_observations_BO.tolist() == [[0, 4], [1, 6]] * 2
    assert rollout.rewards_T.tolist() == [1.0, 2, 3, 4, 1, 2, 3, 4, 5, 6] * 2
    assert len(environments.returns) == 4
    with pytest.raises(ValueError, match="multiple"):
        collect_episodes(policy, environments, 3, rng)


def test_box_actions_are_clipped_for_the_environment_and_kept_whole_for_the_gradient():
    environments, policy, rng = parts(BOXED, 1)
    rollout = collect_steps(policy, environments, 50, rng)
    told = np.concatenate(environments.envs[0].told)
    assert np.abs(told).max() == 0.5
    assert float(rollout.actions.abs().max()) > 0.5
    np.testing.assert_allclose(told, rollout.actions[:, 0].clamp(-0.5, 0.5))


def test_rewards_are_divided_by_the_deviation_of_their_discounted_sum():
    environments, policy, rng = parts(count=2)
    plain = collect_steps(policy, environments, 24, rng)
    environments, policy, rng = parts(count=2, gamma=0.5)
    scaled = collect_steps(policy, environments, 24, rng)
    sums, running = [], 0.0
    for reward, age in zip(
        plain.rewards_T[:24].tolist(), plain.observations_TO[:24, 1].tolist(), strict=True
    ):
        running = reward if age == 0 else running * 0.5 + reward
        sums.append(running)
    torch.testing.assert_close(scaled.rewards_T, plain.rewards_T / np.std(sums), rtol=1e-5, atol=0)


def test_observation_scale_waits_for_the_end_of_the_rollout():
    environments, policy, rng = parts(count=2)
    scale = ObservationScale(policy.encoder)
    first = collect_steps(policy, environments, 10, rng, scale)
    assert first.observations_TO[:4].tolist() == [[0, 0], [0, 1], [0, 2], [0, 3]]
    raw = first.observations_TO.numpy()
    np.testing.assert_allclose(policy.encoder.shift_O, raw.mean(0), rtol=1e-6)
    second = collect_steps(policy, environments, 10, rng, scale)
    np.testing.assert_allclose(
        second.observations_TO[0], (np.array([2.0, 0.0]) - raw.mean(0)) / raw.std(0), rtol=1e-5
    )


def test_the_same_seed_gives_the_same_rollout():
    def rewards(seed):
        environments = Environments("CartPole-v1", 3, seed=seed)
        torch.manual_seed(0)
        policy = build_policy(environments.observation_space, environments.action_space)
        return collect_steps(policy, environments, 40, np.random.default_rng(seed)).observations_TO

    assert torch.equal(rewards(1), rewards(1))
    assert not torch.equal(rewards(1), rewards(2))


def test_time_limit_counted_here_equals_gymnasiums():
    class Right:
        def act(self, observations, rng):
            return np.ones(len(observations), np.int64)

    # Without force the car never gets out of the valley: every episode is as long as the limit, 200.
    assert evaluate(Right(), "MountainCar-v0", 2, 0) == [-200.0, -200.0]
    environments = Environments("MountainCar-v0", 1, seed=0)
    torch.manual_seed(0)
    policy = build_policy(environments.observation_space, environments.action_space)
    collect_steps(policy, environments, 401, np.random.default_rng(0))
    assert environments.returns == [-200.0, -200.0]
    assert environments.steps == [200, 400]


def test_bad_counts_are_refused():
    environments, policy, rng = parts()
    with pytest.raises(ValueError, match="at least 1"):
        collect_steps(policy, environments, 0, rng)
    with pytest.raises(ValueError, match="at least 1"):
        Environments(CLOCK, 0, seed=0)
    with pytest.raises(ValueError, match="at least 1 episode"):
        evaluate(policy, CLOCK, 0, 0)


def test_moments_of_pieces_equal_the_moments_of_the_whole():
    rows = np.random.default_rng(0).normal(3.0, 2.0, (1000, 4))
    moments = RunningMoments((4,))
    for piece in np.split(rows, [10, 11, 500]):
        moments.update(piece)
    np.testing.assert_allclose(moments.mean, rows.mean(0))
    np.testing.assert_allclose(moments.variance, rows.var(0))


def test_an_entry_that_never_varies_is_left_alone():
    moments = RunningMoments((1,))
    moments.update(np.full((5, 1), 7.0))
    assert moments.std.tolist() == [1.0]
