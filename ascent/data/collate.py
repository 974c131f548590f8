"""Items -> one packed micro-batch, a dict of tensors (field names: docs/decisions/0003).

Every item is one group. Axes: T flat tokens, B sequences, P pairs.

| items | fields besides tokens_T, positions_T, loss_mask_T, segments, groups |
|---|---|
| examples | - |
| pairs | chosen_P, rejected_P; margins_P where the data has margins; gold_B where a gold answer follows each pair |
| rankings | ranks_B, 0 is best, equal ones are ties |
| steps | step_ends_T, true where a step is scored; step_labels_T, its label, NaN for unknown |
| unpaired | desirable_B; `mismatched`, a batch of the same answers after other prompts, for KTO's reference point |
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate, chain
from typing import Any, TypeAlias

import numpy as np
import torch

from ascent.data.prepare import Item
from ascent.data.render import Rendered
from ascent.maths.batch import PackedBatch
from ascent.maths.groups import Groups
from ascent.maths.segments import Segments

Batch = PackedBatch
Tokens: TypeAlias = "np.ndarray[Any, np.dtype[np.int32]]"


def collate_all(microbatches: Sequence[Sequence[Item]]) -> list[Batch]:
    """The micro-batches of one step; group ids count through all of them."""
    firsts = accumulate((len(items) for items in microbatches), initial=0)
    return [collate(items, first) for items, first in zip(microbatches, firsts, strict=False)]


def collate(items: Sequence[Item], first: int = 0) -> Batch:
    """One micro-batch; its items are the groups `first`, `first` + 1, and so on."""
    kinds = {item.kind for item in items}
    if len(kinds) != 1:
        raise ValueError(
            f"a micro-batch of {', '.join(sorted(kinds)) or 'nothing'}; it holds records of one kind"
        )
    sizes = [len(item.sequences) for item in items]
    group_ids = [number for number, size in enumerate(sizes, first) for _ in range(size)]
    batch = pack([sequence for item in items for sequence in item.sequences], group_ids)
    kind = kinds.pop()
    if kind == "pairs":
        batch |= _pairs(items)
    elif kind == "rankings":
        batch["ranks_B"] = torch.tensor(
            [r for item in items for r in item.ranks or range(len(item.sequences))]
        )
    elif kind == "unpaired":
        batch |= _unpaired(items)
    elif kind == "steps":
        batch |= _steps(items)
    return batch


def pack(sequences: Sequence[Rendered], group_ids: Sequence[int]) -> Batch:
    """Sequences on one flat token axis; those of one group id are one group."""
    segments = Segments.from_lengths([len(sequence) for sequence in sequences])
    starts_T = segments.broadcast(segments.offsets[:-1])
    return {
        "tokens_T": torch.from_numpy(
            np.concatenate([sequence.tokens for sequence in sequences]).astype(np.int64)
        ),
        "loss_mask_T": torch.from_numpy(
            np.concatenate([sequence.loss_mask for sequence in sequences])
        ),
        "positions_T": torch.arange(segments.total) - starts_T,
        "segments": segments,
        "groups": Groups.from_ids(list(group_ids)),
    }


def _pairs(items: Sequence[Item]) -> Batch:
    size = len(items[0].sequences)
    assert all(len(item.sequences) == size for item in items), (
        "some pairs of a step have a gold answer, some have none"
    )
    first_P = torch.arange(0, size * len(items), size)
    found: Batch = {"chosen_P": first_P, "rejected_P": first_P + 1}
    if size == 3:
        found["gold_B"] = torch.arange(size * len(items)) % size == 2
    margins = [item.margin for item in items if item.margin is not None]
    if margins:
        if len(margins) != len(items):
            raise ValueError(
                f"{len(margins)} of {len(items)} pairs have a margin; give one to every pair or to none"
            )
        found["margins_P"] = torch.tensor(margins, dtype=torch.float32)
    return found


def _steps(items: Sequence[Item]) -> Batch:
    """The loss is at the ends of steps and nowhere else."""
    sizes = [len(item.sequences[0]) for item in items]
    ends_T, labels_T = torch.zeros(sum(sizes), dtype=torch.bool), torch.zeros(sum(sizes))
    for start, item in zip([0, *np.cumsum(sizes)], items, strict=False):
        ends = torch.tensor(item.step_ends) + start
        ends_T[ends] = True
        labels_T[ends] = torch.tensor(
            [torch.nan if label is None else label for label in item.step_labels]
        )
    return {"step_ends_T": ends_T, "step_labels_T": labels_T, "loss_mask_T": ends_T.clone()}


def _unpaired(items: Sequence[Item]) -> Batch:
    found: Batch = {"desirable_B": torch.tensor([bool(item.good) for item in items])}
    mismatched = [item.mismatched for item in items if item.mismatched is not None]
    if mismatched:
        assert len(mismatched) == len(items), (
            "some items of a step have a mismatched sequence and some have none"
        )
        found["mismatched"] = pack(mismatched, range(len(mismatched)))
    return found


def two_distinct_prompts(items: Iterable[Item]) -> tuple[Tokens, Tokens]:
    """The first prompt, and the first that differs from it: for every item, one of them is another prompt."""
    first: Tokens | None = None
    for item in items:
        prompt = _prompt_tokens(item)
        if first is None:
            first = prompt
        elif not np.array_equal(prompt, first):
            return first, prompt
    raise ValueError(
        "all records have the same prompt; KTO's reference point needs answers after other prompts: give data with at "
        "least two prompts"
    )


def add_mismatched(
    items: Sequence[Item], *, max_tokens: int, spare: tuple[Tokens, Tokens] | None = None
) -> tuple[list[Item], int]:
    """Give every unpaired item its mismatched sequence: its answer after the prompt of the next item of the step.

    This precedes the split into micro-batches, so the split changes nothing. Items with the same prompt are skipped;
    where the whole step has one prompt, one of the two `spare` prompts is used (default: of these items). A prompt that
    makes the sequence too long loses tokens from its start; the second result counts these.
    """
    prompts, spare = [_prompt_tokens(item) for item in items], spare or two_distinct_prompts(items)
    found = []
    truncated = 0
    for index, item in enumerate(items):
        others = (prompts[(index + step) % len(items)] for step in range(1, len(items)))
        other = next(
            each for each in chain(others, spare) if not np.array_equal(each, prompts[index])
        )
        own = item.sequences[0]
        excess = max(0, len(other) + len(own) - own.prompt_length - max_tokens)
        truncated += excess > 0
        found.append(replace(item, mismatched=_replace_prompt(other[excess:], own)))
    return found, truncated


def _prompt_tokens(item: Item) -> Tokens:
    return item.sequences[0].tokens[: item.sequences[0].prompt_length]


def _replace_prompt(prompt: Tokens, own: Rendered) -> Rendered:
    tokens = np.concatenate([prompt, own.tokens[own.prompt_length :]])
    loss_mask = np.concatenate(
        [np.zeros(len(prompt), dtype=np.bool_), own.loss_mask[own.prompt_length :]]
    )
    return Rendered(tokens, loss_mask, len(prompt))
