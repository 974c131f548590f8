"""THE TABLE: every algorithm is a row of cells. `ascent show algorithms` prints it, docs/algorithms.md is generated."""

from __future__ import annotations

from ascent.algorithms import distillation, dpo_variants, grpo, grpo_variants, offline, ppo
from ascent.algorithms.row import SLOTS, VOCABULARY, Row

TABLE: dict[str, Row] = {
    row.name: row
    for row in (
        *grpo.ROWS,
        *grpo_variants.ROWS,
        *ppo.ROWS,
        *offline.ROWS,
        *dpo_variants.ROWS,
        *distillation.ROWS,
    )
}
# The two rows we recommend come first.
TABLE = {name: TABLE[name] for name in ("rlvr", "rlhf", *TABLE)}

__all__ = ["SLOTS", "TABLE", "VOCABULARY", "Row"]
