"""Data in a loop of one's own: `ascent.load_data`, `ascent.batches`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from torch import Tensor

from ascent.data.mix import Mixture, Stream
from ascent.data.packing import split_microbatches
from ascent.data.schemas import Record, RecordKind
from ascent.maths.batch import SEQUENCE_AXIS, TOKEN_AXIS, PackedBatch, select
from ascent.records import Rollout
from ascent.rollouts.microbatches import units_of
from ascent.setup.data import load_records
from ascent.setup.objects import rows_of

T = TypeVar("T")
Rewards = Sequence[float | None] | Tensor


def load_data(data: Any, kind: RecordKind = "prompts", *, seed: int = 0) -> list[Record]:
    """Read the records of a dataset, as a recipe's `data.train` does.

    data: a file, a folder, a hub name or a built-in task; or a list of dicts, a datasets.Dataset, or a function that
        returns an iterator of dicts.
    kind: prompts, examples, pairs, rankings, unpaired or steps; other layouts are converted where they can be.
    seed: of the problems of a built-in task.

    Returns the records.

        prompts = ascent.load_data("gsm8k:data/gsm8k")
    """
    if isinstance(data, str | Path):
        return list(load_records(str(data), kind, seed=seed).records)
    found = rows_of("data.train", data)
    return list(load_records(found.name, kind, seed=seed, objects={found.name: found}).records)


def batches(
    records: Sequence[T], size: int, *, seed: int = 0, shuffle: bool = True
) -> Iterator[list[T]]:
    """Draw batches without end, every epoch in another order: the order in which a recipe with this seed draws.

    records: what to draw from, of any type.
    size: records of a batch. A batch may cross the end of an epoch.
    seed: of the shuffles.
    shuffle: false keeps the given order.

    Returns an iterator of lists.

        for step, prompts in zip(range(100), ascent.batches(records, 8)): ...
    """
    if size < 1:
        raise ValueError(f"size={size}, but a batch has at least 1 record")
    mixture = Mixture([Stream("records", len(records))], seed=seed, shuffle=shuffle)
    while True:
        yield [records[draw.record] for draw in mixture.take(size)]


def check_batch(batch: Mapping[str, Any]) -> None:
    """Every tensor covers the axis that its name ends in; otherwise broadcasting would hide the mistake."""
    if not isinstance(batch, Mapping) or "segments" not in batch or "tokens_T" not in batch:
        raise ValueError(
            f"{type(batch).__name__} is no packed batch; policy.pack makes one of rollouts or records"
        )
    segments = batch["segments"]
    for name, value in batch.items():
        axis = (
            "tokens"
            if name.endswith(TOKEN_AXIS)
            else "sequences"
            if name.endswith(SEQUENCE_AXIS)
            else None
        )
        size = segments.total if axis == "tokens" else segments.count
        if axis is not None and isinstance(value, Tensor) and value.shape[:1] != (size,):
            raise ValueError(
                f'batch["{name}"] has shape {tuple(value.shape)}; its first axis must be the {size} {axis} of the batch'
            )


class PackedItem(NamedTuple):
    """The sequences of one record in a batch."""

    tokens: int
    rows: Sequence[int]
    kind: str = "packed"


def record_microbatches(batch: PackedBatch, max_tokens: int) -> list[PackedBatch]:
    """The micro-batches of a step over records, cut as a recipe cuts them. A record is a group, and stays together."""
    lengths = batch["segments"].lengths_B.tolist()
    units = units_of(batch, whole_groups=True)
    items = [PackedItem(sum(lengths[row] for row in rows), rows) for rows in units]
    return [
        select(batch, [row for item in part for row in item.rows])
        for part in split_microbatches(items, max_tokens)
    ]


def with_rewards(rollouts: Sequence[Rollout], rewards: Rewards) -> list[Rollout]:
    """The rollouts with these rewards, as floats: integers would make integer tensors."""
    values = rewards.tolist() if isinstance(rewards, Tensor) else list(rewards)
    if len(values) != len(rollouts):
        raise ValueError(
            f"{len(values)} rewards for {len(rollouts)} rollouts; give one for each, in order"
        )
    for value in values:
        if not (value is None or isinstance(value, int | float) or hasattr(value, "__float__")):
            raise ValueError(f"a reward is a number, or None where it is unknown, not {value!r}")
    numbers = [None if value is None else float(value) for value in values]
    return [replace(each, reward=number) for each, number in zip(rollouts, numbers, strict=True)]
