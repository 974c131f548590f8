"""The entropy bonus that adapts: its rule step by step, and what it multiplies."""

from __future__ import annotations

import pytest
import torch

from ascent.cells import cell
from ascent.losses import entropy
from ascent.losses.objective import step_statistics

TWO = torch.ones(2, dtype=torch.bool)


def steps(*measured: float, **numbers: float) -> list[list[float]]:
    memory, found = None, []
    for value in measured:
        memory = entropy.thermostat(
            torch.full((2,), value, dtype=torch.float64), TWO, memory, **numbers
        )
        found.append(memory.tolist())
    return found


def test_the_rule_step_by_step() -> None:
    found = steps(0.1, 0.1, 0.3, 0.1)
    assert [each[0] for each in found] == pytest.approx(
        [0, 0.005, 0.01, 0]
    )  # used: off after a step above the target
    assert [each[1] for each in found] == pytest.approx([0.005, 0.01, 0.005, 0.01])  # in store
    assert [each[2] for each in found] == pytest.approx([0.1, 0.1, 0.3, 0.1])
    bounded = steps(*[0.1] * 5, change=0.4, largest=1.0)
    assert bounded[-1][1] == 1.0
    assert steps(0.5, 0.5)[-1][1] == 0.0


def test_a_step_that_trains_nothing_moves_nothing() -> None:
    memory = torch.tensor([0.1, 0.1, 0.3], dtype=torch.float64)
    found = entropy.thermostat(torch.zeros(2, dtype=torch.float64), ~TWO, memory)
    assert found.tolist() == pytest.approx([0, 0.1, 0.3])


def test_only_trained_tokens_are_measured_and_the_bonus_uses_this_steps_coefficient() -> None:
    made = cell(entropy.adaptive_bonus, target=0.2)
    known = {
        "entropy_T": torch.tensor([0.1, 9.0], dtype=torch.float64),
        "loss_mask_T": torch.tensor([True, False]),
    }
    memory = torch.tensor([0.0, 0.3, 0.15], dtype=torch.float64)
    found = step_statistics({**known, "entropy_memory": memory}, [made])
    assert found["entropy_memory"].tolist() == pytest.approx([0.3, 0.305, 0.1])
    assert made({**known, **found}).tolist() == pytest.approx([-0.03, 0.0])
