"""Small studies of rows that learn from pairs of fresh answers, on the task and from the start of `policies`."""

from __future__ import annotations

from pathlib import Path

from ascent.algorithms import TABLE
from tests.end_to_end import policies
from tests.end_to_end.policies import Practice

# As many answers a step as every row of `policies` has; settings were chosen on seed 0.
TWO = Practice(group_size=2)
ROWS: dict[str, Practice] = {
    name: TWO for name, row in TABLE.items() if row.source == "fresh_pairs"
}


def practise(root: Path, row: str, seed: int) -> dict[str, float]:
    """Held-out accuracy of drawn answers, before and after."""
    return policies.practise(root, row, seed, ROWS[row])


def coin(root: Path, row: str, seed: int) -> dict[str, float]:
    """The same where a fair coin says which of two answers is better."""
    start = policies.imitate(root, TWO.task)
    folder = root / f"{row}-{seed}-coin"
    recipe = policies.recipe_of(row, ROWS[row], start, seed)
    policies.quietly(recipe | {"rewards": [{"use": f"{policies.REWARDED}:shuffled"}]}, folder)
    before, after = (policies.accuracy(each, ROWS[row]) for each in (start, folder))
    return {"before": before, "after": after}
