"""Moving batches and standing in for a model."""

from __future__ import annotations

import torch

from ascent.maths.batch import PackedBatch
from ascent.maths.segments import Segments
from ascent.update.device import (
    count_needed_tokens,
    count_run_tokens,
    dummy_outputs,
    needed_tokens,
    to_device,
)
from tests.update.toy import batch_of, with_companion


def test_every_tensor_moves_and_the_rest_stays() -> None:
    batch = {**with_companion(batch_of(0), 1), "name": "x"}
    moved = to_device(batch, torch.device("meta"))
    assert moved.keys() == batch.keys()
    assert moved["name"] == "x"
    inner = moved["mismatched"]
    for tensor in (
        moved["tokens_T"],
        moved["segments"].ids_T,
        moved["segments"].lengths_B,
        moved["groups"].ids_B,
    ):
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


def packed(*sequences: tuple[list[int], list[int]]) -> PackedBatch:
    """Sequences of a prompt and a completion."""
    tokens = [prompt + completion for prompt, completion in sequences]
    return {
        "tokens_T": torch.tensor([token for each in tokens for token in each]),
        "positions_T": torch.tensor([place for each in tokens for place in range(len(each))]),
        "loss_mask_T": torch.tensor(
            [place >= len(p) for p, c in sequences for place in range(len(p) + len(c))]
        ),
        "segments": Segments.from_lengths(list(map(len, tokens))),
    }


def test_needed_tokens_have_every_prompt_once_and_run_tokens_what_a_forward_runs() -> None:
    shared = list(range(20))
    one, two = packed((shared, [1, 2]), (shared, [3]), ([9] * 5, [4])), packed((shared, [5, 6, 7]))
    assert count_needed_tokens([needed_tokens([one, two])]) == 20 + 2 + 1 + 5 + 1 + 3
    assert (
        count_needed_tokens([needed_tokens([one]), needed_tokens([two])]) == 20 + 2 + 1 + 5 + 1 + 3
    )
    assert count_run_tokens(to_device(one, torch.device("cpu"))) == 20 + 2 + 1 + 5 + 1
    assert count_run_tokens(two) == 23
    untrained = {**two, "loss_mask_T": torch.zeros(23, dtype=torch.bool)}
    assert count_needed_tokens([needed_tokens([untrained, two])]) == 23  # as of an unscored rollout
    assert count_needed_tokens([needed_tokens([{"segments": two["segments"]}])]) == 23


def test_a_tuple_of_batches_moves_too() -> None:
    inner = {"tokens_T": torch.arange(3), "segments": Segments.from_lengths([3])}
    (found,) = to_device({"pretraining": (inner,)}, torch.device("meta"))["pretraining"]
    assert found["tokens_T"].device.type == "meta" and found["segments"].ids_T.device.type == "meta"
