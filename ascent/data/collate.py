"""Items -> one packed micro-batch: a plain dict with the vocabulary's names (docs/decisions/0003).

Every item is a group of its own. Axes: T flat tokens, B sequences, P pairs.

| items | fields besides tokens_T, positions_T, loss_mask_T, segments, groups |
|---|---|
| examples | - |
| pairs | chosen_P, rejected_P; margins_P where the data has margins; gold_B where a gold answer follows each pair |
| rankings | ranks_B, 0 is best |
| steps | step_ends_T, true where a step is judged; step_labels_T, the verdicts there, NaN for unknown |
| unpaired | desirable_B; `mismatched`, a batch of the same answers behind other prompts, for KTO's reference point |
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


def collate_all(pieces: Sequence[Sequence[Item]]) -> list[Batch]:
    """The micro-batches of one step; the items of all of them are numbered through."""
    firsts = accumulate((len(items) for items in pieces), initial=0)
    return [collate(items, first) for items, first in zip(pieces, firsts, strict=False)]


def collate(items: Sequence[Item], first: int = 0) -> Batch:
    """One micro-batch; its items' groups have the uids `first`, `first` + 1, and so on."""
    kinds = {item.kind for item in items}
    if len(kinds) != 1:
        raise ValueError(f"a micro-batch of {', '.join(sorted(kinds)) or 'nothing'}; it holds records of one kind")
    sizes = [len(item.sequences) for item in items]
    owners = [number for number, size in enumerate(sizes, first) for _ in range(size)]
    batch = packed([sequence for item in items for sequence in item.sequences], owners)
    kind = kinds.pop()
    if kind == "pairs":
        batch |= _pairs(items)
    elif kind == "rankings":
        batch["ranks_B"] = torch.tensor([rank for size in sizes for rank in range(size)])
    elif kind == "unpaired":
        batch |= _thumbs(items)
    elif kind == "steps":
        batch |= _steps(items)
    return batch


def packed(sequences: Sequence[Rendered], owners: Sequence[int]) -> Batch:
    """Sequences on one flat axis; `owners` says which of them belong together."""
    segments = Segments.from_lengths([len(sequence) for sequence in sequences])
    starts_T = segments.broadcast(segments.offsets[:-1])
    return {
        "tokens_T": torch.from_numpy(np.concatenate([sequence.tokens for sequence in sequences]).astype(np.int64)),
        "loss_mask_T": torch.from_numpy(np.concatenate([sequence.trained for sequence in sequences])),
        "positions_T": torch.arange(segments.total) - starts_T,
        "segments": segments,
        "groups": Groups.from_ids(list(owners)),
    }


def _pairs(items: Sequence[Item]) -> Batch:
    size = len(items[0].sequences)
    assert all(len(item.sequences) == size for item in items), "some pairs of a step have a gold answer, some have none"
    first_P = torch.arange(0, size * len(items), size)
    found: Batch = {"chosen_P": first_P, "rejected_P": first_P + 1}
    if size == 3:
        found["gold_B"] = torch.arange(size * len(items)) % size == 2
    margins = [item.margin for item in items if item.margin is not None]
    if margins:
        if len(margins) != len(items):
            raise ValueError(f"{len(margins)} of {len(items)} pairs have a margin; give one to every pair or to none")
        found["margins_P"] = torch.tensor(margins, dtype=torch.float32)
    return found


def _steps(items: Sequence[Item]) -> Batch:
    """The one sequence of an item is judged at its ends, and nothing else of it is trained."""
    sizes = [len(item.sequences[0]) for item in items]
    ends_T, labels_T = torch.zeros(sum(sizes), dtype=torch.bool), torch.zeros(sum(sizes))
    for start, item in zip([0, *np.cumsum(sizes)], items, strict=False):
        places = torch.tensor(item.ends) + start
        ends_T[places] = True
        labels_T[places] = torch.tensor([torch.nan if label is None else label for label in item.labels])
    return {"step_ends_T": ends_T, "step_labels_T": labels_T, "loss_mask_T": ends_T.clone()}


def _thumbs(items: Sequence[Item]) -> Batch:
    found: Batch = {"desirable_B": torch.tensor([bool(item.good) for item in items])}
    companions = [item.mismatched for item in items if item.mismatched is not None]
    if companions:
        assert len(companions) == len(items), "some items of a step have a companion and some have none"
        found["mismatched"] = packed(companions, range(len(companions)))
    return found


def two_prompts(items: Iterable[Item]) -> tuple[Tokens, Tokens]:
    """The first prompt of the judged items, and the first that differs from it: one of them is another's than yours."""
    first: Tokens | None = None
    for item in items:
        asked = _asked(item)
        if first is None:
            first = asked
        elif not np.array_equal(asked, first):
            return first, asked
    raise ValueError(
        "all records ask the same; KTO's reference point puts answers behind other prompts: give data with at least two"
    )


def mismatch(
    items: Sequence[Item], *, max_tokens: int, spare: tuple[Tokens, Tokens] | None = None
) -> tuple[list[Item], int]:
    """Give every judged item its companion: the same answer behind the next item's prompt, in the step's order.

    Done for the whole step before it is cut, so that the cut changes nothing. A neighbour with the same prompt is
    passed over; where all of the step ask the same (one record twice where epochs meet, say), one of the two `spare`
    prompts of the whole data stands in (of these items, unless given). A prompt that would make the companion too long
    loses tokens from its beginning; how many did is the second result.
    """
    prompts, spare = [_asked(item) for item in items], spare or two_prompts(items)
    found = []
    shorter = 0
    for place, item in enumerate(items):
        others = (prompts[(place + step) % len(items)] for step in range(1, len(items)))
        other = next(each for each in chain(others, spare) if not np.array_equal(each, prompts[place]))
        own = item.sequences[0]
        over = max(0, len(other) + len(own) - own.prompt - max_tokens)
        shorter += over > 0
        other = other[over:]
        found.append(replace(item, mismatched=_behind(other, own)))
    return found, shorter


def _asked(item: Item) -> Tokens:
    return item.sequences[0].tokens[: item.sequences[0].prompt]


def _behind(prompt: Tokens, own: Rendered) -> Rendered:
    tokens = np.concatenate([prompt, own.tokens[own.prompt :]])
    trained = np.concatenate([np.zeros(len(prompt), dtype=np.bool_), own.trained[own.prompt :]])
    return Rendered(tokens, trained, len(prompt))
