"""How a step's rollouts are divided: into minibatches (one update each), and these into micro-batches.

Results do not depend on micro-batches; only time and memory do.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

from ascent.maths.batch import PackedBatch, select
from ascent.rollouts.config import RolloutConfig

Unit = Sequence[int]  # rows that stay together


def units_of(batch: PackedBatch, *, whole_groups: bool) -> list[Unit]:
    """The rows that a minibatch keeps together: single sequences, or whole groups."""
    rows = range(batch["segments"].count)
    if not whole_groups:
        return [[row] for row in rows]
    ids = batch["groups"].ids_B.tolist()
    return [[row for row in rows if ids[row] == group] for group in range(batch["groups"].count)]


def minibatches(units: Sequence[Unit], config: RolloutConfig, *, seed: int, step: int) -> Iterator[list[Unit]]:
    """The units of every update: all of them in each epoch, in an order that depends on (seed, step, epoch) alone."""
    count, parts = len(units), config.minibatches
    for epoch in range(config.epochs):
        order = sorted(range(count), key=lambda unit: _hash(seed, step, epoch, unit))
        for part in range(parts):
            chosen = order[part * count // parts : (part + 1) * count // parts]
            if chosen:
                yield [units[unit] for unit in chosen]


def split_microbatches(batch: PackedBatch, units: Sequence[Unit], max_tokens: int) -> list[PackedBatch]:
    """Micro-batches of at most `max_tokens` tokens: first-fit decreasing. Units are not split."""
    lengths = batch["segments"].lengths_B.tolist()
    sized = [(sum(lengths[row] for row in unit), unit) for unit in units]
    longest, largest = max(sized, key=lambda each: each[0])
    if longest > max_tokens:
        raise ValueError(
            f"{'a rollout has' if len(largest) == 1 else f'{len(largest)} rollouts that stay together have'} {longest} "
            f"tokens, more than update.tokens_per_microbatch={max_tokens}; raise it, or lower rollouts.max_new_tokens"
        )
    bins: list[list[int]] = []
    free: list[int] = []
    for size, unit in sorted(sized, key=lambda each: -each[0]):
        index = next((n for n, left in enumerate(free) if size <= left), None)
        if index is None:
            bins.append([*unit])
            free.append(max_tokens - size)
        else:
            bins[index] += unit
            free[index] -= size
    return [select(batch, sorted(rows)) for rows in bins]


def chunk_rows(batch: PackedBatch, max_tokens: int) -> list[list[int]]:
    """Consecutive rows of at most `max_tokens` tokens, or of one sequence."""
    chunks: list[list[int]] = [[]]
    used = 0
    for row, length in enumerate(batch["segments"].lengths_B.tolist()):
        if chunks[-1] and used + length > max_tokens:
            chunks.append([])
            used = 0
        chunks[-1].append(row)
        used += length
    return chunks


def _hash(*key: int) -> bytes:
    return hashlib.blake2b("/".join(map(str, key)).encode(), digest_size=8).digest()
