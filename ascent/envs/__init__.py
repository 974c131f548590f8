"""What a prompt talks to: nothing, tools, or a game. Found by name; they speak text. No torch."""

from ascent.envs.registry import Family, find
from ascent.sandbox.timeouts import within

__all__ = ["Family", "find", "within"]
