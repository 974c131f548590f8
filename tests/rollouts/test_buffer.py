"""What waits to be trained on, and that it survives being saved."""

from __future__ import annotations

from pathlib import Path

import torch

from ascent.checkpoints.resume import read_state
from ascent.checkpoints.save import save
from ascent.maths.groups import Groups
from ascent.maths.segments import Segments
from ascent.rollouts.buffer import RolloutBuffer


def batch(number: int) -> dict[str, object]:
    return {
        "segments": Segments.from_lengths([2, number]),
        "groups": Groups.from_ids([7, 3]),
        "tokens_T": torch.arange(2 + number),
        "rewards_B": torch.tensor([float("nan"), 0.1 * number]),
    }


def test_first_in_first_out_and_saved_to_the_bit(tmp_path: Path) -> None:
    waiting = RolloutBuffer()
    for each in (batch(1), None, batch(3)):
        waiting.add(each)
    assert waiting.added == 3
    assert waiting.pop() is not None
    save(tmp_path, 1, {"waiting": waiting.state()}, {})
    again = RolloutBuffer()
    again.load_state(read_state(tmp_path / "1")["waiting"])
    assert again.added == 3
    assert again.pop() is None
    found, expected = again.pop(), batch(3)
    assert found is not None
    assert found["segments"].lengths_B.tolist() == [2, 3]
    assert found["groups"].ids_B.tolist() == [1, 0] and found["groups"].count == 2
    assert found["tokens_T"].equal(expected["tokens_T"])  # type: ignore[arg-type]
    assert found["rewards_B"].view(torch.int32).equal(expected["rewards_B"].view(torch.int32))  # type: ignore[attr-defined]
