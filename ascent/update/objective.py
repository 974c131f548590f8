"""What a learner minimizes, as a value: the terms, their weights, and what the model must supply for them.

`objective_of(row)` reads all of it off a row of the table; nothing here names an algorithm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from ascent.algorithms import Row
from ascent.cells import Cell
from ascent.losses.loss import Terms, summed
from ascent.losses.objective import file_terms, mismatched_score, policy_terms, step_statistics, value_terms
from ascent.update import chunked_distillation

# What a model can be asked for. Axes: T flat tokens, B sequences.
MODEL_OUTPUTS = frozenset({"logprobs_T", "entropy_T", "log_collision_T", "scores_B", "values_T", "logits_TV"})
MODEL_OUTPUTS |= {"step_logits_TC"}

# Slots whose cells run inside the loss; the others are finished before a batch is cut.
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

# What `losses.objective` makes of log-probs before a cell sees them.
FROM_LOGPROBS = frozenset({"logprobs_B", "log_ratio_T"})


@dataclass(frozen=True)
class Statistic:
    """A number that couples the whole optimizer step, known before any of it is trained.

    Each micro-batch carries a second packed batch under the name `companion`. Its model outputs, without gradient, go
    through `pair` to a (sum, count); the quotient of the sums over all micro-batches is given to every loss as `name`.
    """

    name: str
    companion: str
    want: frozenset[str]
    pair: Callable[[Mapping[str, Any]], Tensor]


@dataclass(frozen=True)
class AuxiliaryBatch:
    """Terms of other text that a step trains on too: micro-batches may carry packed batches under this name.

    Each has a forward and a backward pass of its own, at temperature 1, and adds its gradient to the step's.
    """

    companion: str
    want: frozenset[str]
    terms: Callable[[Mapping[str, Any]], Terms]

    def texts(self, batches: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        return [text for batch in batches for text in batch.get(self.companion, ())]


@dataclass(frozen=True)
class Objective:
    """`terms` maps everything known about one micro-batch to its loss terms; `want` are the model outputs it reads.

    `coupling` maps the whole optimizer step, its micro-batches joined, to what each of them must know about it;
    `coupling_want` are the model outputs that takes, without gradient. `carried` are names it gets back in the next
    step as it left them (docs/decisions/0011).
    """

    terms: Callable[[Mapping[str, Any]], Terms]
    weights: Mapping[str, float]
    want: frozenset[str]
    statistics: tuple[Statistic, ...] = ()
    coupling: Callable[[Mapping[str, Any]], dict[str, Tensor]] | None = None
    coupling_want: frozenset[str] = frozenset()
    carried: tuple[str, ...] = ()
    beside: AuxiliaryBatch | None = None

    def __post_init__(self) -> None:
        for want in (self.want, *(each.want for each in self.statistics)):
            if not want or want - MODEL_OUTPUTS:
                raise ValueError(
                    f"an objective wants {sorted(want) or 'nothing'} of the model; choose from {sorted(MODEL_OUTPUTS)}"
                )

    def __call__(self, available: Mapping[str, Any]) -> Terms:
        return self.terms(available)


def _mismatched_pair(available: Mapping[str, Any]) -> Tensor:
    names = ("logprobs_T", "ref_logprobs_T", "loss_mask_T", "segments")
    return mismatched_score(*(available[name] for name in names))


# KTO's reference point: completions put behind other prompts' questions.
MISMATCHED = Statistic("mismatched_score", "mismatched", frozenset({"logprobs_T"}), _mismatched_pair)
STATISTICS = (MISMATCHED,)

# Text of pretraining data, as batches carry it and as the loss names what the model says about it.
PRETRAINING, PRETRAINING_LOGPROBS = "pretraining", "pretraining_logprobs_X"


def critic_objective(row: Row) -> Objective:
    """What a critic with weights of its own minimizes: the row's value loss alone, with nothing to weigh it by."""
    if row.value_loss is None:
        raise ValueError(f"row {row.name!r} has no value loss; a critic has nothing to learn")
    value = row.value_loss
    return Objective(lambda known: value_terms(known, value_loss=value), {"value_loss": 1.0}, frozenset({"values_T"}))


def objective_of(row: Row, *, critic: bool = True) -> Objective:
    """The loss half of a row: of rollouts, or of files. Without `critic` another model learns the values."""
    weights = row.weights
    row = row if critic else replace(row, value_loss=None)
    texts = [each for each in row.extra_losses if PRETRAINING_LOGPROBS in each.required]
    row = replace(row, extra_losses=tuple(each for each in row.extra_losses if each not in texts))
    return replace(_objective_of(row), weights=weights, beside=_beside(texts))


def _beside(texts: Sequence[Cell]) -> AuxiliaryBatch | None:
    def terms(known: Mapping[str, Any]) -> Terms:
        own = {PRETRAINING_LOGPROBS: known["logprobs_T"], "pretraining_trained_X": known["loss_mask_T"]}
        return {each.name: summed(each(own)) for each in texts}

    return AuxiliaryBatch(PRETRAINING, frozenset({"logprobs_T"}), terms) if texts else None


def _objective_of(row: Row) -> Objective:
    cells = [each for slot, each in row.cells() if slot in LOSS_SLOTS]
    inputs = {name for each in cells for name in each.inputs}
    want = inputs & MODEL_OUTPUTS
    if row.loss is None:
        want |= {"logprobs_T", "entropy_T"}  # every policy's entropy is logged, whether or not it is paid for
    elif "logprobs_B" in inputs:
        want |= {"logprobs_T"}
    statistics = tuple(each for each in STATISTICS if each.name in inputs)
    coupled = {name: each for cell in cells for name, each in cell.statistics.items()}
    if not coupled:
        return Objective(_terms_of(row), row.weights, frozenset(want), statistics)
    asked = {name for each in coupled.values() for name in each.inputs}
    return Objective(
        _terms_of(row),
        row.weights,
        frozenset(want),
        statistics,
        coupling=lambda whole: step_statistics(
            whole, cells, rollout_correction=row.rollout_correction, ratio=row.ratio
        ),
        coupling_want=frozenset(asked & MODEL_OUTPUTS | ({"logprobs_T"} if asked & FROM_LOGPROBS else set())),
        carried=tuple(name for name, each in coupled.items() if name in each.inputs),
    )


def _terms_of(row: Row) -> Callable[[Mapping[str, Any]], Terms]:
    if row.loss is not None:
        loss = row.loss
        how = (
            chunked_distillation.chunked_distillation if chunked_distillation.STUDENT in loss.inputs else Cell.__call__
        )
        return lambda available: file_terms(
            available, loss=loss, token_weights=row.token_weights, extra_losses=row.extra_losses, evaluate=how
        )
    correction, ratio, policy_loss, aggregation = row.rollout_correction, row.ratio, row.policy_loss, row.aggregation
    if correction is None or ratio is None or policy_loss is None or aggregation is None:
        raise ValueError(
            f"row {row.name!r} has neither a loss nor all of rollout_correction, ratio, policy_loss and aggregation"
        )
    return lambda available: policy_terms(
        available,
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
