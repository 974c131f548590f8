import math

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch.distributions import Categorical, Independent, Normal, kl_divergence

from ascent.classic.policies import (
    CategoricalPolicy,
    Critic,
    Encoder,
    GaussianPolicy,
    StateNoisePolicy,
    build_policy,
    forward_numpy,
    mlp,
)

BOX = spaces.Box(-1, 1, (3,), np.float32)


def policies():
    torch.manual_seed(0)
    some = (
        CategoricalPolicy(Encoder(BOX), 4, hidden=(8,)),
        GaussianPolicy(Encoder(BOX), 2, hidden=(8,), log_std=-0.4),
        StateNoisePolicy(Encoder(BOX), 2, hidden=(8,), log_std=-0.4, hold=3),
    )
    for policy in some:
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
    return some


def as_torch(policy, outputs):
    """The same distribution, as torch.distributions has it."""
    if isinstance(policy, CategoricalPolicy):
        return Categorical(logits=outputs)
    means, log_stds = outputs.chunk(2, 1)
    return Independent(Normal(means, log_stds.exp()), 1)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_logprobs_entropy_and_kl_equal_those_of_torch_distributions(which):
    policy = policies()[which].double()
    a, b = policy(torch.randn(7, 3).double()), policy(torch.randn(7, 3).double()) * 1.3
    ours, theirs = as_torch(policy, a), as_torch(policy, b)
    actions = ours.sample()
    torch.testing.assert_close(policy.logprobs(a, actions), ours.log_prob(actions))
    torch.testing.assert_close(policy.entropy(a), ours.entropy())
    torch.testing.assert_close(policy.kl(a, b), kl_divergence(ours, theirs))


@pytest.mark.parametrize("which", [0, 1, 2])
def test_kl_of_a_policy_with_itself_is_an_exact_zero_with_zero_gradient(which):
    policy = policies()[which]
    outputs = policy(torch.randn(5, 3))
    kl = policy.kl(outputs.detach(), outputs)
    assert torch.equal(kl, torch.zeros(5))
    slopes = torch.autograd.grad(kl.sum(), list(policy.parameters()))
    assert max(float(slope.abs().max()) for slope in slopes) < 1e-6


def test_numpy_forward_equals_torch_and_sees_trained_weights_at_once():
    torch.manual_seed(0)
    network, rows = mlp(3, (16, 16), 4, gain=1.0), torch.randn(9, 3)
    np.testing.assert_allclose(
        forward_numpy(network, rows.numpy()), network(rows).detach().numpy(), atol=1e-6
    )
    before = forward_numpy(network, rows.numpy())
    optimizer = torch.optim.Adam(network.parameters(), lr=0.1, fused=True)
    network(rows).sum().backward()
    optimizer.step()
    after = forward_numpy(network, rows.numpy())
    assert np.abs(after - before).max() > 0.1
    np.testing.assert_allclose(after, network(rows).detach().numpy(), atol=1e-5)


def test_categorical_samples_follow_the_softmax_and_greedy_takes_the_most_likely():
    policy = policies()[0]
    row = np.array([[0.2, -0.5, 0.9]], np.float32)
    shares = policy(torch.from_numpy(row)).softmax(1)[0].detach().numpy()
    drawn = policy.act(np.repeat(row, 20_000, 0), np.random.default_rng(0))
    observed = np.bincount(drawn, minlength=4) / 20_000
    assert np.abs(observed - shares).max() < 4 * math.sqrt(0.25 / 20_000)
    assert policy.act(row, None)[0] == shares.argmax()


@pytest.mark.parametrize("which", [1, 2])
def test_gaussian_samples_have_the_stated_mean_and_deviation(which):
    policy = policies()[which]
    row = np.array([[0.2, -0.5, 0.9]], np.float32)
    means, log_stds = policy(torch.from_numpy(row)).detach().chunk(2, 1)
    drawn = policy.act(np.repeat(row, 20_000, 0), np.random.default_rng(0))
    np.testing.assert_allclose(drawn.mean(0), means[0], atol=0.03)
    np.testing.assert_allclose(drawn.std(0), log_stds[0].exp(), rtol=0.03)
    np.testing.assert_allclose(policy.act(row, None), means, atol=1e-6)


def test_state_dependent_noise_is_a_line_in_the_features_kept_for_hold_steps_and_each_environment_has_its_own():
    policy, rng = policies()[2], np.random.default_rng(0)
    rows = np.repeat(np.array([[0.2, -0.5, 0.9]], np.float32), 2, 0)
    noise = [policy.choose(rows, rng) - policy.choose(rows, None) for _ in range(6)]
    np.testing.assert_array_equal(noise[0], noise[1])
    np.testing.assert_array_equal(noise[0], noise[2])
    np.testing.assert_array_equal(noise[3], noise[5])
    assert np.abs(noise[3] - noise[2]).min() > 1e-3
    assert np.abs(noise[0][0] - noise[0][1]).min() > 1e-3
    # Features twice as long: the noise doubles, for the draw is the same.
    with torch.no_grad():
        policy.network[0].weight.zero_()
        policy.network[0].bias.copy_(torch.full((8,), 0.1).atanh())
        once = policy.choose(rows, rng) - policy.choose(rows, None)
        policy.network[0].bias.copy_(torch.full((8,), 0.2).atanh())
        twice = policy.choose(rows, rng) - policy.choose(rows, None)
    np.testing.assert_allclose(twice, 2 * once, rtol=1e-4)


def test_the_variance_of_state_dependent_noise_by_hand_and_no_gradient_of_it_to_the_features():
    policy = StateNoisePolicy(Encoder(BOX), 1, hidden=(2,), log_std=0.0).double()
    with torch.no_grad():
        policy.network[0].weight.zero_()
        policy.network[0].bias.copy_(torch.tensor([0.6, -0.8]).atanh())
        policy.log_std_HA.copy_(torch.tensor([[0.0], [math.log(2)]]))
    log_std = policy(torch.zeros(1, 3).double())[0, 1]
    assert log_std.item() == pytest.approx(0.5 * math.log(0.6**2 * 1 + 0.8**2 * 4), abs=1e-5)
    slopes = torch.autograd.grad(log_std, list(policy.parameters()), allow_unused=True)
    named = dict(zip([name for name, _ in policy.named_parameters()], slopes, strict=True))
    assert {name for name, slope in named.items() if slope is not None and slope.any()} == {
        "log_std_HA"
    }


def test_without_hidden_layers_the_noise_follows_the_observation():
    policy = StateNoisePolicy(Encoder(BOX), 1, hidden=(), log_std=0.0)
    log_std = policy(torch.tensor([[3.0, 0.0, -4.0]]))[0, 1]
    assert log_std.item() == pytest.approx(math.log(5), abs=1e-5)


def test_layers_start_orthogonal_with_the_stated_gain():
    network = mlp(5, (5, 5), 5, gain=0.01)
    for layer, gain in zip(network[::2], (2**0.5, 2**0.5, 0.01), strict=True):
        product = layer.weight @ layer.weight.T
        torch.testing.assert_close(product, gain**2 * torch.eye(5), atol=1e-5, rtol=0)
        assert not layer.bias.any()


def test_actions_that_do_not_start_at_zero_are_shifted_back():
    policy = build_policy(BOX, spaces.Discrete(3, start=-1), hidden=(4,))
    actions = policy.act(np.zeros((50, 3), np.float32), np.random.default_rng(0))
    assert set(actions.tolist()) == {-1, 0, 1}
    outputs = policy(torch.zeros(50, 3))
    torch.testing.assert_close(
        policy.logprobs(outputs, torch.from_numpy(actions)).exp().mean(), torch.tensor(1 / 3)
    )


def test_discrete_observations_become_one_hot_rows():
    encoder = Encoder(spaces.Discrete(4, start=1))
    np.testing.assert_array_equal(encoder.raw(np.array([1, 4])), [[1, 0, 0, 0], [0, 0, 0, 1]])


def test_scaling_shifts_divides_and_limits():
    encoder = Encoder(BOX)
    rows = np.array([[1.0, 2.0, 300.0]], np.float32)
    np.testing.assert_array_equal(encoder.rescale(rows), rows)
    encoder.set_scale(np.array([1.0, 0.0, 0.0]), np.array([1.0, 4.0, 1.0]))
    np.testing.assert_allclose(encoder.rescale(rows), [[0.0, 0.5, 10.0]])


def test_unknown_spaces_are_refused_by_name():
    with pytest.raises(ValueError, match="only Box and Discrete observations"):
        Encoder(spaces.MultiBinary(3))
    with pytest.raises(ValueError, match="only Discrete and one-dimensional Box actions"):
        build_policy(BOX, spaces.MultiDiscrete([2, 2]))


def test_critic_gives_one_value_per_row():
    assert Critic(3, hidden=(4,))(torch.zeros(6, 3)).shape == (6,)
