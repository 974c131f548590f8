import copy

import numpy as np
import pytest
import torch

from ascent.classic import curves, ppo, variance
from ascent.classic.batch import collect_batch
from ascent.classic.descent import FlatAdam
from ascent.classic.result import Result
from ascent.classic.run import start


def result(returns, steps):
    return Result(None, returns, steps, [], 1.0)


def test_a_curve_is_the_mean_of_the_last_episodes_finished_by_then():
    grid = np.array([5, 10, 20, 35, 100])
    found = curves.smoothed(result([1.0, 3.0, 8.0], [10, 20, 30]), grid, window=2)
    np.testing.assert_array_equal(found, [np.nan, 1.0, 2.0, 5.5, 5.5])


def test_a_band_spans_the_runs_where_all_have_data():
    runs = [result([0.0, 2.0], [10, 100]), result([4.0, 4.0], [50, 100])]
    grid, mean, low, high = curves.band(runs, points=10, window=1)
    assert grid[0] == 50 and grid[-1] == 100
    assert (mean[0], low[0], high[0]) == (2.0, 0.0, 4.0)
    assert (mean[-1], low[-1], high[-1]) == (3.0, 2.0, 4.0)


def test_a_run_without_episodes_cannot_be_drawn():
    with pytest.raises(ValueError, match="train for more steps"):
        curves.smoothed(result([], []), np.array([1.0]), 2)
    with pytest.raises(ValueError, match="at least one Result"):
        curves.band([])


def updated():
    settings = ppo.Settings(envs=4, length=128, epochs=8, minibatch=64, lr=3e-3, hidden=(16,))
    run = start("CartPole-v1", settings, seed=0)
    batch, _ = collect_batch(run, settings)
    old = copy.deepcopy(run.policy)
    optimizer = FlatAdam([*run.policy.parameters(), *run.critic.parameters()], lr=3e-3, norm=0.5)
    ppo.improve(run, batch, optimizer, settings, beta=0.0)
    return old, run.policy, batch


def test_interpolation_starts_at_the_old_policy_ends_at_the_new_and_the_clip_is_a_lower_bound():
    old, new, batch = updated()
    before = [p.detach().clone() for p in old.parameters()]
    found = curves.interpolate(old, new, batch, [0.0, 0.5, 1.0, 3.0])
    assert found["kl"][0] == 0
    assert found["cpi"][0] == pytest.approx(found["clipped"][0]) == pytest.approx(0, abs=1e-6)
    assert found["kl"][2] == pytest.approx(ppo.measure(new, batch, clip=0.2)["kl"], rel=1e-3)
    assert 0 < found["kl"][1] < found["kl"][2] < found["kl"][3]
    assert found["cpi"][2] > found["cpi"][0]
    assert all(low <= high + 1e-6 for low, high in zip(found["clipped"], found["cpi"], strict=True))
    assert found["clipped"][3] < found["cpi"][3]
    assert all(torch.equal(a, b) for a, b in zip(before, old.parameters(), strict=True))


def test_figures_are_small_png_files_and_the_same_twice(tmp_path):
    runs = {
        name: [result([1.0, 5.0, 9.0], [10, 20, 30]), result([2.0, 4.0, 6.0], [10, 20, 30])]
        for name in "ab"
    }
    estimate = variance.Estimate(10.0, 1.0, 0.3, 0.5, 2.0, 0.9)
    names = ("basic", "vpg", "actor_critic", "gae lam=0", "gae lam=1")
    drawn = {
        "learning": lambda path: curves.plot_learning(runs, path, title="t", mark=7.0),
        "variance": lambda path: curves.plot_variance(dict.fromkeys(names, estimate), path),
        "interpolation": lambda path: curves.plot_interpolation(
            [0, 1], {"kl": [0, 1], "cpi": [0, 2], "clipped": [0, 1]}, path
        ),
    }
    for name, draw in drawn.items():
        path, again = tmp_path / f"{name}.png", tmp_path / "more" / f"{name}.png"
        draw(path)
        draw(again)
        assert path.read_bytes()[:4] == b"\x89PNG"
        assert 2_000 < path.stat().st_size < 60_000
        assert path.read_bytes() == again.read_bytes()
