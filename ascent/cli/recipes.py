"""`ascent recipes`."""

from __future__ import annotations

from ascent.cli.lines import echo
from ascent.cli.options import say


def recipes() -> None:
    """List the recipes that ship with Ascent."""
    from ascent.config.load import shipped_recipes

    found = shipped_recipes()
    width = max(map(len, found))
    for name, line in found.items():
        echo(f"{name:<{width}}  {line}", hang=width + 2)
    say(
        "every algorithm is a recipe too (ascent show algorithms): ascent train grpo model=MODEL data=DATA"
    )
