"""DQN: targets by hand, what carries gradient, the slow copy, endings against time limits, and learning."""

from __future__ import annotations

import statistics

import gymnasium
import numpy as np
import pytest
import torch

from ascent.classic import dqn
from ascent.classic.dqn import Learner, QNetwork, Settings
from ascent.classic.exact import optimal_values, policy_values
from ascent.classic.maze import Maze
from ascent.classic.policies import Encoder
from ascent.classic.replay import Steps
from ascent.classic.result import evaluate

MAZE = Settings(
    steps=3_000,
    envs=4,
    hidden=(32,),
    gamma=0.99,
    learning_rate=3e-3,
    batch=64,
    capacity=4_000,
    warmup=200,
    train_every=8,
    updates=4,
    target_rate=0.05,
    target_every=1,
    loss="mse",
    epsilon_share=0.8,
)


def network(inputs=3, hidden=(5,), actions=2, seed=0):
    torch.manual_seed(seed)
    return QNetwork(Encoder(gymnasium.spaces.Box(-1, 1, (inputs,))), hidden, actions)


def steps(count, inputs=3, seed=0):
    rng = np.random.default_rng(seed)
    observations, after = rng.normal(size=(2, count, inputs)).astype(np.float32)
    ended = (np.arange(count) % 3 == 0).astype(np.float32)
    return Steps(
        observations,
        rng.integers(2, size=count),
        rng.normal(size=count).astype(np.float32),
        after,
        ended,
    )


class Table:
    """A network with fixed answers: row i of the table for observation i."""

    def __init__(self, rows):
        self.rows = torch.tensor(rows)

    def __call__(self, observations):
        return self.rows[observations[:, 0].long()]


def test_targets_by_hand():
    online, slow = Table([[5.0, 1.0], [0.0, 9.0]]), Table([[2.0, 4.0], [3.0, 1.0]])
    after = np.array([[0.0], [1.0], [1.0]], np.float32)
    ended = np.array([0.0, 0.0, 1.0], np.float32)
    given = Steps(after, np.zeros(3, np.int64), np.array([1.0, 1.0, 7.0], np.float32), after, ended)
    # Plain: 1 + .5 * max slow = 1 + .5 * 4 and 1 + .5 * 3; an ending is its reward alone.
    assert dqn.targets(online, slow, given, gamma=0.5, double=False).tolist() == [3.0, 2.5, 7.0]
    # Double: the online network picks action 0 (then 1), the slow one says what it is worth: 2 (then 1).
    assert dqn.targets(online, slow, given, gamma=0.5, double=True).tolist() == [2.0, 1.5, 7.0]


def test_targets_carry_no_gradient():
    assert not dqn.targets(
        network(), network(seed=1), steps(4), gamma=0.9, double=True
    ).requires_grad


def test_the_network_is_the_textbook_one():
    net = network(hidden=(5, 4))
    rows = torch.randn(7, 3)
    expected = rows
    for i, (weight, bias) in enumerate(net.layers):
        expected = expected @ weight + bias
        expected = expected.clamp(min=0) if i < 2 else expected
    assert torch.allclose(net(rows), expected, atol=1e-6)
    assert (net.act(rows.numpy(), None) == expected.argmax(-1).numpy()).all()


def test_gradients_land_in_the_flat_vector():
    net, rows = network(hidden=(5, 4)), torch.randn(7, 3)
    net(rows).sum().backward()
    by_layer = torch.cat([piece.grad.reshape(-1) for layer in net.layers for piece in layer])
    assert torch.equal(net.flat.grad, by_layer) and by_layer.abs().sum() > 0
    # Finite differences on the flat vector, which the layers must polyak_update because they are views of it.
    for at in range(0, net.flat.numel(), 7):
        moved = []
        for step in (1e-2, -1e-2):
            with torch.no_grad():
                net.flat[at] += step
                moved.append(float(net(rows).double().sum()))
                net.flat[at] -= step
        assert (moved[0] - moved[1]) / 2e-2 == pytest.approx(float(by_layer[at]), abs=1e-2)
    net.zero_grad()
    assert all(piece.grad.abs().sum() == 0 for layer in net.layers for piece in layer)


@pytest.mark.parametrize("loss", ["mse", "huber"])
def test_an_update_moves_q_towards_its_target(loss):
    settings = Settings(batch=32, learning_rate=1e-2, loss=loss, target_rate=0.001)
    learner, sample = Learner(network(), settings), steps(32)
    losses = [float(learner.update(sample, progress=0.0)["loss"]) for _ in range(200)]
    assert losses[-1] < 0.3 * losses[0]


def test_the_two_losses_are_the_textbook_ones():
    sample, net = steps(16), network()
    sample = sample._replace(rewards_N=sample.rewards_N * 5)
    q_N = net(torch.from_numpy(sample.observations_NO)).gather(
        1, torch.from_numpy(sample.actions_N)[:, None]
    )[:, 0]
    z_N = dqn.targets(net, net, sample, gamma=Settings().gamma, double=True)
    for name, expected in (
        ("mse", torch.nn.functional.mse_loss(q_N, z_N) / 2),
        ("huber", torch.nn.functional.huber_loss(q_N, z_N, delta=1.0)),
    ):
        learner = Learner(network(), Settings(batch=16, loss=name))
        assert float(learner.update(sample, progress=0.0)["loss"]) == pytest.approx(
            expected.item(), rel=1e-5
        )


def test_the_slow_copy_follows_by_its_share():
    slow, online = network(seed=0), network(seed=1)
    expected = 0.75 * slow.flat.detach() + 0.25 * online.flat.detach()
    dqn.polyak_update(slow, online, rate=0.25)
    assert torch.allclose(slow.flat, expected)


def test_a_hard_copy_waits_for_its_turn():
    learner, sample = (
        Learner(network(), Settings(batch=8, target_rate=1.0, target_every=3)),
        steps(8),
    )
    start = learner.target.flat.detach().clone()
    for _ in range(2):
        learner.update(sample, progress=0.0)
    assert torch.equal(learner.target.flat, start)
    learner.update(sample, progress=0.0)
    assert torch.equal(learner.target.flat, learner.online.flat) and not torch.equal(
        learner.target.flat, start
    )


def test_the_learning_rate_falls_to_its_end():
    learner, sample = (
        Learner(network(), Settings(batch=8, learning_rate=1e-2, final_rate=0.0)),
        steps(8),
    )
    before = learner.online.flat.detach().clone()
    learner.update(sample, progress=1.0)
    assert torch.equal(learner.online.flat, before)
    learner.update(sample, progress=0.5)
    assert learner.optimizer.param_groups[0]["lr"] == pytest.approx(5e-3)


class Endless(gymnasium.Env):
    """Reward 1 for ever under a time limit of 4: worth 1 / (1 - gamma) unless the limit is mistaken for an ending."""

    def __init__(self, ends=False):
        self.observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
        self.action_space, self.ends, self.age = gymnasium.spaces.Discrete(2), ends, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.age = 0
        return np.ones(1, np.float32), {}

    def step(self, action):
        self.age += 1
        return np.ones(1, np.float32), 1.0, self.ends and self.age == 4, False, {}


@pytest.mark.parametrize(("ends", "worth"), [(False, 5.0), (True, None)])
def test_a_time_limit_is_bootstrapped_through_and_an_ending_is_not(ends, worth):
    gymnasium.register(
        id="ascent-test/Endless-v0", entry_point=Endless, max_episode_steps=4, kwargs={"ends": ends}
    )
    try:
        settings = Settings(
            steps=2_000,
            hidden=(8,),
            warmup=100,
            batch=32,
            gamma=0.8,
            target_rate=0.1,
            learning_rate=1e-2,
            loss="mse",
        )
        result = dqn.train("ascent-test/Endless-v0", settings, seed=0)
    finally:
        del gymnasium.registry["ascent-test/Endless-v0"]
    q = result.policy(torch.ones(1, 1)).max().item()
    if worth is not None:
        assert q == pytest.approx(worth, rel=0.02)
    else:
        # One state, an ending every fourth step: q = 1 + .8 * .75 q, so 2.5.
        assert q == pytest.approx(2.5, rel=0.1)


@pytest.mark.parametrize("double", [False, True])
def test_the_maze_is_solved(double):
    settings = Settings(**{**vars(MAZE), "double": double})
    result = dqn.train("ascent/Maze-v0", settings, seed=0)
    assert evaluate(result.policy, "ascent/Maze-v0", 2, seed=50) == [10.0, 10.0]
    # The shortest way, too: the greedy policy's exact discounted value at the start is V*.
    model = Maze().model()
    policy_SA = np.eye(4)[result.policy.act(np.arange(6), None)]
    best = optimal_values(model, gamma=0.99).v_S[0]
    assert policy_values(model, policy_SA, gamma=0.99).v_S[0] == pytest.approx(best)
    q_SA = result.policy(torch.eye(6)).detach().numpy()
    assert np.abs(q_SA[[0, 1, 4]] - optimal_values(model, gamma=0.99).q_SA[[0, 1, 4]]).max() < 1.0


def test_the_same_seed_gives_the_same_weights():
    settings = Settings(**{**vars(MAZE), "steps": 600})
    first, again, other = (dqn.train("ascent/Maze-v0", settings, seed=s) for s in (2, 2, 3))
    assert torch.equal(first.policy.flat, again.policy.flat) and first.returns == again.returns
    assert not torch.equal(first.policy.flat, other.policy.flat)


def test_inputs_are_divided_by_their_spread_in_both_networks():
    rows = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32) * np.array(
        [0.1, 0.0, 30.0], np.float32
    )
    learner, plain = Learner(network(), Settings()), network()
    learner.set_scale(rows)
    spread = rows.std(0, ddof=1)
    spread[1] = 1.0  # an entry that never varies is left alone
    scaled = rows / spread
    assert (plain.act(rows, None) != plain.act(scaled, None)).any()
    for net in (learner.online, learner.target):
        assert torch.allclose(
            net(torch.from_numpy(rows)), plain(torch.from_numpy(scaled)), atol=1e-5
        )
        assert (net.act(rows, None) == plain.act(scaled, None)).all()


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ({"gamma": 1.5}, "gamma=1.5"),
        ({"batch": 0}, "batch=0"),
        ({"learning_rate": -1.0}, "learning_rate=-1.0"),
        ({"loss": "l1"}, "loss='l1'"),
        ({"target_rate": 1.0, "target_every": 1}, "has no target network"),
        ({"target_rate": 0.0}, "target_rate=0.0"),
        ({"steps": 500, "warmup": 1000}, "nothing would be learned"),
        ({"envs": 8, "train_every": 4}, "train_every >= envs"),
        ({"hidden": (0,)}, "hidden="),
    ],
)
def test_bad_settings(numbers, words):
    with pytest.raises(ValueError, match=words):
        Settings(**numbers)


def test_environments_that_do_not_fit():
    with pytest.raises(ValueError, match="lists all actions"):
        dqn.train("Pendulum-v1", Settings(), seed=0)
    with pytest.raises(ValueError, match="seed=-1"):
        dqn.train("CartPole-v1", Settings(), seed=-1)


@pytest.mark.learning
def test_cartpole_is_solved_on_four_of_five_seeds():
    torch.set_num_threads(1)
    finals = []
    for seed in range(5):
        result = dqn.train("CartPole-v1", dqn.Settings(), seed=seed)
        finals.append(
            statistics.mean(evaluate(result.policy, "CartPole-v1", 100, 1_000_000 + 1_000 * seed))
        )
    assert sum(final >= 475 for final in finals) >= 4, finals


def test_cartpole_is_learned_a_little_in_five_thousand_steps():
    torch.set_num_threads(1)
    result = dqn.train("CartPole-v1", dqn.Settings(steps=5_000, hidden=(64, 64)), seed=0)
    # A random policy survives about 22 steps.
    assert statistics.mean(result.returns[:20]) < 50
    assert statistics.mean(evaluate(result.policy, "CartPole-v1", 20, 1_000_000)) > 80
