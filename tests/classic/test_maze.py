"""The maze: its rules by hand, its exact model against its own steps, bad maps, and both drawings."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import ascent.classic  # noqa: F401 - registers the maze
from ascent.classic.maze import AGENT, COLORS, SMALL, Grid, Maze, draw_arrows, draw_rgb, draw_text

UP, RIGHT, DOWN, LEFT = range(4)
WIDE = """
S..#T
.#..G
.....
"""


def walk(env, actions):
    env.reset(seed=0)
    return [env.step(action) for action in actions]


def test_gymnasium_finds_no_fault():
    check_env(gymnasium.make("ascent/Maze-v0", slip=0.1, render_mode="rgb_array").unwrapped)


def test_right_down_right_reaches_the_goal():
    steps = walk(Maze(), [RIGHT, DOWN, RIGHT])
    assert [step[0] for step in steps] == [1, 4, 5]
    assert [step[1] for step in steps] == [0.0, 0.0, 10.0]
    assert [step[2] for step in steps] == [False, False, True]


def test_right_right_is_the_trap():
    _, (cell, reward, terminated, truncated, _) = walk(Maze(), [RIGHT, RIGHT])
    assert (cell, reward, terminated, truncated) == (2, -10.0, True, False)


def test_walls_and_edges_leave_you_where_you_are():
    assert [step[0] for step in walk(Maze(), [UP, LEFT, DOWN])] == [0, 0, 0]


def test_every_move_adds_the_step_reward():
    steps = walk(Maze(step_reward=-1.0), [UP, RIGHT, DOWN, RIGHT])
    assert [step[1] for step in steps] == [-1.0, -1.0, -1.0, 9.0]


def test_the_time_limit_truncates_and_does_not_terminate():
    env = gymnasium.make("ascent/Maze-v0", max_episode_steps=5)
    steps = walk(env, [LEFT] * 5)
    assert [step[2] for step in steps] == [False] * 5
    assert [step[3] for step in steps] == [False] * 4 + [True]


def test_any_size_from_text():
    grid = Grid.parse(WIDE)
    assert (grid.height, grid.width, grid.start) == (3, 5, 0)
    assert grid.after(2, RIGHT) == 2
    assert grid.after(2, DOWN) == 7
    assert grid.after(14, DOWN) == 14


def test_the_model_agrees_with_ten_thousand_steps():
    env = Maze(slip=0.3, step_reward=-0.5)
    model = env.model()
    env.reset(seed=1)
    rng = np.random.default_rng(1)
    seen = np.zeros_like(model.next_SAN)
    paid = np.zeros_like(model.rewards_SA)
    for _ in range(10_000):
        cell, action = env.cell, int(rng.integers(4))
        after, reward, terminated, _, _ = env.step(action)
        seen[cell, action, after] += 1
        paid[cell, action] += reward
        assert terminated == model.terminal_S[after]
        if terminated:
            env.reset()
    count = seen.sum(-1)
    for cell, action in zip(*np.nonzero(count > 200), strict=True):
        n = count[cell, action]
        # Five standard errors of a share, at most .5 / sqrt(n); rewards span 20.
        assert np.abs(seen[cell, action] / n - model.next_SAN[cell, action]).max() < 2.5 / np.sqrt(
            n
        )
        assert abs(paid[cell, action] / n - model.rewards_SA[cell, action]) < 50 / np.sqrt(n)
    assert (count > 200).sum() == 12  # all four actions of all three cells one can stand on


def test_slips_go_sideways_equally_often():
    chances = Maze(slip=0.2).model().next_SAN[1, DOWN]
    # Down from the cell under the top edge: down to 4, sideways right into the trap and left to the start.
    assert chances == pytest.approx([0.1, 0, 0.1, 0, 0.8, 0])


def test_text_and_pixels():
    env = Maze(render_mode="ansi")
    walk(env, [RIGHT])
    assert env.render() == "S@T\n#.G"
    image = draw_rgb(Grid.parse(SMALL), agent=1, size=20)
    assert image.shape == (40, 60, 3)
    assert tuple(image[10, 30]) == AGENT
    assert tuple(image[30, 50]) == COLORS["G"]
    assert tuple(image[30, 10]) == COLORS["#"]
    assert draw_text(Grid.parse(WIDE)) == WIDE.strip()


def test_arrows():
    policy_SA = np.zeros((6, 4))
    policy_SA[0, RIGHT] = policy_SA[1, DOWN] = policy_SA[4, RIGHT] = 1
    assert draw_arrows(Grid.parse(SMALL), policy_SA) == "→↓T\n#→G"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("S.\n.", "row 1 .* has 1 cells and row 0 has 2"),
        ("SxG", "holds 'x'; use only"),
        ("..G", "has 0 starts"),
        ("SSG", "has 2 starts"),
        ("S..", "no goal"),
        ("S#G", "no goal can be reached"),
        ("STG", "no goal can be reached"),
    ],
)
def test_bad_maps_say_what_is_wrong(text, words):
    with pytest.raises(ValueError, match=words):
        Maze(text)


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ({"slip": 1.0}, "slip=1.0"),
        ({"slip": -0.1}, "slip=-0.1"),
        ({"goal_reward": float("nan")}, "finite"),
        ({"render_mode": "human"}, "render_mode='human'"),
    ],
)
def test_bad_numbers_say_what_is_wrong(numbers, words):
    with pytest.raises(ValueError, match=words):
        Maze(**numbers)


def test_an_action_that_does_not_exist():
    env = Maze()
    env.reset(seed=0)
    with pytest.raises(ValueError, match="action 4"):
        env.step(4)
