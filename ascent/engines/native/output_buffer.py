"""What each running row has drawn so far, on the host: one line a row, written many rows at a time.

Axes: B rows, K the lines that a look at the device brings, M the longest completion.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ascent.engines.native.scheduler import Sequence


class OutputBuffer:
    """`made` counts the tokens of each row. `routes`, where they are recorded: how they look for one token."""

    def __init__(self, rows: int, routes: NDArray[Any] | None = None) -> None:
        self.made = np.zeros(rows, dtype=np.int64)
        self._stores: dict[str, NDArray[Any]] = {
            "made": np.zeros((rows, 0), dtype=np.int32),
            "versions": np.zeros((rows, 0), dtype=np.int32),
            "logprobs": np.zeros((rows, 0), dtype=np.float32),
            "log_mass": np.zeros((rows, 0), dtype=np.float32),
        }
        if routes is not None:
            self._stores["experts"] = np.zeros((rows, 0, *routes.shape), dtype=routes.dtype)

    def reserve(self, longest: int) -> None:
        """Room for completions of this many tokens."""
        more = longest - self._stores["made"].shape[1]
        if more > 0:
            for name, store in self._stores.items():
                self._stores[name] = np.pad(store, ((0, 0), (0, more), *[(0, 0)] * (store.ndim - 2)))

    def start(self, row: int, sequence: Sequence) -> None:
        """A row begins with what its sequence drew before it was preempted: mostly nothing."""
        self.made[row] = len(sequence.made)
        for name, store in self._stores.items() if sequence.made else ():
            store[row, : len(sequence.made)] = getattr(sequence, name)

    def append(self, drawn: dict[str, NDArray[Any]], first: NDArray[Any], counts: NDArray[Any], version: int) -> None:
        """`drawn` holds (K, B) arrays; row b gets its lines first[b] to first[b] + counts[b]."""
        for line in range(int((first + counts).max(initial=0))):
            rows = np.flatnonzero((first <= line) & (line < first + counts))
            places = self.made[rows] + line - first[rows]
            for name, store in self._stores.items():
                store[rows, places] = version if name == "versions" else drawn[name][line, rows]
        self.made[: len(counts)] += counts

    def move(self, source: int, target: int) -> None:
        self.made[target] = self.made[source]
        for store in self._stores.values():
            store[target, : self.made[source]] = store[source, : self.made[source]]

    def tokens(self, row: int) -> list[int]:
        tokens: list[int] = self._stores["made"][row, : self.made[row]].tolist()
        return tokens

    def save(self, row: int, sequence: Sequence) -> None:
        """Hand a row's tokens to its sequence."""
        for name, store in self._stores.items():
            own = store[row, : self.made[row]]
            setattr(sequence, name, own.copy() if name == "experts" else own.tolist())
