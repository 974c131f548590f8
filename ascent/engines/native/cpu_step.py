"""What surrounds the forward of a step on a CPU: who reads what, and how rows move on. In numpy, which begins quickly.

On a CPU the rows' numbers are one memory for host and device, so all of this reads and writes them where they lie.

Axes: B rows, P pages of a row, S stop ids, K lines drawn between two looks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ascent.c_extension import library
from ascent.engines.native.batch_state import STOPS, BatchState, SamplingState, sampling_state
from ascent.engines.native.sampling import draw, draw_reference
from ascent.models.paged_attention import KVCache
from ascent.models.paged_attention_cpu import CompiledDecode
from ascent.models.paged_attention_sdpa import BlockDecode, by_block

Lines = dict[str, NDArray[Any]]  # what was drawn: made, logprobs, log_mass


class _Views(NamedTuple):
    """The numbers of the first `size` rows, as numpy and torch see them."""

    token: NDArray[Any]
    stored: NDArray[Any]
    position: NDArray[Any]
    limit: NDArray[Any]
    done: NDArray[Any]
    stops_SB: NDArray[Any]
    lengths: NDArray[Any]
    places: NDArray[Any]
    token_B: Tensor
    lengths_B: Tensor
    places_B: Tensor
    table_BP: Tensor
    ask: SamplingState


class CpuStep:
    """The steps of `rows` over `pool`."""

    def __init__(self, pool: KVCache, rows: BatchState) -> None:
        self._pool, self._rows = pool, rows
        self._views: dict[int, _Views] = {}
        self.compiled = pool.keys[0].dtype == torch.float32 and library() is not None
        self._greedy = False
        self._words_B2: Any = None
        self._temperature_B: Any = None

    def first(self, logits_BV: Tensor, rows: range, lines: Lines, *, cut: bool) -> None:
        """Draw the first tokens of rows that start. Logits behind theirs only fill the batch up."""
        filled = np.minimum(np.arange(rows.start, rows.start + logits_BV.shape[0]), rows.stop - 1)
        self._ask(filled)
        position_B = self._rows.host("position")[filled]
        ask = sampling_state(self._rows, torch.from_numpy(filled)) if cut or self._greedy else None
        drawn = {name: line_B[: len(rows)] for name, line_B in self._draw(logits_BV, position_B, ask, cut).items()}
        which, words = slice(rows.start, rows.stop), self._rows
        for name, line_B in drawn.items():
            lines[name][0, which] = line_B
        words.host("token")[which] = drawn["made"]
        words.host("position")[which] += 1
        ended = (words.words[STOPS, which] == drawn["made"]).any(0)
        words.host("done")[which] = ended | (words.host("position")[which] >= words.host("limit")[which])

    def begin(self, size: int) -> None:
        """What the first `size` rows ask for stays as it is until the next look."""
        self._ask(slice(size))

    def context(self, size: int) -> tuple[Tensor, Tensor, CompiledDecode | BlockDecode]:
        """The tokens that are read next, their places, and what attention needs."""
        see = self._see(size)
        alive = see.done == 0
        np.multiply(see.stored, alive, see.places)
        np.add(see.places, alive, see.lengths)  # rows that are done stand still
        if not self.compiled:
            return see.token_B, see.places_B, by_block(self._pool, see.table_BP, see.lengths_B)
        context = CompiledDecode(self._pool, see.table_BP, see.lengths_B, int(see.lengths.sum()))
        return see.token_B, see.places_B, context

    def draw(self, logits_BV: Tensor, size: int, lines: Lines, line: int, *, cut: bool) -> None:
        """Draw a token for every row, as line `line`, and move the rows on; one that is done stays as it is."""
        see = self._see(size)
        drawn = self._draw(logits_BV, see.position, see.ask, cut)
        for name, line_B in drawn.items():
            lines[name][line, :size] = line_B
        tokens, alive = drawn["made"], see.done == 0
        np.copyto(see.token, tokens, "same_kind", alive)
        np.add(see.position, alive, see.position)
        np.add(see.stored, alive, see.stored)
        ended = (see.stops_SB == tokens).any(0)
        ended |= see.position >= see.limit
        np.bitwise_or(see.done, ended, see.done)

    def _ask(self, which: slice | NDArray[Any]) -> None:
        """Gather what these rows ask for."""
        host = self._rows.host
        self._words_B2 = np.stack([host("word0")[which], host("word1")[which]], 1).view(np.uint32)
        self._greedy = bool(host("greedy")[which].any())
        temperature_B = host("temperature")[which]
        self._temperature_B = temperature_B if (temperature_B != 1).any() else None

    def _draw(self, logits_BV: Tensor, position_B: NDArray[Any], ask: SamplingState | None, cut: bool) -> Lines:
        """One line: a token for each of the rows asked last, its log-probability, and what was left where it is cut."""
        if ask is None or not (cut or self._greedy):
            made, logprobs = draw_reference(logits_BV, self._words_B2, position_B, self._temperature_B)
            return {"made": made, "logprobs": logprobs}
        drawn = draw(logits_BV, ask, cut=cut)
        line = {"made": drawn.tokens_B.numpy(), "logprobs": drawn.logprobs_B.numpy()}
        return line if drawn.log_mass_B is None else {**line, "log_mass": drawn.log_mass_B.numpy()}

    def left(self, count: int) -> int:
        """How many of the first `count` rows go on."""
        return count - int(np.count_nonzero(self._rows.host("done")[:count]))

    def _see(self, size: int) -> _Views:
        if size not in self._views:
            rows = self._rows
            own: list[Any] = [rows.host(name)[:size] for name in ("token", "stored", "position", "limit", "done")]
            lengths, places = (np.zeros(size, dtype=np.int32) for _ in range(2))
            own += [rows.words[STOPS, :size], lengths, places, rows["token"][:size]]
            own += [torch.from_numpy(lengths), torch.from_numpy(places), rows.table_BP[:size]]
            self._views[size] = _Views._make([*own, sampling_state(rows, slice(size))])
        return self._views[size]
