"""Packed batches on a device, and dummy model outputs for them.

Axes: T flat tokens, B sequences, V vocabulary, C classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from hashlib import blake2b
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from ascent.maths.batch import PackedBatch
from ascent.maths.groups import Groups
from ascent.maths.segments import Segments
from ascent.models.forward import plan_forward


def to_device(batch: PackedBatch, device: torch.device) -> PackedBatch:
    """The batch on a device, batches inside it included. Tensors that are there already are not copied.

    Nothing here waits for the device. The plan of its forward is made from the tensors of now, when it is first needed:
    while the device still runs the micro-batch before.
    """
    moved = cast(PackedBatch, {name: _moved(value, device) for name, value in batch.items()})
    if "positions_T" in batch and "plan" not in batch and device.type != "meta":
        moved["plan"] = cache(
            partial(plan_forward, batch, device, experts_TLC=batch.get("routed_experts_TLC"))
        )
    return moved


def plan_ahead(batches: Sequence[PackedBatch]) -> None:
    """On CUDA, plan the forwards of these batches in a thread, while the first of them already run."""
    device = batches[0]["segments"].ids_T.device
    if device.type != "cuda":
        return
    worker = ThreadPoolExecutor(1, "plan", initializer=torch.cuda.set_device, initargs=(device,))
    for batch in batches:
        if "plan" in batch:
            batch["plan"] = worker.submit(batch["plan"]).result
    worker.shutdown(wait=False)


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        if device.type == "cuda" and value.device.type == "cpu":
            return value.pin_memory().to(
                device, non_blocking=True
            )  # an ordinary copy waits for all work before it
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
    sizes = {
        "T": (segments.total,),
        "B": (segments.count,),
        "TV": (segments.total, 1),
        "TC": (segments.total, 2),
    }
    device = segments.ids_T.device
    return {
        name: torch.full(sizes[name.rpartition("_")[2]], -1.0, dtype=dtype, device=device)
        for name in want
    }


def count_run_tokens(batch: PackedBatch) -> int:
    """The tokens that run: shared prefixes once."""
    return batch["plan"]().num_tokens if "plan" in batch else batch["segments"].total


class NeededTokens(NamedTuple):
    """The tokens of some micro-batches that must run: those after prompts, and every distinct prompt once."""

    after_prompts: int
    prompts: Mapping[bytes, int]  # the length of each, by a hash of its tokens


def needed_tokens(batches: Iterable[PackedBatch]) -> NeededTokens:
    """A prompt ends at the first trained token; a sequence without one, as of an unscored rollout, need not run."""
    prompts: dict[bytes, int] = {}
    after = 0
    for batch in batches:
        segments = batch["segments"].cpu()
        if "tokens_T" not in batch or "loss_mask_T" not in batch:
            after += segments.total
            continue
        tokens, starts_B = batch["tokens_T"].cpu().numpy(), segments.offsets[:-1]
        first_T = torch.where(
            batch["loss_mask_T"].cpu(), torch.arange(segments.total), segments.total
        )
        first_B = starts_B.new_full((segments.count,), segments.total)
        first_B = first_B.scatter_reduce(0, segments.ids_T, first_T, "amin")
        trained_B = first_B < segments.total
        after += int((segments.offsets[1:] - first_B)[trained_B].sum())
        for start, end in zip(
            starts_B[trained_B].tolist(), first_B[trained_B].tolist(), strict=True
        ):
            prompts[blake2b(tokens[start:end].tobytes(), digest_size=16).digest()] = end - start
    return NeededTokens(after, prompts)


def count_needed_tokens(parts: Iterable[NeededTokens]) -> int:
    """Of all parts of an optimizer step together."""
    prompts: dict[bytes, int] = {}
    after = 0
    for part in parts:
        after += part.after_prompts
        prompts.update(part.prompts)
    return after + sum(prompts.values())


class TokenCounts(NamedTuple):
    """Tokens of some micro-batches of an optimizer step: those that run, are trained, and must run."""

    run: int
    trained: Tensor
    needed: NeededTokens


def count_tokens(batches: Sequence[PackedBatch], on_host: Sequence[PackedBatch]) -> TokenCounts:
    """Those of micro-batches that are given twice: on the device and on the host."""
    masks = [batch["loss_mask_T"] for batch in batches if "loss_mask_T" in batch]
    trained = torch.stack([mask_T.sum() for mask_T in masks]).sum() if masks else torch.tensor(0)
    return TokenCounts(sum(map(count_run_tokens, batches)), trained, needed_tokens(on_host))


def token_metrics(counts: Sequence[TokenCounts]) -> dict[str, Tensor]:
    """The tokens of an optimizer step, from those of every rank."""
    return {
        "tokens/run": torch.tensor(float(sum(each.run for each in counts))),
        "tokens/needed": torch.tensor(float(count_needed_tokens(each.needed for each in counts))),
        "tokens/trained": torch.stack([each.trained for each in counts]).sum(),
    }
