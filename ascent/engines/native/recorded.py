"""A small model's decode forward on a CPU, recorded once and replayed without Python.

In a model of a few small layers, most of a step is Python between the products. Here the stock modules run once under
TorchScript's tracer, for one batch size, and the list of operations is replayed from then on. The weights are not
copied: the recording holds the modules' own parameters. Attention is recorded as one operation that reads the context
of its own time (see `models.attention`). A recording is used only if it reproduces the modules' own bits at first.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

from ascent.models.model import LanguageModel
from ascent.models.quiet import quiet

LARGEST = 20_000_000  # parameters: beyond, the products take nearly all of a step
Forward = Callable[[Tensor, Tensor], Tensor]


def worth_recording(model: LanguageModel) -> bool:
    return model.device.type == "cpu" and sum(each.numel() for each in model.module.parameters()) <= LARGEST


class _Hidden(nn.Module):
    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, tokens_T: Tensor, positions_T: Tensor) -> Tensor:
        out = self.decoder(input_ids=tokens_T[None], position_ids=positions_T[None], use_cache=False)
        hidden_TD: Tensor = out.last_hidden_state[0]
        return hidden_TD


def forward_of(model: LanguageModel) -> Forward:
    """The modules' own forward: hidden states of flat tokens."""
    return _Hidden(model.module.base_model)


def recorded(own: Forward, tokens_T: Tensor, positions_T: Tensor) -> Forward:
    """A replay of `own` for this many tokens, under the context entered now; `own` itself where that fails."""
    expected_TD = own(tokens_T, positions_T)
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tracer warns of every Python number it fixes: the batch size is one
        try:
            replay: Forward = torch.jit.trace(own, (tokens_T, positions_T), check_trace=False)
        except RuntimeError:
            return own
    return replay if torch.equal(replay(tokens_T, positions_T), expected_TD) else own
