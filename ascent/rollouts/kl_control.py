"""The KL coefficient of a row, and the controller that adapts it after every rollout step.

The coefficient belongs to the KL penalty of the reward (`kl_penalty`) or to the KL term of the loss. Ziegler's
controllers read the KL to the reference, as sampled. PPO-penalty's reads the KL between the policies before and after
the update.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from ascent.advantages import reward_shaping
from ascent.algorithms.row import Row
from ascent.losses import kl, kl_controllers
from ascent.maths import masked
from ascent.maths.batch import PackedBatch

KLValues = dict[str, float]


def kl_to_reference(batch: PackedBatch) -> KLValues:
    """KL from the policy that sampled to the reference: k1 per sequence and per token, and k3 per token. Sequences
    without a trained token do not count."""
    loss_mask_T, segments = batch["loss_mask_T"], batch["segments"]
    trained_B = segments.sum(loss_mask_T) > 0
    old_logprobs_T, ref_logprobs_T = batch["old_logprobs_T"], batch["ref_logprobs_T"]
    k1_T = kl.k1(old_logprobs_T, ref_logprobs_T, loss_mask_T).double()
    return {
        "kl_per_sequence": float(masked.mean(segments.sum(k1_T), trained_B)),
        "kl_per_token": float(masked.mean(k1_T, loss_mask_T)),
        "kl_k3_per_token": float(
            masked.mean(kl.k3(old_logprobs_T, ref_logprobs_T, loss_mask_T), loss_mask_T)
        ),
        "sequences": float(trained_B.sum()),
    }


def kl_from_old(batch: PackedBatch, logprobs_T: torch.Tensor) -> KLValues:
    """KL from the policy that sampled to the one with these log-probs, over all trained tokens."""
    loss_mask_T = batch["loss_mask_T"]
    k3_T = kl.to_old(logprobs_T, batch["old_logprobs_T"], loss_mask_T).double()
    return {"kl_per_token": float(masked.mean(k3_T, loss_mask_T))}


class KLController:
    """Owns the coefficient. `weights` are the loss's; the KL term's weight is updated in place."""

    def __init__(self, row: Row, weights: dict[str, float] | None = None) -> None:
        self._row, self._weights = row, weights
        cell = row.kl_controller
        self.adapts = cell is not None and cell.function is not kl_controllers.fixed
        penalties = [
            each for each in row.reward_shaping if each.function is reward_shaping.kl_penalty
        ]
        assert not self.adapts or row.kl is not None or penalties, (
            f"row {row.name} has no KL to control"
        )
        self.value = (
            row.kl.weight
            if row.kl is not None
            else float(penalties[0].numbers["beta"] if penalties else 0)
        )

    @property
    def reads_update_kl(self) -> bool:
        """Whether the controller reads the KL of the finished update, and not the KL to the reference."""
        return self.adapts and self._row.kl is not None and self._row.kl.function is kl.to_old

    @property
    def row(self) -> Row:
        """The row with the current coefficient."""
        if not self.adapts or self._row.kl is not None:
            return self._row
        shaping = [
            replace(each, numbers={**each.numbers, "beta": self.value})
            if each.function is reward_shaping.kl_penalty
            else each
            for each in self._row.reward_shaping
        ]
        return replace(self._row, reward_shaping=tuple(shaping))

    def update(self, measure: Callable[[], KLValues]) -> None:
        """Adapt the coefficient after a rollout step. `measure` is called only if it adapts."""
        if self.adapts:
            assert self._row.kl_controller is not None
            self.set(self._row.kl_controller({**measure(), "coefficient": self.value}))

    def set(self, value: float) -> None:
        self.value = float(value)
        if self._row.kl is not None and self._weights is not None:
            self._weights["kl"] = self.value
