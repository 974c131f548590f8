"""Packed batches on a device, and dummy model outputs for them.

Axes: T flat tokens, B sequences, V vocabulary, C classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache, partial
from typing import Any, cast

import torch
from torch import Tensor

from ascent.maths.batch import PackedBatch
from ascent.maths.groups import Groups
from ascent.maths.segments import Segments
from ascent.models.forward import plan_forward


def to_device(batch: PackedBatch, device: torch.device) -> PackedBatch:
    """The batch on a device, batches inside it included. Tensors that are there already are not copied.

    The plan of its forward is made from the tensors of now, when it is first needed: while the device still runs the
    micro-batch before.
    """
    moved = cast(PackedBatch, {name: _moved(value, device) for name, value in batch.items()})
    if "positions_T" in batch and "plan" not in batch and device.type != "meta":
        moved["plan"] = cache(partial(plan_forward, batch, device, experts_TLC=batch.get("routed_experts_TLC")))
    return moved


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


def count_run_tokens(batch: PackedBatch) -> int:
    """The tokens that run: shared prefixes once."""
    return batch["plan"]().num_tokens if "plan" in batch else batch["segments"].total


def count_needed_tokens(batches: Iterable[PackedBatch]) -> int:
    """The tokens of an optimizer step, every distinct prompt counted once.

    A prompt ends at the first trained token.
    """
    prompts: set[bytes] = set()
    needed = 0
    for batch in batches:
        if "tokens_T" not in batch or "loss_mask_T" not in batch:
            needed += batch["segments"].total
            continue
        tokens_T, mask_T = batch["tokens_T"].cpu(), batch["loss_mask_T"].cpu()
        for own_T, own_mask_T in zip(
            *(each.split(batch["segments"].lengths_B.tolist()) for each in (tokens_T, mask_T)), strict=True
        ):
            length = int(own_mask_T.to(torch.int8).argmax()) if bool(own_mask_T.any()) else 0
            prompt = own_T[:length].numpy().tobytes()
            needed += own_T.numel() - (length if prompt in prompts else 0)
            prompts.add(prompt)
    return needed
