"""No dropout: with it, the log-probability at sampling and the one in training would be of two different models."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn
from torch.nn.modules.dropout import _DropoutNd


def still_dropout(modules: Iterable[nn.Module]) -> None:
    """Set every dropout rate to 0: of dropout modules, and rates that a module keeps as a number of its own.

    The model then computes the same in training mode (which recomputing activations asks for) as in evaluation mode.
    """
    for module in modules:
        if isinstance(module, _DropoutNd):
            module.p = 0.0
        for name, value in list(vars(module).items()):
            if "dropout" in name and isinstance(value, float):
                setattr(module, name, 0.0)
