"""Figures: what is drawn is what was computed, and the files stay small."""

from __future__ import annotations

import matplotlib.pyplot as pyplot
import numpy as np
import pytest
from matplotlib.image import imread

from ascent.classic import estimation, plots, q_learning
from ascent.classic.exact import greedy_policy, optimal_values
from ascent.classic.figures import FIGURES, draw
from ascent.classic.maze import Maze


def line(axes, label):
    return next(x for x in axes.get_lines() if x.get_label() == label)


def test_the_clip_is_flat_on_one_side_only():
    positive, negative = plots.clip_objective(low=0.2, high=0.3).axes
    for axes, sign in ((positive, 1.0), (negative, -1.0)):
        ratio, objective = line(axes, "clipped objective").get_data()
        expected = np.minimum(sign * ratio, sign * np.clip(ratio, 0.8, 1.3))
        assert objective == pytest.approx(expected)
        slope = line(axes, "gradient wrt log-prob").get_ydata()
        held = ratio > 1.3 if sign > 0 else ratio < 0.8
        assert slope == pytest.approx(np.where(held, 0, sign * ratio))


def test_the_value_map_shows_every_value_and_arrow():
    env = Maze()
    best = optimal_values(env.model(), gamma=0.99)
    axes = plots.value_map(env.grid, best, greedy_policy(best.q_SA), title="best").axes[0]
    words = {text.get_text() for text in axes.texts}
    assert {"9.80", "9.90", "10.00", "G", "T"} <= words
    arrows = [patch for patch in axes.patches if type(patch).__name__ == "FancyArrow"]
    assert len(arrows) == 3
    with pytest.raises(ValueError, match="one row each"):
        plots.value_map(env.grid, best, np.ones((2, 4)), title="")


def test_table_errors_draws_the_largest_error():
    exact = optimal_values(Maze().model(), gamma=0.99).q_SA
    run = q_learning.train("ascent/Maze-v0", q_learning.Settings(steps=400), seed=0, log_every=100)
    drawn = plots.table_errors([run], exact).axes[0].get_lines()[0].get_ydata()
    assert drawn == pytest.approx([np.abs(row["q"] - exact).max() for row in run.history])
    with pytest.raises(ValueError, match="no runs"):
        plots.table_errors([], exact)


def test_spreads_names_every_estimator():
    reports = estimation.demonstrations(samples=4, repetitions=50, seed=0)["off-policy"]
    axes = plots.spreads(reports, title="x").axes[0]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == [
        row.name for row in reversed(reports)
    ]
    with pytest.raises(ValueError, match="different numbers"):
        plots.spreads([reports[0], reports[0]._replace(exact=0.0)], title="x")
    with pytest.raises(ValueError, match="no reports"):
        plots.spreads([], title="x")


# The others repeat these paths with more samples; `maze-large` is the largest file of all.
@pytest.mark.parametrize("name", ["maze-best", "maze-large", "clip", "control-variate"])
def test_figures_are_small_files(name, tmp_path):
    open_before = pyplot.get_fignums()
    path = draw(name, tmp_path)
    assert path == tmp_path / f"{name}.png" and path.stat().st_size < 60_000
    assert imread(path).shape[0] > 100
    assert pyplot.get_fignums() == open_before


def test_an_unknown_figure_and_a_wrong_ending(tmp_path):
    with pytest.raises(ValueError, match="no figure is called 'maze-bets'; did you mean maze-best"):
        draw("maze-bets", tmp_path)
    with pytest.raises(ValueError, match=r"not a \.png"):
        plots.save(FIGURES["clip"].make(), tmp_path / "clip.svg")
