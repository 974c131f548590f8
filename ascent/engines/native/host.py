"""What surrounds the forward of a step on a CPU: who reads what, and how rows move on. In numpy, which begins quickly.

On a CPU the rows' numbers are one memory for host and device, so all of this reads and writes them where they lie.

Axes: B rows, P pages of a row, L the rounded length of the longest row, S stop ids, K lines drawn between two looks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ascent.engines.native.rows import STOPS, Asked, Rows, asked
from ascent.engines.native.sampling import draw, draw_plainly
from ascent.models.paged import Block, Decode, Pool, can_lie_in_order, decode_on_cpu, rounded

CUT_COST = 50_000  # numbers that attention could read in the time that a second block takes
Lines = dict[str, NDArray[Any]]  # what was drawn: made, logprobs, log_mass


class _Views(NamedTuple):
    """The numbers of the first `size` rows, as numpy and torch see them."""

    token: NDArray[Any]
    stored: NDArray[Any]
    position: NDArray[Any]
    limit: NDArray[Any]
    done: NDArray[Any]
    stops_SB: NDArray[Any]
    first: NDArray[Any]  # where each row's own page begins
    slots: NDArray[Any]
    lengths: NDArray[Any]
    places: NDArray[Any]
    token_B: Tensor
    places_B: Tensor
    slots_B: Tensor
    lengths_B: Tensor
    ask: Asked


class HostStep:
    """The steps of `rows` over `pool`."""

    def __init__(self, pool: Pool, rows: Rows) -> None:
        self._pool, self._rows = pool, rows
        self._views: dict[int, _Views] = {}
        self._places_L = np.arange(0)
        self._width = pool.width
        self._whole = rows.table.shape[1] == 1 and can_lie_in_order(pool.page) and pool.pages > rows.count
        self._in_order = self._greedy = False
        self._words_B2: Any = None
        self._temperature_B: Any = None

    def first(self, logits_BV: Tensor, rows: range, lines: Lines, *, cut: bool) -> None:
        """Draw the first tokens of rows that start. Logits behind theirs only fill the batch up."""
        filled = np.minimum(np.arange(rows.start, rows.start + logits_BV.shape[0]), rows.stop - 1)
        self._ask(filled)
        position_B = self._rows.host("position")[filled]
        ask = asked(self._rows, torch.from_numpy(filled)) if cut or self._greedy else None
        drawn = {name: line_B[: len(rows)] for name, line_B in self._draw(logits_BV, position_B, ask, cut).items()}
        which, words = slice(rows.start, rows.stop), self._rows
        for name, line_B in drawn.items():
            lines[name][0, which] = line_B
        words.host("token")[which] = drawn["made"]
        words.host("position")[which] += 1
        ended = (words.words[STOPS, which] == drawn["made"]).any(0)
        words.host("done")[which] = ended | (words.host("position")[which] >= words.host("limit")[which])

    def begin(self, size: int) -> None:
        """What the first `size` rows ask for and where their pages are stays as it is until the next look."""
        self._ask(slice(size))
        own_B = self._rows.table[:size, 0]
        self._in_order = self._whole and bool(((own_B == np.arange(1, size + 1)) | (own_B == 0)).all())

    def context(self, size: int) -> tuple[Tensor, Tensor, Decode]:
        """The tokens that are read next, their places, and what attention needs."""
        see = self._see(size)
        if not self._in_order:
            alive_B = self._rows["done"][:size] == 0
            stored_B = torch.where(alive_B, self._rows["stored"][:size], 0)
            table_BP = self._rows.table_BP[:size] * alive_B[:, None]
            return see.token_B, stored_B, decode_on_cpu(self._pool, table_BP, stored_B)
        alive = see.done == 0
        np.multiply(see.stored, alive, see.places)
        np.add(see.places, 1, see.lengths)
        np.add(see.first, see.stored, see.slots)
        np.multiply(see.slots, alive, see.slots)  # rows that are done write to page 0
        blocks = []
        for start, end, length in cuts(see.lengths, self._width):
            which = slice(start, end)
            mask_NL = np.full((end - start, length), -np.inf, dtype=np.float32)
            np.copyto(mask_NL, 0, where=self._places(length) < see.lengths[which, None])
            mask = torch.from_numpy(mask_NL)[:, None, None, :].to(self._pool.keys[0].dtype)
            blocks.append(Block(which, None, see.lengths_B[which], length, {None: mask}))
        context = Decode(self._pool, see.slots_B, see.lengths_B, self._rows.table_BP, tuple(blocks))
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

    def _draw(self, logits_BV: Tensor, position_B: NDArray[Any], ask: Asked | None, cut: bool) -> Lines:
        """One line: a token for each of the rows asked last, its log-probability, and what was left where it is cut."""
        if ask is None or not (cut or self._greedy):
            made, logprobs = draw_plainly(logits_BV, self._words_B2, position_B, self._temperature_B)
            return {"made": made, "logprobs": logprobs}
        drawn = draw(logits_BV, ask, cut=cut)
        line = {"made": drawn.tokens_B.numpy(), "logprobs": drawn.logprobs_B.numpy()}
        return line if drawn.log_mass_B is None else {**line, "log_mass": drawn.log_mass_B.numpy()}

    def left(self, count: int) -> int:
        """How many of the first `count` rows go on."""
        return count - int(np.count_nonzero(self._rows.host("done")[:count]))

    def _places(self, length: int) -> NDArray[Any]:
        if len(self._places_L) < length:
            self._places_L = np.arange(2 * length, dtype=np.int32)
        return self._places_L[:length]

    def _see(self, size: int) -> _Views:
        if size not in self._views:
            rows = self._rows
            own: list[Any] = [rows.host(name)[:size] for name in ("token", "stored", "position", "limit", "done")]
            first = np.arange(1, size + 1) * self._pool.page
            slots, lengths, places = (np.zeros(size, dtype=kind) for kind in (np.int64, np.int32, np.int32))
            own += [rows.words[STOPS, :size], first, slots, lengths, places, rows["token"][:size]]
            own += [torch.from_numpy(each) for each in (places, slots, lengths)]
            self._views[size] = _Views._make([*own, asked(rows, slice(size))])
        return self._views[size]


def cuts(lengths_B: NDArray[Any], width: int) -> list[tuple[int, int, int]]:
    """Rows in order as one or two blocks: (first, behind the last, padded length), as costs less.

    Those that started last come last and are mostly short, so a second block needs less padding. `width` is how many
    numbers a token stores.
    """
    count, longest = len(lengths_B), rounded(int(lengths_B.max()))
    behind_B = np.maximum.accumulate(lengths_B[::-1])[::-1]  # the longest from each row on
    saved_B = (longest - behind_B) * np.arange(count, 0, -1)
    place = int(saved_B.argmax())
    length = rounded(int(behind_B[place]))
    if (longest - length) * (count - place) * width < CUT_COST:
        return [(0, count, longest)]
    return [(0, place, longest), (place, count, length)]
