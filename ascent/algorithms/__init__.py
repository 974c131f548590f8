"""THE TABLE: every algorithm is a row of cells. `ascent show algorithms` prints it, docs/algorithms.md is generated."""

from __future__ import annotations

from ascent.algorithms import critics, files, groups, pairs, policies, teachers
from ascent.algorithms.row import SLOTS, VOCABULARY, Row

TABLE: dict[str, Row] = {
    row.name: row for row in (*groups.ROWS, *policies.ROWS, *critics.ROWS, *files.ROWS, *pairs.ROWS, *teachers.ROWS)
}
# The two rows we recommend come first.
TABLE = {name: TABLE[name] for name in ("rlvr", "rlhf", *TABLE)}

__all__ = ["SLOTS", "TABLE", "VOCABULARY", "Row"]
