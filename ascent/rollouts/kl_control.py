"""The KL coefficient of a row, and what its controller makes of it after every rollout step.

A coefficient belongs to KL in the reward (the shape `kl_penalty`) or to the loss's KL term. Ziegler's controllers look
at KL to the reference, as sampled; PPO-penalty's looks at KL from the policy that sampled to what was made of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from ascent.advantages import reward_shaping
from ascent.algorithms.row import Row
from ascent.losses import kl, kl_controllers
from ascent.maths import masked

Batch = Mapping[str, Any]
Measured = dict[str, float]


def to_reference(batch: Batch) -> Measured:
    """KL from the policy that sampled to the reference: k1 in both units, and k3, which is never negative."""
    loss_mask_T, segments = batch["loss_mask_T"], batch["segments"]
    apart_T = kl.k1(batch["old_logprobs_T"], batch["ref_logprobs_T"], loss_mask_T).double()
    return {
        "kl_per_sequence": float(segments.sum(apart_T).mean()),
        "kl_per_token": float(masked.mean(apart_T, loss_mask_T)),
        "kl_k3_per_token": float(
            masked.mean(kl.k3(batch["old_logprobs_T"], batch["ref_logprobs_T"], loss_mask_T), loss_mask_T)
        ),
        "sequences": float(segments.count),
    }


def to_old(batch: Batch, logprobs_T: torch.Tensor) -> Measured:
    """KL from the policy that sampled to the one with these log-probs, over all of a step's trained tokens."""
    loss_mask_T = batch["loss_mask_T"]
    return {
        "kl_per_token": float(
            masked.mean(kl.to_old(logprobs_T, batch["old_logprobs_T"], loss_mask_T).double(), loss_mask_T)
        )
    }


class KLController:
    """Owns the coefficient. `weights` are the loss's, where the KL term's is kept up to date in place."""

    def __init__(self, row: Row, weights: dict[str, float] | None = None) -> None:
        self._row, self._weights = row, weights
        cell = row.kl_controller
        self.moves = cell is not None and cell.function is not kl_controllers.fixed
        self.in_loss = row.kl is not None
        penalties = [each for each in row.reward_shaping if each.function is reward_shaping.kl_penalty]
        assert not self.moves or self.in_loss or penalties, f"row {row.name} has no KL to steer"
        self.value = row.kl.weight if row.kl is not None else float(penalties[0].numbers["beta"] if penalties else 0)

    @property
    def looks_back(self) -> bool:
        """True where the controller looks at the finished update, and not at the reference."""
        return self.moves and self._row.kl is not None and self._row.kl.function is kl.to_old

    @property
    def row(self) -> Row:
        """The row with the coefficient as it is now."""
        if not self.moves or self.in_loss:
            return self._row
        shapes = [
            replace(each, numbers={**each.numbers, "beta": self.value})
            if each.function is reward_shaping.kl_penalty
            else each
            for each in self._row.reward_shaping
        ]
        return replace(self._row, reward_shaping=tuple(shapes))

    def after(self, measured: Callable[[], Measured]) -> None:
        """A rollout step is over: move the coefficient. `measured` is asked only where something moves."""
        if self.moves:
            assert self._row.kl_controller is not None
            found = measured()
            self.set(self._row.kl_controller({**found, "coefficient": self.value}))

    def set(self, value: float) -> None:
        self.value = float(value)
        if self.in_loss and self._weights is not None:
            self._weights["kl"] = self.value
