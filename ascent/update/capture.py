"""Record an optimizer step while it is taken: log-probs, ratios, each term's gradient, each sequence's contribution.

Recording reads and clears gradients before the step begins, so the step itself has the same bits as without it.
Axes: T flat tokens, B sequences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor

from ascent.maths.batch import PackedBatch, select
from ascent.maths.metrics import Accumulator
from ascent.protocols import State, Weights
from ascent.update import microbatch
from ascent.update.device import to_device
from ascent.update.learner import LocalLearner
from ascent.update.objective import Objective

MAX_UNITS = (
    1024  # sequences, pairs or groups whose contribution is computed, one backward pass each
)
LARGEST_WEIGHTS = 5
# What is recorded of every trained token, as far as a batch has it.
TOKEN_FIELDS = (
    "sampler_logprobs_T",
    "old_logprobs_T",
    "ref_logprobs_T",
    "advantages_T",
    "returns_T",
    "old_values_T",
)


@dataclass(frozen=True)
class TermRecord:
    """A loss term: its value, its weight in the sum, and the norm of the weighted term's gradient."""

    value: float
    weight: float
    grad_norm: float


@dataclass
class SequenceRecord:
    """One sequence of an update. Lists have one value per trained token.

    `contribution` is the share of this sequence in the squared gradient norm, <g_i, g> / <g, g>; shares add up to 1. A
    pair or a group that the loss compares has one share, noted at its first sequence. None: not computed.
    """

    tokens: list[int]
    trained: list[bool]
    values: dict[str, list[float]]
    contribution: float | None = None


@dataclass(frozen=True)
class UpdateRecord:
    """One optimizer step. `largest_weights` are the tensors with the largest share of the squared gradient norm.

    Terms, norms and shares are those of the batch itself; pretraining text that is mixed in has its own metrics.
    """

    model: str
    terms: dict[str, TermRecord]
    grad_norm: float
    largest_weights: dict[str, float]
    sequences: list[SequenceRecord]
    metrics: dict[str, float] = field(default_factory=dict)


class CapturingLearner:
    """Implements `protocols.Learner` by another learner, and appends a record of every step to `records`."""

    def __init__(self, name: str, learner: LocalLearner, records: list[UpdateRecord]) -> None:
        self.name, self.learner, self.records = name, learner, records

    def begin_step(self, step: int) -> None:
        self.learner.begin_step(step)

    def step(self, batches: Sequence[PackedBatch], objective: Objective) -> dict[str, Accumulator]:
        record = capture_update(self.name, self.learner, batches, objective)
        stats = self.learner.step(batches, objective)
        record.metrics.update({name: each.value() for name, each in stats.items()})
        if "logprobs_T" in objective.want:
            _add_logprobs_after(record, self.learner, batches)
        self.records.append(record)
        return stats

    def logprobs(self, batch: PackedBatch) -> Tensor:
        return self.learner.logprobs(batch)

    def weights(self) -> Weights:
        return self.learner.weights()

    def state(self) -> State:
        return self.learner.state()

    def load_state(self, state: State) -> None:
        self.learner.load_state(state)

    def close(self) -> None:
        self.learner.close()


def capture_update(
    name: str, learner: LocalLearner, batches: Sequence[PackedBatch], objective: Objective
) -> UpdateRecord:
    """What the next step over these micro-batches will do. The learner is left as it was."""
    share, statistics, totals = learner.prepare(batches, objective)
    moved = [batch for batch, _ in share]
    optimizer = learner.optimizer
    terms: dict[str, TermRecord] = {}
    for term in totals:
        optimizer.clear()
        value = _backward(learner, moved, statistics, totals, objective, only=term)
        if value is not None:
            terms[term] = TermRecord(
                value, objective.weights.get(term, 1.0), float(optimizer.norm())
            )
    optimizer.clear()
    _backward(learner, moved, statistics, totals, objective)
    whole = {name: each.clone() for name, each in optimizer.gradients().items()}
    squared = {name: float(each.double().square().sum()) for name, each in whole.items()}
    norm = float(optimizer.norm())
    total = sum(squared.values())
    largest = sorted(squared, key=lambda each: squared[each], reverse=True)[:LARGEST_WEIGHTS]
    sequences = _sequence_records(learner, batches, objective)
    units = [_units(batch, objective) for batch in batches]
    if total > 0 and sum(map(len, units)) <= MAX_UNITS:
        places = iter(sequences)
        for batch, own, rows_of in zip(batches, statistics, units, strict=True):
            own_places = [next(places) for _ in range(batch["segments"].count)]
            for rows in rows_of:
                optimizer.clear()
                piece, scalars = _select(batch, own, rows, learner)
                _backward(learner, [piece], [scalars], totals, objective)
                own_places[rows[0]].contribution = _dot(optimizer.gradients(), whole) / total
    optimizer.clear()
    shares = {each: squared[each] / total if total else 0.0 for each in largest}
    return UpdateRecord(name, terms, norm, shares, sequences)


def _backward(
    learner: LocalLearner,
    batches: Sequence[PackedBatch],
    statistics: Sequence[Mapping[str, Tensor]],
    totals: Mapping[str, Tensor],
    objective: Objective,
    only: str | None = None,
) -> float | None:
    """Add the gradient of all terms, or of one; returns its unweighted value, None where no micro-batch has it."""
    value = None
    learner.model.train()
    try:
        for batch, own in zip(batches, statistics, strict=True):
            outputs = learner.model.outputs(batch, objective.want, learner.temperature)
            outputs.pop("policy/routes_changed_frac", None)
            terms = objective.terms({**batch, **own, **outputs})
            chosen = {name: loss for name, loss in terms.items() if only in (None, name)}
            if not chosen:
                continue
            parts = (
                float(each.numerator.detach() / totals[name].clamp(min=1))
                for name, each in chosen.items()
            )
            value = (value or 0.0) + sum(parts)
            share = microbatch.scaled(chosen, totals, objective.weights)
            if share.requires_grad:
                share.backward()
    finally:
        learner.model.eval()
    return value


def _units(batch: PackedBatch, objective: Objective) -> list[list[int]]:
    """The rows that the loss compares: pairs, groups, or single sequences; none where rows cannot be taken apart."""
    if "gold_B" in batch or "mismatched" in batch or "teacher_TV" in batch:
        return []
    if "chosen_P" in batch:
        pairs = zip(batch["chosen_P"].tolist(), batch["rejected_P"].tolist(), strict=True)
        return [sorted(pair) for pair in pairs]
    rows = range(batch["segments"].count)
    if "groups" in batch and (objective.row.trains_groups or "ranks_B" in batch):
        ids = batch["groups"].ids_B.tolist()
        return [[row for row in rows if ids[row] == group] for group in dict.fromkeys(ids)]
    return [[row] for row in rows]


def _select(
    batch: PackedBatch, statistics: Mapping[str, Tensor], rows: Sequence[int], learner: LocalLearner
) -> tuple[PackedBatch, dict[str, Tensor]]:
    """Some rows as a batch of their own, and the statistics that are numbers."""
    by_row = {
        name: each.cpu()
        for name, each in statistics.items()
        if each.ndim and name.endswith(("_T", "_B"))
    }
    plain = {name: each for name, each in batch.items() if name not in ("plan", "pretraining")}
    piece = select(cast(PackedBatch, {**plain, **by_row}), rows)
    scalars = {name: each for name, each in statistics.items() if name not in by_row}
    return to_device(piece, next(iter(learner.optimizer.weights.values())).device), scalars


def _dot(gradients: Mapping[str, Tensor], whole: Mapping[str, Tensor]) -> float:
    pairs = [(each, whole[name]) for name, each in gradients.items() if name in whole]
    return sum(float((own.double() * other.double()).sum()) for own, other in pairs)


def _sequence_records(
    learner: LocalLearner, batches: Sequence[PackedBatch], objective: Objective
) -> list[SequenceRecord]:
    found = []
    want = objective.want & {"logprobs_T", "entropy_T", "values_T"}
    for batch in batches:
        fields: dict[str, Tensor] = {
            name: cast(Any, batch)[name] for name in TOKEN_FIELDS if name in batch
        }
        fields |= (
            {name: each.cpu() for name, each in learner.infer(batch, frozenset(want)).items()}
            if want
            else {}
        )
        if "old_logprobs_T" in fields and "logprobs_T" in fields:
            fields["ratio_T"] = (fields["logprobs_T"] - fields["old_logprobs_T"]).exp()
        lengths = batch["segments"].lengths_B.tolist()
        masks = batch["loss_mask_T"].split(lengths)
        pieces = {name.removesuffix("_T"): each.split(lengths) for name, each in fields.items()}
        for row, tokens_T in enumerate(batch["tokens_T"].split(lengths)):
            values = {name: each[row][masks[row]].tolist() for name, each in pieces.items()}
            found.append(SequenceRecord(tokens_T.tolist(), masks[row].tolist(), values))
    return found


def _add_logprobs_after(
    record: UpdateRecord, learner: LocalLearner, batches: Sequence[PackedBatch]
) -> None:
    """The log-probs after the update, and the ratio to those before it."""
    places = iter(record.sequences)
    for batch in batches:
        lengths = batch["segments"].lengths_B.tolist()
        after = learner.logprobs(batch).cpu().split(lengths)
        for row, mask_T in enumerate(batch["loss_mask_T"].split(lengths)):
            values = next(places).values
            new_T = after[row][mask_T]
            values["logprobs_after"] = new_T.tolist()
            values["ratio_after"] = (new_T - torch.tensor(values["logprobs"])).exp().tolist()
