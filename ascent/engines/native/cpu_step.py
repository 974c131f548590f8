"""Inputs, sampling and bookkeeping of a decode step on a CPU, in numpy, whose calls have less overhead than torch's.

Host and device share the batch state, so it is read and written in place.

Axes: B rows, P blocks of a row, S stop ids, K decode steps of a host sync.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ascent.c_extension import library
from ascent.engines.native.batch_state import STOP_IDS, BatchState, SamplingState
from ascent.engines.native.sampling import sample, sample_full_vocab
from ascent.models.paged_attention import KVCache
from ascent.models.paged_attention_cpu import CompiledDecode
from ascent.models.paged_attention_sdpa import SdpaDecode, sdpa_decode

Outputs = dict[str, NDArray[Any]]  # output_tokens, logprobs, log_mass


class _Views(NamedTuple):
    """The state of the first `size` rows, as numpy and torch see it."""

    token: NDArray[Any]
    cached_len: NDArray[Any]
    output_len: NDArray[Any]
    max_output_len: NDArray[Any]
    done: NDArray[Any]
    stop_ids_SB: NDArray[Any]
    seen: NDArray[Any]
    positions: NDArray[Any]
    token_B: Tensor
    seen_B: Tensor
    positions_B: Tensor
    block_table_BP: Tensor
    sampling: SamplingState


class CpuStep:
    """Decode steps of the rows in `state` over `kv_cache`."""

    def __init__(self, kv_cache: KVCache, state: BatchState) -> None:
        self._kv_cache, self._state = kv_cache, state
        self._views: dict[int, _Views] = {}
        self.compiled = kv_cache.keys[0].dtype == torch.float32 and library() is not None
        self._greedy = False
        self._keys_B2: Any = None
        self._temperature_B: Any = None

    def sample_first(
        self, logits_BV: Tensor, rows: range, outputs: Outputs, *, truncates: bool
    ) -> None:
        """Sample the first tokens of `rows`. Logits beyond them are padding."""
        padded = np.minimum(np.arange(rows.start, rows.start + logits_BV.shape[0]), rows.stop - 1)
        self._read_params(padded)
        position_B = self._state.host("output_len")[padded]
        params = (
            self._state.sampling(torch.from_numpy(padded)) if truncates or self._greedy else None
        )
        sampled = self._sample(logits_BV, position_B, params, truncates)
        which, state = slice(rows.start, rows.stop), self._state
        for name, value_B in sampled.items():
            outputs[name][0, which] = value_B[: len(rows)]
        tokens = sampled["output_tokens"][: len(rows)]
        state.host("token")[which] = tokens
        state.host("output_len")[which] += 1
        ended = (state.host_fields[STOP_IDS, which] == tokens).any(0)
        state.host("done")[which] = ended | (
            state.host("output_len")[which] >= state.host("max_output_len")[which]
        )

    def begin(self, size: int) -> None:
        """Read the sampling parameters of the first `size` rows, which stay the same until the next host sync."""
        self._read_params(slice(size))

    def inputs(self, size: int) -> tuple[Tensor, Tensor, CompiledDecode | SdpaDecode]:
        """The next input tokens, their positions, and the attention context."""
        views = self._views_of(size)
        alive = views.done == 0
        np.multiply(views.cached_len, alive, views.positions)
        np.add(views.positions, alive, views.seen)  # 0 for rows that are done
        if not self.compiled:
            return (
                views.token_B,
                views.positions_B,
                sdpa_decode(self._kv_cache, views.block_table_BP, views.seen_B),
            )
        context = CompiledDecode(
            self._kv_cache, views.block_table_BP, views.seen_B, int(views.seen.sum())
        )
        return views.token_B, views.positions_B, context

    def sample(
        self, logits_BV: Tensor, size: int, outputs: Outputs, step: int, *, truncates: bool
    ) -> None:
        """Sample a token for every row, write it as decode step `step`, and advance the rows that are not done."""
        views = self._views_of(size)
        sampled = self._sample(logits_BV, views.output_len, views.sampling, truncates)
        for name, value_B in sampled.items():
            outputs[name][step, :size] = value_B
        tokens, alive = sampled["output_tokens"], views.done == 0
        np.copyto(views.token, tokens, "same_kind", alive)
        np.add(views.output_len, alive, views.output_len)
        np.add(views.cached_len, alive, views.cached_len)
        ended = (views.stop_ids_SB == tokens).any(0)
        ended |= views.output_len >= views.max_output_len
        np.bitwise_or(views.done, ended, views.done)

    def num_running(self, count: int) -> int:
        """How many of the first `count` rows are not done."""
        return count - int(np.count_nonzero(self._state.host("done")[:count]))

    def _read_params(self, which: slice | NDArray[Any]) -> None:
        host = self._state.host
        self._keys_B2 = np.stack([host("key0")[which], host("key1")[which]], 1).view(np.uint32)
        self._greedy = bool(host("greedy")[which].any())
        temperature_B = host("temperature")[which]
        self._temperature_B = temperature_B if (temperature_B != 1).any() else None

    def _sample(
        self,
        logits_BV: Tensor,
        position_B: NDArray[Any],
        params: SamplingState | None,
        truncates: bool,
    ) -> Outputs:
        """One token for each of the rows read last, its log-prob, and the log mass where rows truncate."""
        if params is None or not (truncates or self._greedy):
            tokens, logprobs = sample_full_vocab(
                logits_BV, self._keys_B2, position_B, self._temperature_B
            )
            return {"output_tokens": tokens, "logprobs": logprobs}
        sampled = sample(logits_BV, params, truncates=truncates)
        outputs = {
            "output_tokens": sampled.tokens_B.numpy(),
            "logprobs": sampled.logprobs_B.numpy(),
        }
        return (
            outputs
            if sampled.log_mass_B is None
            else {**outputs, "log_mass": sampled.log_mass_B.numpy()}
        )

    def _views_of(self, size: int) -> _Views:
        if size not in self._views:
            state = self._state
            names = ("token", "cached_len", "output_len", "max_output_len", "done")
            views: list[Any] = [state.host(name)[:size] for name in names]
            seen, positions = (np.zeros(size, dtype=np.int32) for _ in range(2))
            views += [state.host_fields[STOP_IDS, :size], seen, positions, state["token"][:size]]
            views += [
                torch.from_numpy(seen),
                torch.from_numpy(positions),
                state.block_table_BP[:size],
            ]
            self._views[size] = _Views._make([*views, state.sampling(slice(size))])
        return self._views[size]
