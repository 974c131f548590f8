import math

import pytest
import torch

from ascent.classic import variance


def test_describe_finds_a_known_variance_and_a_known_bias():
    torch.manual_seed(0)
    noise = torch.randn(4000, 5, dtype=torch.float64)
    other = torch.randn(4000, 5, dtype=torch.float64)
    shift = torch.tensor([0.3, 0.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    plain = variance.describe(2 * noise + 1, noise + 1)
    assert plain.total_variance == pytest.approx(20, rel=0.05)
    assert plain.mean_norm == pytest.approx(math.sqrt(5), rel=0.05)
    assert abs(plain.squared_bias) < 0.01
    assert plain.largest_z < variance.bound_on_largest_z(5)
    biased = variance.describe(noise + other + shift, noise)
    assert biased.squared_bias == pytest.approx(0.09, rel=0.2)
    assert biased.largest_z > variance.bound_on_largest_z(5)
    assert biased.inside < 1


def test_the_bound_is_the_normal_quantile():
    assert variance.bound_on_largest_z(1, 0.05) == pytest.approx(1.959964, abs=1e-5)
    assert variance.bound_on_largest_z(100) > variance.bound_on_largest_z(10)


def test_the_interval_of_a_variance_ratio_holds_the_truth():
    torch.manual_seed(0)
    a, b = 2 * torch.randn(500, 3, dtype=torch.float64), torch.randn(500, 3, dtype=torch.float64)
    low, high = variance.ratio_interval(a, b, resamples=200)
    assert 3.2 < low < 4 < high < 5


def test_on_cartpole_the_unbiased_agree_the_biased_do_not_and_variance_falls_in_order():
    settings = variance.Settings(batches=120, episodes=16, critic_episodes=160, lams=(0.0, 1.0))
    gradients = variance.sample_gradients("CartPole-v1", settings, seed=0)
    found = {
        name: variance.describe(x, gradients[variance.REFERENCE]) for name, x in gradients.items()
    }
    bound = variance.bound_on_largest_z(gradients["vpg"].shape[1])
    for name in variance.UNBIASED:
        assert found[name].largest_z < bound, name
    assert found["actor_critic"].largest_z > bound
    assert torch.allclose(gradients["gae lam=0"], gradients["actor_critic"], atol=1e-3)
    assert torch.allclose(gradients["gae lam=1"], gradients["vpg"], atol=1e-3)
    spread = {name: found[name].total_variance for name in found}
    assert spread["basic"] > 2 * spread["reward_to_go"]
    assert spread["reward_to_go"] > spread["baseline"] > spread["vpg"] > spread["actor_critic"]


def test_bad_settings_are_refused_with_value_and_rule():
    for wrong, words in (
        ({"batches": 1}, "batches=1, but a variance needs at least 2"),
        ({"lams": (0.5, 1.5)}, "every lam lies between 0 and 1"),
        ({"episodes": 0}, "episodes=0"),
    ):
        with pytest.raises(ValueError, match=words):
            variance.Settings(**wrong)


@pytest.mark.learning
def test_the_full_table_orders_variances_beyond_their_intervals_and_separates_bias():
    settings = variance.Settings(
        batches=600, episodes=16, critic_episodes=320, lams=(0.0, 0.5, 0.9, 1.0)
    )
    gradients = variance.sample_gradients("CartPole-v1", settings, seed=1)
    found = {
        name: variance.describe(x, gradients[variance.REFERENCE]) for name, x in gradients.items()
    }
    bound = variance.bound_on_largest_z(gradients["vpg"].shape[1])
    assert max(found[name].largest_z for name in variance.UNBIASED) < bound
    assert min(found[name].largest_z for name in ("actor_critic", "gae lam=0.5")) > bound
    for more, less in (
        ("basic", "reward_to_go"),
        ("reward_to_go", "baseline"),
        ("baseline", "vpg"),
    ):
        assert variance.ratio_interval(gradients[more], gradients[less])[0] > 1, (more, less)
    assert (
        found["gae lam=0"].squared_bias
        > found["gae lam=0.5"].squared_bias
        > found["gae lam=0.9"].squared_bias
    )
