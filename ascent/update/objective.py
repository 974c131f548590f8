"""What a learner minimizes: the loss terms of a row, their weights, and the model outputs they read.

An objective is plain data and can be pickled. Nothing here names an algorithm: all of it follows from the row's cells.
Axes: T flat tokens, B sequences, V vocabulary, C classes, X pretraining tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from torch import Tensor

from ascent.algorithms import Row
from ascent.cells import Cell
from ascent.losses.loss import Terms, summed
from ascent.losses.objective import file_terms, policy_terms, step_statistics, value_terms
from ascent.maths.batch import PackedBatch
from ascent.update.chunked_distillation import STUDENT, chunked_distillation

MODEL_OUTPUTS = frozenset(
    {
        "logprobs_T",
        "entropy_T",
        "log_collision_T",
        "scores_B",
        "values_T",
        "logits_TV",
        "step_logits_TC",
    }
)

# Slots whose cells run inside the loss. All others run before a batch is split into micro-batches.
LOSS_SLOTS = (
    "rollout_correction",
    "ratio",
    "policy_loss",
    "token_weights",
    "aggregation",
    "kl",
    "value_loss",
    "entropy_bonus",
    "extra_losses",
    "loss",
)

# Inputs of cells that `losses.objective` derives from logprobs_T.
FROM_LOGPROBS = frozenset({"logprobs_B", "log_ratio_T"})

# KTO's reference point: the mean log-ratio of completions behind other prompts, which batches hold as `mismatched`.
MISMATCHED, MISMATCHED_SCORE = "mismatched", "mismatched_score"

# Pretraining text in a batch, and its log-probs as loss cells name them.
PRETRAINING, PRETRAINING_LOGPROBS = "pretraining", "pretraining_logprobs_X"


@dataclass(frozen=True)
class AuxiliaryBatch:
    """Losses on other text in the same optimizer step. Micro-batches may hold packed batches under `name`.

    Each has its own forward and backward pass, at temperature 1, and adds its gradient to the step's.
    """

    cells: tuple[Cell, ...]
    name: str = PRETRAINING
    want: frozenset[str] = frozenset({"logprobs_T"})

    def texts(self, batches: Sequence[PackedBatch]) -> list[PackedBatch]:
        return [text for batch in batches for text in batch.get("pretraining", ())]

    def terms(self, text: Mapping[str, Any]) -> Terms:
        inputs = {
            PRETRAINING_LOGPROBS: text["logprobs_T"],
            "pretraining_trained_X": text["loss_mask_T"],
        }
        return {each.name: summed(each(inputs)) for each in self.cells}


@dataclass(frozen=True)
class Objective:
    """The loss of one model. `part` says which terms of the row it trains.

    "all"; "policy", all but the value loss, which another model trains; or "critic", the value loss alone. A KL
    controller may hold the same `weights` and update the KL weight in place.
    """

    row: Row
    weights: Mapping[str, float]
    part: Literal["all", "policy", "critic"] = "all"

    def __post_init__(self) -> None:
        row = self.row
        if self.part == "critic" and row.value_loss is None:
            raise ValueError(f"row {row.name!r} has no value loss; a critic has nothing to learn")
        if row.loss is None and None in (
            row.rollout_correction,
            row.ratio,
            row.policy_loss,
            row.aggregation,
        ):
            raise ValueError(
                f"row {row.name!r} has neither a loss nor all of rollout_correction, ratio, policy_loss and aggregation"
            )
        if not self.want:
            raise ValueError(
                f"the losses of row {row.name!r} read no model output; one must take one of {sorted(MODEL_OUTPUTS)}"
            )

    @cached_property
    def trained(self) -> Row:
        """The row with only those terms that this objective computes on the batch itself."""
        own = tuple(
            each for each in self.row.extra_losses if PRETRAINING_LOGPROBS not in each.required
        )
        return replace(
            self.row,
            extra_losses=own,
            value_loss=None if self.part == "policy" else self.row.value_loss,
        )

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """The cells that run inside the loss."""
        slots = ("value_loss",) if self.part == "critic" else LOSS_SLOTS
        return tuple(each for slot, each in self.trained.cells() if slot in slots)

    @cached_property
    def want(self) -> frozenset[str]:
        """The model outputs that `terms` reads."""
        inputs = {name for each in self.cells for name in each.inputs}
        want = inputs & MODEL_OUTPUTS
        if self.part != "critic" and self.row.loss is None:
            want |= {"logprobs_T", "entropy_T"}  # the entropy of every policy is logged
        elif "logprobs_B" in inputs:
            want |= {"logprobs_T"}
        return frozenset(want)

    @cached_property
    def wants_mismatched(self) -> bool:
        """Whether the loss reads KTO's reference point."""
        return any(MISMATCHED_SCORE in each.inputs for each in self.cells)

    @cached_property
    def statistics(self) -> dict[str, Cell]:
        """The statistics of the whole optimizer step that the loss reads, by name (docs/decisions/0011)."""
        return {name: each for cell in self.cells for name, each in cell.statistics.items()}

    @cached_property
    def statistics_want(self) -> frozenset[str]:
        """The model outputs that `step_statistics` reads, without gradient."""
        inputs = {name for each in self.statistics.values() for name in each.inputs}
        return frozenset(
            inputs & MODEL_OUTPUTS | ({"logprobs_T"} if inputs & FROM_LOGPROBS else set())
        )

    @cached_property
    def persistent(self) -> tuple[str, ...]:
        """The statistics that enter their own next value: a learner keeps them from step to step."""
        return tuple(name for name, each in self.statistics.items() if name in each.inputs)

    @cached_property
    def auxiliary(self) -> AuxiliaryBatch | None:
        cells = tuple(
            each for each in self.row.extra_losses if PRETRAINING_LOGPROBS in each.required
        )
        return AuxiliaryBatch(cells) if cells and self.part != "critic" else None

    def terms(self, batch: Mapping[str, Any]) -> Terms:
        """The loss terms of one micro-batch, given with its model outputs and the step's statistics."""
        row = self.trained
        if self.part == "critic":
            assert row.value_loss is not None
            return value_terms(batch, value_loss=row.value_loss)
        if row.loss is not None:
            evaluate = chunked_distillation if STUDENT in row.loss.inputs else Cell.__call__
            return file_terms(
                batch,
                loss=row.loss,
                token_weights=row.token_weights,
                extra_losses=row.extra_losses,
                evaluate=evaluate,
            )
        correction, ratio, policy_loss, aggregation = (
            row.rollout_correction,
            row.ratio,
            row.policy_loss,
            row.aggregation,
        )
        assert (
            correction is not None
            and ratio is not None
            and policy_loss is not None
            and aggregation is not None
        )
        return policy_terms(
            batch,
            rollout_correction=correction,
            ratio=ratio,
            policy_loss=policy_loss,
            aggregation=aggregation,
            token_weights=row.token_weights,
            kl=row.kl,
            entropy_bonus=row.entropy_bonus,
            value_loss=row.value_loss,
            extra_losses=row.extra_losses,
        )

    def step_statistics(self, batch: Mapping[str, Any]) -> dict[str, Tensor]:
        """`statistics` of an optimizer step whose micro-batches are joined into one batch."""
        return step_statistics(
            batch, self.cells, rollout_correction=self.row.rollout_correction, ratio=self.row.ratio
        )


def objective_of(row: Row, *, critic: bool = True) -> Objective:
    """The objective of a row's policy. Without `critic`, another model trains the values."""
    return Objective(row, row.weights, "all" if critic else "policy")


def critic_objective(row: Row) -> Objective:
    """The objective of a critic with its own weights: the row's value loss."""
    return Objective(row, {"value_loss": 1.0}, "critic")
