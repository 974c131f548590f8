"""From a config to what runs: the only place that knows both the config and the table of algorithms."""

from ascent.build.plan import Plan, find_row, resolve

__all__ = ["Plan", "find_row", "resolve"]
