"""From a config to what runs: the only place that knows both the config and the table of algorithms."""

from ascent.build.plan import Plan, resolve
from ascent.build.rows import find_row

__all__ = ["Plan", "find_row", "resolve"]
