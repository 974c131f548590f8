"""Tensors saved by several ranks in pieces and read by any number of them."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from ascent.checkpoints.resume import read_state
from ascent.checkpoints.serialization import split
from ascent.checkpoints.tensor_pieces import TensorPiece, read_range, read_whole

WHOLE = torch.arange(24.0).view(4, 6)


def saved(folder: Path, cuts: list[int]) -> Path:
    """What ranks would have written that own the ranges between the cuts."""
    ends = [0, *cuts, 24]
    for rank, (start, stop) in enumerate(itertools.pairwise(ends)):
        state = {
            "moments": TensorPiece(WHOLE.reshape(-1)[start:stop], start, (4, 6)),
            "plain": torch.ones(2),
        }
        plain, tensors = split(state)
        if rank == 0:
            (folder / "state.json").write_text(json.dumps(plain))
        own = (
            tensors if rank == 0 else {name: each for name, each in tensors.items() if "@" in name}
        )
        if own:
            save_file(
                own,
                folder
                / ("optimizer.safetensors" if rank == 0 else f"optimizer-{rank}.safetensors"),
            )
    return folder


@pytest.mark.parametrize("cuts", [[], [7], [5, 6, 20], [0, 24]])
def test_any_number_of_readers_gets_what_any_number_of_writers_wrote(
    cuts: list[int], tmp_path: Path
) -> None:
    folder = saved(tmp_path, cuts)
    state = read_state(folder)
    assert torch.equal(state["moments"], WHOLE) and torch.equal(state["plain"], torch.ones(2))
    lazy = read_state(folder, lazily=True)["moments"]
    assert lazy.shape == WHOLE.shape and lazy.dtype == torch.float32
    for start in range(24):
        for stop in range(start, 25):
            assert torch.equal(read_range(lazy, start, stop), WHOLE.reshape(-1)[start:stop])
            assert torch.equal(read_range(WHOLE, start, stop), WHOLE.reshape(-1)[start:stop])
    assert torch.equal(read_whole(lazy), WHOLE) and read_whole(WHOLE) is WHOLE


def test_a_lost_piece_is_an_error(tmp_path: Path) -> None:
    folder = saved(tmp_path, [7, 15])
    (folder / "optimizer-1.safetensors").unlink()
    with pytest.raises(ValueError, match="no values from 7 on; a part of the checkpoint is lost"):
        read_state(folder)
