"""Dropout is found wherever modules keep it."""

from __future__ import annotations

import torch
from torch import nn

from ascent.update.still import still_dropout


class Attention(nn.Module):
    """Keeps its rate as a number, as attention layers do."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_dropout = 0.5
        self.rate = 0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(x, self.attention_dropout, self.training)


def test_every_rate_becomes_zero_and_nothing_else_changes() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.3), Attention(), nn.GRU(4, 4, 2, dropout=0.4)).train()
    still_dropout(model.modules())
    x = torch.ones(64, 4)
    assert torch.equal(model(x)[0], model(x)[0])
    assert model[2].rate == 0.5
    assert (model[1].p, model[3].dropout) == (0.0, 0.0)
