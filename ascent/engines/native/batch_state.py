"""The state of the running batch: one array of 32-bit fields per row, and the block table.

The host writes a row when it starts; the device updates token, lengths and `done` by itself for several steps. On a CPU
both share the memory; on CUDA `push` and `pull` are one copy each.

Axes: F fields, B rows, P blocks of a row, S stop ids, G groups of rows that share a prompt, M members of a group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ascent.models.prefix_groups import MEMBERS, PrefixGroups
from ascent.records import Request

MAX_STOP_IDS = 8
NO_TOKEN = -1
MAX_INT32 = 2**31 - 1

INT_FIELDS = (
    "token",
    "cached_len",
    "output_len",
    "max_output_len",
    "done",
    "greedy",
    "key0",
    "key1",
    "min_output_len",
    "top_k",
    "prefix_len",
)
FLOAT_FIELDS = ("temperature", "top_p", "min_p")
FIELDS = {name: index for index, name in enumerate((*INT_FIELDS, *FLOAT_FIELDS))}
STOP_IDS = slice(len(FIELDS), len(FIELDS) + MAX_STOP_IDS)


class SamplingState(NamedTuple):
    """The sampling parameters of a batch, one entry per row. `position` is the output length, which keys the noise."""

    temperature_B: Tensor
    greedy_B: Tensor
    key0_B: Tensor
    key1_B: Tensor
    position_B: Tensor
    min_output_len_B: Tensor
    top_k_B: Tensor
    top_p_B: Tensor
    min_p_B: Tensor
    stop_ids_BS: Tensor


class BatchState:
    """Row fields: `token` is the next input, `cached_len` tokens are in the KV cache, `output_len` tokens are sampled,
    `key0` and `key1` are the request's random key, `prefix_len` tokens are shared with the row's group."""

    def __init__(self, max_rows: int, blocks_per_row: int, device: torch.device) -> None:
        self.max_rows, self.device = max_rows, device
        cuda = device.type == "cuda"
        self._host = torch.zeros(STOP_IDS.stop, max_rows, dtype=torch.int32, pin_memory=cuda)
        self._host_table = torch.zeros(max_rows, blocks_per_row, dtype=torch.int32, pin_memory=cuda)
        self.host_fields: NDArray[np.int32] = self._host.numpy()
        self.block_table: NDArray[np.int32] = self._host_table.numpy()
        self._host_members = torch.full(
            (max_rows // 2, MEMBERS), -1, dtype=torch.int32, pin_memory=cuda
        )
        self._members_GM = self._host_members.to(device)
        self.fields_FB = self._host.to(device)  # the same memory on a CPU
        self.block_table_BP = self._host_table.to(device)
        self.stop_ids_BS = self.fields_FB[STOP_IDS].T
        fields = {name: self.fields_FB[FIELDS[name]] for name in FIELDS}
        self._fields = {
            name: row.view(torch.float32) if name in FLOAT_FIELDS else row
            for name, row in fields.items()
        }
        self.clear(range(max_rows))

    def __getitem__(self, name: str) -> Tensor:
        """A field on the device."""
        return self._fields[name]

    def host(self, name: str) -> NDArray[Any]:
        """A field on the host."""
        row = self.host_fields[FIELDS[name]]
        return row.view(np.float32) if name in FLOAT_FIELDS else row

    def start(
        self,
        row: int,
        request: Request,
        stop_ids: frozenset[int],
        key: tuple[int, int],
        output_len: int,
    ) -> None:
        """Fill a row for a request with `output_len` sampled tokens whose prompt is in the KV cache."""
        values = {
            "token": 0,
            "cached_len": len(request.tokens) + output_len,
            "output_len": output_len,
            "max_output_len": request.max_new_tokens,
            "done": 0,
            "greedy": request.greedy,
            "min_output_len": request.min_new_tokens,
            "top_k": min(request.top_k, MAX_INT32),
            "top_p": request.top_p,
            "min_p": request.min_p,
            "temperature": request.temperature,
            "prefix_len": 0,
        }
        for name, value in values.items():
            self.host(name)[row] = value
        for name, word in zip(("key0", "key1"), key, strict=True):
            self.host_fields[FIELDS[name]].view(np.uint32)[row] = word
        self.host_fields[STOP_IDS, row] = NO_TOKEN
        ids = sorted({*stop_ids, *request.stop_ids})
        self.host_fields[STOP_IDS, row][: len(ids)] = ids
        self.block_table[row] = 0

    def move(self, source: int, target: int) -> None:
        self.host_fields[:, target] = self.host_fields[:, source]
        self.block_table[target] = self.block_table[source]

    def clear(self, rows: range) -> None:
        """Turn rows into padding: done, at block 0."""
        self.host_fields[:, rows] = 0
        self.host("done")[rows] = 1
        self.host("temperature")[rows] = 1
        self.host("top_p")[rows] = 1
        self.host_fields[STOP_IDS, rows] = NO_TOKEN
        self.block_table[rows] = 0

    def set_prefix_groups(self, groups: Sequence[tuple[int, Sequence[int]]]) -> None:
        """Groups of rows, each with how many tokens they share; the lengths reach the device with `push`."""
        self.host("prefix_len")[:] = 0
        self._host_members.fill_(-1)
        members = self._host_members.numpy()
        for index, (length, rows) in enumerate(groups):
            self.host("prefix_len")[rows] = length
            members[index, : len(rows)] = rows
        self._members_GM.copy_(self._host_members, non_blocking=True)

    def prefix_groups(self, size: int) -> PrefixGroups:
        """Those of the first `size` rows: a group has two rows at least."""
        return PrefixGroups(self._members_GM[: size // 2], self["prefix_len"][:size])

    def push(self) -> None:
        """Copy host to device; overwrites what the device changed since the last `pull`."""
        if self.device.type == "cuda":
            self.fields_FB.copy_(self._host, non_blocking=True)

    def push_block_table(self) -> None:
        if self.device.type == "cuda":
            self.block_table_BP.copy_(self._host_table, non_blocking=True)

    def pull(self) -> None:
        if self.device.type == "cuda":
            self._host.copy_(self.fields_FB)

    def sampling(self, rows: Tensor | slice) -> SamplingState:
        names = (
            "temperature",
            "greedy",
            "key0",
            "key1",
            "output_len",
            "min_output_len",
            "top_k",
            "top_p",
            "min_p",
        )
        return SamplingState._make([*(self[name][rows] for name in names), self.stop_ids_BS[rows]])
