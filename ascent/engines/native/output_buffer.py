"""The tokens sampled so far for each running row, on the host, written for many rows at a time.

Axes: B rows, K decode steps of a host sync.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ascent.engines.native.scheduler import Sequence


class OutputBuffer:
    """`lengths` counts the tokens of each row. `experts` is an example of one token's experts, if they are recorded."""

    def __init__(self, max_rows: int, experts: NDArray[Any] | None = None) -> None:
        self.lengths = np.zeros(max_rows, dtype=np.int64)
        self._columns: dict[str, NDArray[Any]] = {
            "output_tokens": np.zeros((max_rows, 0), dtype=np.int32),
            "versions": np.zeros((max_rows, 0), dtype=np.int32),
            "logprobs": np.zeros((max_rows, 0), dtype=np.float32),
            "log_mass": np.zeros((max_rows, 0), dtype=np.float32),
        }
        if experts is not None:
            self._columns["experts"] = np.zeros((max_rows, 0, *experts.shape), dtype=experts.dtype)

    def reserve(self, max_len: int) -> None:
        """Make room for completions of this many tokens."""
        more = max_len - self._columns["output_tokens"].shape[1]
        if more > 0:
            for name, column in self._columns.items():
                self._columns[name] = np.pad(
                    column, ((0, 0), (0, more), *[(0, 0)] * (column.ndim - 2))
                )

    def start(self, row: int, sequence: Sequence) -> None:
        """Fill a row with its sequence's output from before preemption, usually none."""
        self.lengths[row] = len(sequence.output_tokens)
        for name, column in self._columns.items():
            if len(saved := getattr(sequence, name)):
                column[row, : self.lengths[row]] = saved

    def append(
        self,
        outputs: dict[str, NDArray[Any]],
        first: NDArray[Any],
        counts: NDArray[Any],
        version: int,
    ) -> None:
        """`outputs` holds (K, B) arrays; row b gets its steps first[b] to first[b] + counts[b]."""
        rows = np.repeat(np.arange(len(counts)), counts)
        within = np.arange(len(rows)) - np.repeat(
            np.cumsum(counts) - counts, counts
        )  # 0, 1, ... of each row
        steps, positions = first[rows] + within, self.lengths[rows] + within
        for name, column in self._columns.items():
            column[rows, positions] = version if name == "versions" else outputs[name][steps, rows]
        self.lengths[: len(counts)] += counts

    def move(self, source: int, target: int) -> None:
        self.lengths[target] = self.lengths[source]
        for column in self._columns.values():
            column[target, : self.lengths[source]] = column[source, : self.lengths[source]]

    def tokens(self, row: int) -> list[int]:
        tokens: list[int] = self._columns["output_tokens"][row, : self.lengths[row]].tolist()
        return tokens

    def logprobs(self, row: int) -> list[float]:
        logprobs: list[float] = self._columns["logprobs"][row, : self.lengths[row]].tolist()
        return logprobs

    def save(self, row: int, sequence: Sequence) -> None:
        """Copy a row's output to its sequence."""
        for name, column in self._columns.items():
            if name == "log_mass" and not sequence.request.truncates:
                continue
            values = column[row, : self.lengths[row]]
            setattr(sequence, name, values.copy() if name == "experts" else values.tolist())
