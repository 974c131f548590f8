"""Classic RL on Gymnasium: maze, Q-learning, DQN, policy gradients, TRPO, PPO, and Monte Carlo estimation.

Importing anything from here registers the maze as the environment `ascent/Maze-v0`.
"""

from __future__ import annotations

import gymnasium

gymnasium.register(
    id="ascent/Maze-v0", entry_point="ascent.classic.maze:Maze", max_episode_steps=100
)
