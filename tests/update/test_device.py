"""Moving batches and standing in for a model."""

from __future__ import annotations

import torch

from ascent.maths.segments import Segments
from ascent.update.device import count_tokens, dummy_outputs, to_device
from tests.update.toy import batch_of, with_companion


def test_every_tensor_moves_and_the_rest_stays() -> None:
    batch = {**with_companion(batch_of(0), 1), "name": "x"}
    moved = to_device(batch, torch.device("meta"))
    assert moved.keys() == batch.keys()
    assert moved["name"] == "x"
    inner = moved["mismatched"]
    for tensor in (moved["tokens_T"], moved["segments"].ids_T, moved["segments"].lengths_B, moved["groups"].ids_B):
        assert tensor.device.type == "meta"
    assert inner["segments"].ids_T.device.type == inner["tokens_T"].device.type == "meta"
    assert to_device(batch, torch.device("cpu"))["tokens_T"] is batch["tokens_T"]


def test_stand_ins_have_the_shapes_of_the_real_thing() -> None:
    batch = batch_of(0)
    found = dummy_outputs(batch, ("logprobs_T", "scores_B"), torch.float64)
    assert found["logprobs_T"].shape == (batch["segments"].total,)
    assert found["scores_B"].shape == (12,)
    assert found["scores_B"].dtype == torch.float64
    assert bool(torch.isfinite(found["logprobs_T"]).all())


def test_tokens_are_counted_with_and_without_a_mask() -> None:
    batch = batch_of(0)
    computed, trained = count_tokens(batch)
    assert (computed, int(trained)) == (batch["segments"].total, int(batch["loss_mask_T"].sum()))
    assert int(count_tokens({"segments": batch["segments"]})[1]) == 0


def test_a_tuple_of_batches_moves_too() -> None:
    inner = {"tokens_T": torch.arange(3), "segments": Segments.from_lengths([3])}
    (found,) = to_device({"pretraining": (inner,)}, torch.device("meta"))["pretraining"]
    assert found["tokens_T"].device.type == "meta" and found["segments"].ids_T.device.type == "meta"
