"""Rows that read the blocks of a common prompt together while decoding.

Axes: G groups of rows, M members of a group, B rows.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

MEMBERS = 8  # rows of a group, at most


class PrefixGroups(NamedTuple):
    """Rows whose first `lengths_B` tokens are in the same blocks; 0: the row is in no group."""

    members_GM: Tensor  # int32 rows, filled up with -1
    lengths_B: Tensor  # int32
