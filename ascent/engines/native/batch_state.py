"""What every running row needs on the device: one block of 32-bit words and the table of its pages.

The host writes a row when it starts; the device moves token, position and `done` on by itself, several steps at a time.
On a CPU both are the same memory; on CUDA `push` and `pull` are one copy each.

Axes: F fields, B rows, P pages of a row, S stop ids.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ascent.records import Request

MOST_STOPS = 8
NO_TOKEN = -1

WHOLE = ("token", "stored", "position", "limit", "done", "greedy", "word0", "word1", "least", "top_k")
REAL = ("temperature", "top_p", "min_p")
FIELDS = {name: place for place, name in enumerate((*WHOLE, *REAL))}
STOPS = slice(len(FIELDS), len(FIELDS) + MOST_STOPS)


class SamplingState(NamedTuple):
    """What the rows ask for, one entry each."""

    temperature_B: Tensor
    greedy_B: Tensor
    word0_B: Tensor
    word1_B: Tensor
    position_B: Tensor
    least_B: Tensor
    top_k_B: Tensor
    top_p_B: Tensor
    min_p_B: Tensor
    stops_BS: Tensor


class BatchState:
    """Row fields: `token` waits to be read, `stored` tokens are in the pool, `position` counts drawn tokens (and the
    noise), `limit` ends it, no stop id is drawn before `least`."""

    def __init__(self, count: int, pages: int, device: torch.device) -> None:
        self.count, self.device = count, device
        cuda = device.type == "cuda"
        self._host = torch.zeros(STOPS.stop, count, dtype=torch.int32, pin_memory=cuda)
        self._host_table = torch.zeros(count, pages, dtype=torch.int32, pin_memory=cuda)
        self.words: NDArray[np.int32] = self._host.numpy()
        self.table: NDArray[np.int32] = self._host_table.numpy()
        self.block_FB = self._host.to(device)  # the same memory on a CPU
        self.table_BP = self._host_table.to(device)
        self.stops_BS = self.block_FB[STOPS].T
        whole = {name: self.block_FB[FIELDS[name]] for name in FIELDS}
        self._fields = {name: row.view(torch.float32) if name in REAL else row for name, row in whole.items()}
        self.clear(range(count))

    def __getitem__(self, name: str) -> Tensor:
        """A field on the device."""
        return self._fields[name]

    def host(self, name: str) -> NDArray[Any]:
        """A field on the host."""
        row = self.words[FIELDS[name]]
        return row.view(np.float32) if name in REAL else row

    def start(self, row: int, request: Request, stops: frozenset[int], words: tuple[int, int], made: int) -> None:
        """Fill a row for a request that has drawn `made` tokens and whose prompt is in the pool."""
        values = {
            "token": 0, "stored": len(request.tokens) + made, "position": made, "limit": request.max_new_tokens,
            "done": 0, "greedy": request.greedy, "least": request.min_new_tokens, "top_k": request.top_k,
            "temperature": request.temperature, "top_p": request.top_p, "min_p": request.min_p,
        }  # fmt: skip
        for name, value in values.items():
            self.host(name)[row] = value
        for name, word in zip(("word0", "word1"), words, strict=True):
            self.words[FIELDS[name]].view(np.uint32)[row] = word
        self.words[STOPS, row] = NO_TOKEN
        ids = sorted({*stops, *request.stop_ids})
        self.words[STOPS, row][: len(ids)] = ids
        self.table[row] = 0

    def move(self, source: int, target: int) -> None:
        """One row takes the place of another."""
        self.words[:, target] = self.words[:, source]
        self.table[target] = self.table[source]

    def clear(self, rows: range) -> None:
        """Rows that only fill the batch up: done, at page 0."""
        self.words[:, rows] = 0
        self.host("done")[rows] = 1
        self.host("temperature")[rows] = 1
        self.host("top_p")[rows] = 1
        self.words[STOPS, rows] = NO_TOKEN
        self.table[rows] = 0

    def push(self) -> None:
        """Host to device; what the device has moved on since the last `pull` is overwritten."""
        if self.device.type == "cuda":
            self.block_FB.copy_(self._host, non_blocking=True)

    def push_table(self) -> None:
        if self.device.type == "cuda":
            self.table_BP.copy_(self._host_table, non_blocking=True)

    def pull(self) -> None:
        if self.device.type == "cuda":
            self._host.copy_(self.block_FB)


def sampling_state(rows: BatchState, which: Tensor | slice) -> SamplingState:
    names = ("temperature", "greedy", "word0", "word1", "position", "least", "top_k", "top_p", "min_p")
    return SamplingState._make([*(rows[name][which] for name in names), rows.stops_BS[which]])
