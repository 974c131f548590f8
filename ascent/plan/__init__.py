"""From a recipe and the table of algorithms to a plan: what a run does, with nothing in it that has no effect."""

from ascent.plan.load import load_config
from ascent.plan.resolve import Plan, resolve
from ascent.plan.rows import find_row

__all__ = ["Plan", "find_row", "load_config", "resolve"]
