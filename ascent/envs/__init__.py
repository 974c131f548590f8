"""Environments of multi-turn rollouts: tools and games, by name."""

from ascent.envs.registry import EnvFactory, find_env
from ascent.sandbox.timeouts import within

__all__ = ["EnvFactory", "find_env", "within"]
