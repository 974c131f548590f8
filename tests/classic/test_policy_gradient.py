import numpy as np
import pytest
import torch

from ascent.classic import policy_gradient
from ascent.classic.collect import Rollout, collect_episodes
from ascent.classic.policies import build_policy
from ascent.classic.policy_gradient import WEIGHTS, CreditInputs, others_mean, policy_loss
from ascent.classic.result import evaluate
from ascent.classic.run import Settings, start
from ascent.maths.segments import Segments
from bench import classic

MAZE = "ascent/Maze-v0"


def two_episodes():
    """Rewards (1, 2, 4) and (3, 5); values 10 everywhere; the second episode was truncated, the state after worth 7."""
    rollout = Rollout(
        torch.zeros(5, 2),
        torch.zeros(5, dtype=torch.int64),
        torch.tensor([1.0, 2.0, 4.0, 3.0, 5.0]),
        Segments.from_lengths([3, 2]),
        torch.zeros(2, 2),
        torch.tensor([True, False]),
    )
    return CreditInputs(
        rollout, torch.full((5,), 10.0), torch.tensor([0.0, 7.0]), gamma=0.5, lam=0.5
    )


@pytest.mark.parametrize(
    ("weight", "expected"),
    [
        ("basic", [3.0, 3.0, 3.0, 5.5, 5.5]),
        ("reward_to_go", [3.0, 4.0, 4.0, 5.5, 5.0]),
        ("baseline", [-2.25, -1.25, -1.25, 5.5 - 11 / 3, 5 - 11 / 3]),
        ("vpg", [-7.0, -6.0, -6.0, -2.75, -1.5]),
        ("actor_critic", [-4.0, -3.0, -6.0, -2.0, -1.5]),
        ("gae", [-4 - 0.25 * 4.5, -3 - 0.25 * 6, -6.0, -2 - 0.25 * 1.5, -1.5]),
    ],
)
def test_each_weight_by_hand(weight, expected):
    torch.testing.assert_close(WEIGHTS[weight](two_episodes()), torch.tensor(expected))


def test_others_mean_of_the_worked_example():
    segments = Segments.from_lengths([2, 1])
    assert others_mean(torch.tensor([3.0, 1.0, 5.0]), segments).tolist() == [5, 5, 2]


def test_the_loss_is_the_mean_over_episodes_of_the_sum_over_steps():
    run = start("CartPole-v1", Settings(envs=4, hidden=(8,)), seed=0)
    rollout = collect_episodes(run.policy, run.environments, 4, run.rng)
    weights_T = torch.randn(rollout.segments.total)
    logprobs_T = run.policy.logprobs(run.policy(rollout.observations_TO), rollout.actions)
    expected = -(logprobs_T * weights_T).sum() / 4
    torch.testing.assert_close(policy_loss(run.policy, rollout, weights_T), expected)
    policy_loss(run.policy, rollout, weights_T.requires_grad_()).backward()
    assert weights_T.grad is None


@pytest.mark.parametrize("weight", ["basic", "reward_to_go", "baseline", "vpg"])
def test_unbiased_weights_estimate_the_exact_gradient_of_the_maze(weight):
    """With the maze cut off after four moves, the gradient of the expected return can be computed exactly."""
    torch.manual_seed(0)
    env = start(MAZE, Settings(envs=50, hidden=()), seed=0)
    policy = build_policy(
        env.environments.observation_space, env.environments.action_space, hidden=()
    )
    env.environments.limit = 4.0
    exact = exact_gradient(policy, env.environments, 4)
    values = {s: 3.0 * s for s in range(6)}
    found = []
    for _ in range(40):
        rollout = collect_episodes(policy, env.environments, 250, env.rng)
        cells_T = rollout.observations_TO.argmax(1).tolist()
        values_T = torch.tensor([values[s] for s in cells_T])
        seen = CreditInputs(rollout, values_T, torch.zeros(250), gamma=1.0, lam=1.0)
        loss = -policy_loss(policy, rollout, WEIGHTS[weight](seen))
        found.append(
            torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(policy.parameters()))])
        )
    found = torch.stack(found).double()
    error = found.std(0) / len(found) ** 0.5
    z = torch.where(error > 1e-9, (found.mean(0) - exact) / error.clamp(min=1e-9), 0)
    assert float(z.abs().max()) < 4.5
    assert float(exact.norm()) > 20 * float((found.mean(0) - exact).abs().mean())


def exact_gradient(policy, environments, limit):
    """d/d theta of the expected return within `limit` moves, by dynamic programming through the maze's own model."""
    model = environments.envs[0].model()
    shares_SA = policy(torch.eye(6)).softmax(1).double()
    next_SAN, rewards_SA = torch.from_numpy(model.next_SAN), torch.from_numpy(model.rewards_SA)
    value_S = torch.zeros(6, dtype=torch.float64)
    for _ in range(limit):
        value_S = (shares_SA * (rewards_SA + next_SAN @ value_S)).sum(1)
    grads = torch.autograd.grad(value_S[environments.envs[0].grid.start], list(policy.parameters()))
    return torch.cat([g.reshape(-1) for g in grads]).double()


@pytest.mark.parametrize("weight", list(WEIGHTS))
def test_every_weight_reaches_the_optimal_return_of_the_maze(weight):
    settings = policy_gradient.Settings(
        weight=weight,
        steps=10_000,
        gamma=0.9,
        lr=1e-2,
        critic_lr=1e-2,
        critic_steps=40,
        hidden=(16,),
    )
    result = policy_gradient.train(MAZE, settings, seed=0)
    assert np.mean(result.returns[:16]) < 5
    assert evaluate(result.policy, MAZE, 5, 10**6) == [10.0] * 5
    assert np.mean(evaluate(result.policy, MAZE, 50, 10**6, greedy=False)) > 9.5


def test_a_gaussian_policy_learns_too():
    settings = policy_gradient.Settings(steps=4000, envs=4, episodes=4, hidden=(8,), critic_steps=5)
    history = policy_gradient.train("Pendulum-v1", settings, seed=0).history
    assert len(history) == 5
    assert all(np.isfinite(list(update.values())).all() for update in history)
    assert history[0]["entropy"] != history[-1]["entropy"]


def test_the_same_seed_gives_the_same_run():
    settings = policy_gradient.Settings(steps=500, hidden=(8,))
    first, again = (policy_gradient.train("CartPole-v1", settings, seed=2) for _ in range(2))
    assert first.returns == again.returns and first.history == again.history


def test_bad_settings_are_refused_with_value_and_rule():
    for wrong, words in (
        (
            {"weight": "q"},
            "weight='q'; choose one of actor_critic, baseline, basic, gae, reward_to_go, vpg",
        ),
        ({"episodes": 12}, "episodes=12 on envs=8; episodes must be a multiple of envs"),
        ({"weight": "baseline", "episodes": 1, "envs": 1}, "use at least 2"),
        ({"lam": -0.1}, "lam=-0.1, but it must be between 0 and 1"),
    ):
        with pytest.raises(ValueError, match=words):
            policy_gradient.Settings(**wrong)


@pytest.mark.learning
def test_vpg_reaches_475_on_cartpole_on_four_of_five_seeds():
    count, finals = classic.reached("vpg")
    assert count >= 4, finals
