"""Preloaded by the fork server: whatever a run imports late is imported once here, and not in every child.

Nothing is trained: a process that has run a backward pass cannot fork children that run one.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from ascent.api.train import assemble
from ascent.checkpoints.save import save
from ascent.config.validate import validate
from ascent.config.yaml_text import read
from ascent.plan.resolve import resolve
from tests.end_to_end.crashing import recipe

with tempfile.TemporaryDirectory() as folder:
    for row in ("dpo", "reward_model"):
        plan = resolve(validate(read(recipe(row), "warm")))
        parts = assemble(plan, Path(folder) / row)
        save(Path(folder) / row / "checkpoints", 1, {}, {"model": parts.model.save})
