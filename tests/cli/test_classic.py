"""`ascent classic`: what each command prints, how settings are read, and that help costs no torch."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from ascent.classic import dqn, q_learning
from ascent.cli import classic


def run(*words):
    result = CliRunner().invoke(classic.app, list(words))
    if isinstance(result.exception, ValueError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_the_maze_prints_its_values_and_arrows(tmp_path):
    output = run("maze", "--gamma", "0.9", "--figure", str(tmp_path / "maze.png"))
    assert "@.T\n#.G" in output and "→↓T\n#→G" in output
    assert "8.100    9.000" in output
    assert (tmp_path / "maze.png").stat().st_size > 1000


def test_a_map_from_a_file_and_the_random_policy(tmp_path):
    (tmp_path / "corridor.txt").write_text("S.G\n")
    output = run("maze", "--map", str(tmp_path / "corridor.txt"), "--random")
    assert "@.G" in output and "random policy" in output


def test_q_learning_reports_its_error():
    output = run("q-learning", "steps=8000", "--seeds", "2")
    errors = [float(line.split("|Q - Q*|")[1].split()[0]) for line in output.splitlines()]
    assert len(errors) == 2 and max(errors) < 1e-2


@pytest.mark.parametrize(
    ("method", "setting"),
    [
        ("dqn", "warmup=100"),
        ("policy-gradient", "gamma=0.9"),
        ("trpo", "gamma=0.9"),
        ("ppo", "gamma=0.9"),
    ],
)
def test_methods_train_and_judge(method, setting):
    output = run(
        method, "steps=300", setting, "--env", "ascent/Maze-v0", "--episodes", "2", "--seed", "1"
    )
    assert "final policy, 2 fresh episodes: mean return" in output


def test_compare_prints_one_row_per_method(tmp_path):
    output = run(
        "compare",
        "dqn",
        "ppo",
        "--env",
        "ascent/Maze-v0",
        "--steps",
        "1500",
        "--episodes",
        "2",
        "--figure",
        str(tmp_path / "curves.png"),
    )
    assert [row.split()[0] for row in output.splitlines()[1:3]] == ["dqn", "ppo"]
    assert (tmp_path / "curves.png").stat().st_size > 1000


def test_estimation_prints_every_comparison():
    output = run("estimation", "--repetitions", "200")
    for name in ("kl", "control-variate", "antithetic", "baselines", "importance", "off-policy"):
        assert f"\n{name}, exact" in "\n" + output
    assert "k3" in output and "leave one out" in output


def test_plots_lists_and_writes(tmp_path):
    assert "maze-best" in run("plots", "--list")
    assert "wrote" in run("plots", "clip", "--out", str(tmp_path))
    assert (tmp_path / "clip.png").exists()


def test_settings_are_read_as_their_defaults_are():
    chosen = classic.choose_settings(
        dqn.Settings, ["hidden=(32,16)", "gamma=1", "double=false", "loss=mse", "steps=9000"]
    )
    assert (chosen.hidden, chosen.gamma, chosen.double, chosen.loss, chosen.steps) == (
        (32, 16),
        1.0,
        False,
        "mse",
        9000,
    )
    assert classic.choose_settings(dqn.Settings, ["hidden=32"]).hidden == (32,)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["steps"], "not KEY=VALUE"),
        (["stepps=3"], "did you mean steps"),
        (["steps=1.5"], "must be like its default, 20000"),
        (["steps=many"], "cannot be read"),
        (["gamma=2"], "gamma=2.0"),
    ],
)
def test_bad_settings(words, message):
    with pytest.raises(ValueError, match=message):
        classic.choose_settings(q_learning.Settings, words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["maze", "--map", "nowhere.txt"], "is not a file"),
        (["compare", "pp0"], "did you mean ppo"),
        (["q-learning", "--seeds", "0"], "at least 1 run"),
        (["dqn", "--env", "CartPole-v9", "steps=2000"], "CartPole"),
        (["plots", "nothing"], "no figure is called"),
    ],
)
def test_mistakes_are_named(words, message):
    with pytest.raises(ValueError, match=message):
        run(*words)


def test_importing_the_command_costs_no_torch():
    heavy = ("torch", "numpy", "gymnasium", "matplotlib")
    code = (
        f"import sys, ascent.cli.classic; print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
