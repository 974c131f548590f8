"""Scalar heads: one number per hidden state, for critics and reward models.

A model with such a head is transformers' sequence classifier with one label, so transformers can load it. Its head,
`score`, is linear without bias: a reward is defined up to a constant. Initial weights of a reward model are normal with
standard deviation 1 / sqrt(hidden size + 1) (ALGORITHMS 4.2). Those of a critic are 0 (decision 19): drawn, its first
values would be of the size of hidden states, and whatever the rewards are, advantages would be these values.

A trained reward model also has its mean and standard deviation over demonstrations in its config. The mean is
subtracted from its scores, so that demonstrations score 0 on average (InstructGPT; ALGORITHMS 4.3). Scores are not
divided by the standard deviation: a difference of two scores is a log-odds.

A process reward model has in its config how answers are split into steps, so training and use cannot disagree; a model
without it is not a process reward model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedConfig

VALUE_HEAD_FILE = "value_head.safetensors"
NORMALIZATION, STEPS = "score_normalization", "process_reward_model"


class Normalization(NamedTuple):
    """Mean and standard deviation of the scores of `records` demonstrations."""

    mean: float
    std: float
    records: int

    def __call__(self, scores: Tensor) -> Tensor:
        return scores - self.mean


def normalization_of(config: PreTrainedConfig) -> Normalization | None:
    found = getattr(config, NORMALIZATION, None)
    return None if found is None else Normalization(**found)


def set_normalization(config: PreTrainedConfig, found: Normalization | None) -> None:
    if found is None:
        vars(config).pop(NORMALIZATION, None)
    else:
        setattr(config, NORMALIZATION, found._asdict())


class StepFormat(NamedTuple):
    """The separator of a process reward model's steps. A step's score is read at the token with the last character of
    its separator, for the last step at the token that ends the answer."""

    step_separator: str
    score_at: str = "separator"


def step_format_of(config: PreTrainedConfig) -> StepFormat | None:
    found = getattr(config, STEPS, None)
    if found is None:
        return None
    known = (
        found.keys() == set(StepFormat._fields)
        and found["score_at"] == "separator"
        and found["step_separator"]
    )
    if not known or not isinstance(found["step_separator"], str):
        raise ValueError(
            f"the model's config says {STEPS}={found!r}, which is not supported "
            f"({StepFormat('TEXT')._asdict()}); train it with row prm or prm_soft"
        )
    return StepFormat(**found)


def set_step_format(config: PreTrainedConfig, found: StepFormat | None) -> None:
    if found is None:
        vars(config).pop(STEPS, None)
    else:
        setattr(config, STEPS, found._asdict())


def new_value_head(size: int) -> nn.Linear:
    """For hidden states of this size. All values are 0."""
    head = nn.Linear(size, 1, bias=False)
    nn.init.zeros_(head.weight)
    return head


def init_head(head: nn.Linear, *, seed: int) -> None:
    """Initialize a reward model's head, the same on every device and in every precision (up to rounding)."""
    weight = torch.randn(head.weight.shape, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        head.weight.copy_(weight * (head.in_features + 1) ** -0.5)


def score_layer(module: nn.Module) -> nn.Linear:
    """The scalar head of a sequence classifier."""
    head: Any = getattr(module, "score", None)
    plain = isinstance(head, nn.Linear) and head.bias is None
    if not plain or head.out_features != 1:
        raise ValueError(
            f"{type(module).__name__} has no linear head `score` with one output and no bias (found {head!r}); "
            "use an architecture whose sequence classifier in transformers has one"
        )
    assert isinstance(head, nn.Linear)
    return head


def save_head(head: nn.Linear, file: Path) -> None:
    """Save a value head, without its model."""
    save_file({"score.weight": head.weight.detach().contiguous().cpu()}, file)


def copy_head(file: Path, head: nn.Linear) -> None:
    """Load a head from a file of `save_head`."""
    weight = load_file(file)["score.weight"]
    if weight.shape != head.weight.shape:
        raise ValueError(
            f"{file} holds weights of shape {tuple(weight.shape)}; the model needs {tuple(head.weight.shape)}"
        )
    with torch.no_grad():
        head.weight.copy_(weight)


def load_value_head(folder: Path, size: int, dtype: torch.dtype) -> nn.Linear | None:
    """The value head saved in this folder, or None."""
    path = folder / VALUE_HEAD_FILE
    if not path.exists():
        return None
    head = nn.Linear(size, 1, bias=False, dtype=dtype)
    copy_head(path, head)
    return head
