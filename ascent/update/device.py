"""Packed batches on a device, and dummy model outputs for them.

Axes: T flat tokens, B sequences, V vocabulary, C classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import torch
from torch import Tensor

from ascent.maths.batch import PackedBatch
from ascent.maths.groups import Groups
from ascent.maths.segments import Segments


def to_device(batch: PackedBatch, device: torch.device) -> PackedBatch:
    """The batch on a device, batches inside it included. Tensors that are there already are not copied."""
    return cast(PackedBatch, {name: _moved(value, device) for name, value in batch.items()})


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, Segments):
        return Segments(_moved(value.lengths_B, device), _moved(value.ids_T, device))
    if isinstance(value, Groups):
        return Groups(_moved(value.ids_B, device), value.count, _moved(value.uids_B, device))
    if isinstance(value, tuple):
        return tuple(_moved(each, device) for each in value)
    return to_device(cast(PackedBatch, value), device) if isinstance(value, Mapping) else value


def dummy_outputs(batch: PackedBatch, want: Iterable[str], dtype: torch.dtype) -> dict[str, Tensor]:
    """Outputs of the right shapes without the model, for counting denominators, which do not depend on outputs.

    They are -1, a valid log-probability for every loss.
    """
    segments = batch["segments"]
    sizes = {"T": (segments.total,), "B": (segments.count,), "TV": (segments.total, 1), "TC": (segments.total, 2)}
    device = segments.ids_T.device
    return {name: torch.full(sizes[name.rpartition("_")[2]], -1.0, dtype=dtype, device=device) for name in want}


def count_tokens(batch: PackedBatch) -> tuple[int, Tensor]:
    """The number of tokens, and of trained tokens."""
    segments = batch["segments"]
    loss_mask_T = batch.get("loss_mask_T")
    trained = segments.ids_T.new_zeros(()) if loss_mask_T is None else loss_mask_T.sum()
    return segments.total, trained
