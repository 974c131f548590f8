"""Per-token numbers of a few rollouts of a step, for people to read (samples.jsonl). Training does not use them.

The trainer runs these rollouts twice without gradient: before the step's updates, for log-probs and entropy, and after
them, for the ratio of each token's probability after and before. They are at most a sixteenth of the step's tokens, or
one rollout.

Axes: T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

from torch import Tensor

from ascent.maths.batch import PackedBatch, select
from ascent.parallel.ranks import SINGLE, Ranks
from ascent.rollouts.config import FrozenModel
from ascent.rollouts.experience import MODEL_INPUTS, model_outputs

SHARE, MAX_TOKENS = 16, 4096  # of a step's tokens that are run again


class TokenStats(NamedTuple):
    """Of the sampled tokens of one rollout."""

    trainer_logprobs: list[float]
    entropy: list[float]
    ratio: list[float]


class TokenProbe:
    """The first trained rollouts of a batch, before the updates; `finish` takes their log-probs after the updates.

    `indices` are the rollouts of the batch's rows; rollouts of an earlier step have a negative one and are left out.
    """

    def __init__(
        self, batch: PackedBatch, indices: Sequence[int], policy: FrozenModel, ranks: Ranks = SINGLE
    ) -> None:
        self.rows = _first_trained(batch, indices)
        self._indices = [indices[row] for row in self.rows]
        if not self.rows:
            return
        inputs = {name: value for name, value in batch.items() if name in MODEL_INPUTS}
        self._some = select(cast(PackedBatch, inputs), self.rows)
        found = model_outputs(
            policy, self._some, {"logprobs_T", "entropy_T"}, self._some["segments"].total, ranks
        )
        self._logprobs_T, self._entropy_T = found["logprobs_T"], found["entropy_T"]

    def finish(self, logprobs_T: Tensor) -> dict[int, TokenStats]:
        """The numbers by rollout index; `logprobs_T` are those of `rows` under the updated policy."""
        ratio_T = (logprobs_T - self._logprobs_T).exp()
        columns = [
            self._by_rollout(each_T) for each_T in (self._logprobs_T, self._entropy_T, ratio_T)
        ]
        return {
            index: TokenStats(*each) for index, *each in zip(self._indices, *columns, strict=True)
        }

    def _by_rollout(self, values_T: Tensor) -> list[list[float]]:
        lengths = self._some["segments"].lengths_B.tolist()
        pieces = zip(values_T.split(lengths), self._some["loss_mask_T"].split(lengths), strict=True)
        return [values_T[mask_T].tolist() for values_T, mask_T in pieces]


def _first_trained(batch: PackedBatch, indices: Sequence[int]) -> list[int]:
    """The first rows that are trained on, at least one, as many as fit."""
    lengths = batch["segments"].lengths_B.tolist()
    trained = (batch["segments"].sum(batch["loss_mask_T"]) > 0).tolist()
    room, rows = min(sum(lengths) // SHARE, MAX_TOKENS), list[int]()
    for row, index in enumerate(indices):
        if index >= 0 and trained[row]:
            room -= lengths[row]
            if rows and room < 0:
                break
            rows.append(row)
    return rows
