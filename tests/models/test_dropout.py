"""Dropout is found wherever modules keep it."""

from __future__ import annotations

import torch
from torch import nn

from ascent.models.dropout import disable_dropout


class Attention(nn.Module):
    """Keeps its rate as a number, as attention layers do."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_dropout = 0.5
        self.resid_pdrop = 0.5
        self.rate = 0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(x, self.attention_dropout, self.training)


def test_every_rate_becomes_zero_and_nothing_else_changes() -> None:
    model = nn.Sequential(
        nn.Linear(4, 4), nn.Dropout(0.3), Attention(), nn.GRU(4, 4, 2, dropout=0.4)
    ).train()
    disable_dropout(model.modules())
    x = torch.ones(64, 4)
    assert torch.equal(model(x)[0], model(x)[0])
    assert (model[2].rate, model[2].resid_pdrop) == (0.5, 0.0)
    assert (model[1].p, model[3].dropout) == (0.0, 0.0)


def test_every_kind_of_dropout_module_is_meant() -> None:
    parts = nn.Sequential(nn.Dropout(0.5), nn.AlphaDropout(0.3), nn.Dropout2d(0.2))
    disable_dropout(parts.modules())
    assert [part.p for part in parts] == [0, 0, 0]
