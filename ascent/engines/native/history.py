"""What each running row has drawn so far, on the host: one line a row, written many rows at a time.

Axes: B rows, K the lines that a look at the device brings, M the longest completion.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ascent.engines.native.scheduler import Sequence


class History:
    """`made` counts the tokens of each row."""

    def __init__(self, rows: int) -> None:
        self.made = np.zeros(rows, dtype=np.int64)
        self._tokens = np.zeros((rows, 0), dtype=np.int32)
        self._versions = np.zeros((rows, 0), dtype=np.int32)
        self._logprobs = np.zeros((rows, 0), dtype=np.float32)
        self._log_mass = np.zeros((rows, 0), dtype=np.float32)

    def _stores(self) -> dict[str, NDArray[Any]]:
        return {
            "made": self._tokens, "versions": self._versions, "logprobs": self._logprobs, "log_mass": self._log_mass
        }  # fmt: skip

    def reserve(self, longest: int) -> None:
        """Room for completions of this many tokens."""
        more = longest - self._tokens.shape[1]
        if more > 0:
            self._tokens, self._versions, self._logprobs, self._log_mass = (
                np.pad(store, ((0, 0), (0, more))) for store in self._stores().values()
            )

    def start(self, row: int, sequence: Sequence) -> None:
        """A row begins with what its sequence drew before it was preempted: mostly nothing."""
        self.made[row] = len(sequence.made)
        for name, store in self._stores().items():
            store[row, : len(sequence.made)] = getattr(sequence, name)

    def append(self, drawn: dict[str, NDArray[Any]], first: NDArray[Any], counts: NDArray[Any], version: int) -> None:
        """`drawn` holds (K, B) arrays; row b gets its lines first[b] to first[b] + counts[b]."""
        for line in range(int((first + counts).max(initial=0))):
            rows = np.flatnonzero((first <= line) & (line < first + counts))
            places = self.made[rows] + line - first[rows]
            for name, store in self._stores().items():
                store[rows, places] = version if name == "versions" else drawn[name][line, rows]
        self.made[: len(counts)] += counts

    def move(self, source: int, target: int) -> None:
        self.made[target] = self.made[source]
        for store in self._stores().values():
            store[target, : self.made[source]] = store[source, : self.made[source]]

    def tokens(self, row: int) -> list[int]:
        tokens: list[int] = self._tokens[row, : self.made[row]].tolist()
        return tokens

    def save(self, row: int, sequence: Sequence) -> None:
        """Hand a row's tokens to its sequence."""
        for name, store in self._stores().items():
            setattr(sequence, name, store[row, : self.made[row]].tolist())
