"""Micro-batches put back together: what couples an optimizer step is computed on the whole of it (decision 0011).

Axes: T flat tokens, B sequences, P pairs. Names say their axis, so that whatever a statistic asks for can be joined and
whatever it gives can be cut again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ascent.maths.groups import Groups
from ascent.maths.segments import Segments

Batch = Mapping[str, Any]
INDICES = ("chosen_P", "rejected_P")  # of sequences: they move with the sequences before them


def concat(batches: Sequence[Batch]) -> dict[str, Any]:
    """One batch of all the sequences of the micro-batches, with every tensor that all of them have."""
    starts = [0]
    for batch in batches:
        starts.append(starts[-1] + batch["segments"].count)
    whole: dict[str, Any] = {
        "segments": Segments.from_lengths(torch.cat([batch["segments"].lengths_B for batch in batches]))
    }
    shared = [name for name in batches[0] if all(isinstance(batch.get(name), Tensor) for batch in batches)]
    for name in shared:
        pieces = [batch[name] for batch in batches]
        if name in INDICES:
            pieces = [piece + start for piece, start in zip(pieces, starts, strict=False)]
        whole[name] = torch.cat(pieces) if pieces[0].ndim else pieces[0]
    if all("groups" in batch for batch in batches):
        whole["groups"] = Groups.concat([batch["groups"] for batch in batches])
    return whole


def split(found: Mapping[str, Tensor], batches: Sequence[Batch]) -> list[dict[str, Tensor]]:
    """What was found about the whole, for each micro-batch: its own part of _T and _B, everything else as it is."""
    sizes = {"_T": [batch["segments"].total for batch in batches], "_B": [batch["segments"].count for batch in batches]}
    pieces = {name: value.split(sizes[name[-2:]]) if name[-2:] in sizes else None for name, value in found.items()}
    return [
        {name: found[name] if parts is None else parts[place] for name, parts in pieces.items()}
        for place in range(len(batches))
    ]
