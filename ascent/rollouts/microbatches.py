"""How a step's rollouts are divided: into minibatches (one update each), and these into micro-batches.

Results do not depend on micro-batches; only time and memory do.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from itertools import groupby

from ascent.maths.batch import PackedBatch, select
from ascent.models.shared_prefix import MIN_SAVED_FRAC, prefix_groups
from ascent.rollouts.config import RolloutConfig

Unit = Sequence[int]  # rows that stay together
MAX_REPEATED_FRAC = 0.04  # tokens that may run again for fewer micro-batches
BALANCED_FRAC = 0.01  # tokens that the slowest rank may run beyond an equal share


def units_of(batch: PackedBatch, *, whole_groups: bool) -> list[Unit]:
    """The rows that a minibatch keeps together: single sequences, or whole groups."""
    rows = range(batch["segments"].count)
    if not whole_groups:
        return [[row] for row in rows]
    ids = batch["groups"].ids_B.tolist()
    return [[row for row in rows if ids[row] == group] for group in range(batch["groups"].count)]


def minibatches(
    units: Sequence[Unit], config: RolloutConfig, *, seed: int, step: int
) -> Iterator[list[Unit]]:
    """The units of every update: all of them in each epoch, in an order that depends on (seed, step, epoch) alone."""
    count, parts = len(units), config.minibatches
    for epoch in range(config.epochs):
        order = sorted(range(count), key=lambda unit: _hash(seed, step, epoch, unit))
        for part in range(parts):
            chosen = order[part * count // parts : (part + 1) * count // parts]
            if chosen:
                yield [units[unit] for unit in chosen]


def token_budget(batch: PackedBatch, limit: int, target: int | None) -> int:
    """The tokens of a micro-batch: the target, or those of the longest sequence, but not more than the limit."""
    if target is None:
        return limit
    return min(limit, max(target, *batch["segments"].lengths_B.tolist()))


def split_microbatches(
    batch: PackedBatch,
    units: Sequence[Unit],
    max_tokens: int,
    *,
    divisible: bool = False,
    ranks: int = 1,
) -> list[PackedBatch]:
    """Micro-batches in which at most `max_tokens` tokens run, of about equal size, as many for each of the `ranks`.

    A prefix that neighbors share runs once in a micro-batch, so sequences that share one stay together. `divisible`
    units are split where they are too large, or where that takes fewer micro-batches and repeats few tokens, or where
    the slowest rank has less to run. Fewer units than ranks give fewer micro-batches.
    """
    leaders, shared = _prefixes(batch)
    lengths = batch["segments"].lengths_B.tolist()
    pieces: list[Unit] = list(units)
    if divisible:
        by_leader: dict[int, list[int]] = {}
        for row in sorted(row for unit in units for row in unit):
            by_leader.setdefault(leaders[row], []).append(row)
        groups = [*by_leader.values()]
        pieces = [
            piece for group in groups for piece in _stream([group], lengths, shared, max_tokens)
        ]
    sized = [(_run_tokens(piece, lengths, leaders, shared), piece) for piece in pieces]
    longest, largest = max(sized, key=lambda each: each[0])
    if longest > max_tokens:
        raise ValueError(
            f"{'a rollout has' if len(largest) == 1 else f'{len(largest)} rollouts that stay together have'} {longest} "
            f"tokens, more than update.tokens_per_microbatch={max_tokens}; raise it, or lower rollouts.max_new_tokens"
        )
    bins = [[row for piece in each for row in piece] for each in _pack(sized, max_tokens, ranks)]
    if divisible:
        needed = sum(_run_tokens(group, lengths, leaders, shared) for group in groups)
        slowest = _slowest([_run_tokens(each, lengths, leaders, shared) for each in bins], ranks)
        if ranks == 1 or slowest > (1 + BALANCED_FRAC) * needed / ranks:
            streamed = _stream(groups, lengths, shared, max_tokens, ranks)
            run = [_run_tokens(each, lengths, leaders, shared) for each in streamed]
            few = len(streamed) < len(bins) and sum(run) <= (1 + MAX_REPEATED_FRAC) * needed
            if few if ranks == 1 else _slowest(run, ranks) < slowest:
                bins = streamed
    return [select(batch, sorted(rows)) for rows in bins]


def _prefixes(batch: PackedBatch) -> tuple[list[int], list[int]]:
    """The leader of each row and the tokens shared with it; none where a forward would share nothing."""
    leaders, shared = prefix_groups(
        batch["tokens_T"], batch["segments"], batch.get("routed_experts_TLC")
    )
    if sum(shared) < MIN_SAVED_FRAC * batch["segments"].total:
        return list(range(len(leaders))), [0] * len(shared)
    return leaders, shared


def _slowest(loads: Sequence[int], ranks: int) -> int:
    """What the rank with the most to run has to run."""
    return max(sum(loads[rank::ranks]) for rank in range(ranks))


def _stream(
    groups: Sequence[Unit],
    lengths: Sequence[int],
    shared: Sequence[int],
    max_tokens: int,
    ranks: int = 1,
) -> list[list[int]]:
    """Rows in order, in as few pieces as fit, of about equal size. A piece that begins inside a group runs its prefix
    again."""
    widest = _fill(groups, lengths, shared, max_tokens)
    most = _round_up(len(widest), ranks)
    if most == 1:
        return widest
    low, high = 0, max_tokens  # `high` is enough for so many pieces
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (
            (low, middle) if len(_fill(groups, lengths, shared, middle)) <= most else (middle, high)
        )
    return _fill(groups, lengths, shared, high)


def _fill(
    groups: Sequence[Unit], lengths: Sequence[int], shared: Sequence[int], limit: int
) -> list[list[int]]:
    """Rows in order, in pieces that run at most `limit` tokens, or of one row."""
    pieces: list[list[int]] = [[]]
    used = 0
    for group in groups:
        prefix = max(shared[row] for row in group)
        inside = False  # has this piece run the group's prefix?
        for row in group:
            size = lengths[row] - (prefix if inside else 0)
            if pieces[-1] and used + size > limit:
                pieces.append([])
                used, size = 0, lengths[row]
            pieces[-1].append(row)
            used, inside = used + size, True
    return pieces


def _run_tokens(
    unit: Unit, lengths: Sequence[int], leaders: Sequence[int], shared: Sequence[int]
) -> int:
    """Tokens that run for these rows: the first of those with one leader runs its prefix for all of them."""
    prefixes: dict[int, int] = {}
    for row in unit:
        prefixes[leaders[row]] = max(prefixes.get(leaders[row], 0), shared[row])
    return sum(lengths[row] - prefixes[leaders[row]] for row in unit) + sum(prefixes.values())


def _pack(sized: Sequence[tuple[int, Unit]], max_tokens: int, ranks: int = 1) -> list[list[Unit]]:
    """Units in as few bins as first-fit decreasing needs, and then of about equal size if all of them fit so.

    For several ranks there are as many more bins as it takes to give each the same number.
    """
    order = sorted(sized, key=lambda each: -each[0])
    bins: list[list[Unit]] = []
    used: list[int] = []
    for size, unit in order:
        index = next((n for n, taken in enumerate(used) if taken + size <= max_tokens), None)
        if index is None:
            bins.append([unit])
            used.append(size)
        else:
            bins[index].append(unit)
            used[index] += size
    for count in range(_round_up(len(bins), ranks), len(sized) + ranks, ranks):
        even: list[list[Unit]] = [[] for _ in range(min(count, len(sized)))]
        loads = [0] * len(even)
        for size, unit in order:
            index = loads.index(min(loads))
            even[index].append(unit)
            loads[index] += size
        if max(loads) <= max_tokens:
            return even
        if ranks == 1:
            break
    return bins


def chunk_rows(batch: PackedBatch, max_tokens: int, ranks: int = 1) -> list[list[int]]:
    """Consecutive rows for which at most `max_tokens` tokens run, or one sequence; as many chunks for each rank."""
    leaders, shared = _prefixes(batch)
    if ranks > 1:
        neighbors = [
            list(rows) for _, rows in groupby(range(len(leaders)), key=leaders.__getitem__)
        ]
        return _stream(neighbors, batch["segments"].lengths_B.tolist(), shared, max_tokens, ranks)
    chunks: list[list[int]] = [[]]
    used = 0
    for row, length in enumerate(batch["segments"].lengths_B.tolist()):
        follows = bool(chunks[-1]) and leaders[row] == leaders[chunks[-1][-1]]
        size = length - (max(shared[row], shared[row - 1]) if follows else 0)
        if chunks[-1] and used + size > max_tokens:
            chunks.append([])
            used, size = 0, length
        chunks[-1].append(row)
        used += size
    return chunks


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _hash(*key: int) -> bytes:
    return hashlib.blake2b("/".join(map(str, key)).encode(), digest_size=8).digest()
