"""What a learner minimises, as a value: the terms, their weights, and what the model must supply for them.

`objective_of(row)` reads all of it off a row of the table; nothing here names an algorithm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ascent.algorithms import Row
from ascent.losses.loss import Terms
from ascent.losses.objective import file_terms, mismatched_score, policy_terms, step_statistics

# What a model can be asked for. Axes: T flat tokens, B sequences.
MODEL_OUTPUTS = frozenset({"logprobs_T", "entropy_T", "scores_B", "values_T"})

# Slots whose cells run inside the loss; the others are finished before a batch is cut.
LOSS_SLOTS = ("mismatch", "ratio", "gate", "focus", "aggregate", "kl", "value", "entropy", "auxiliary", "loss")

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

    def __post_init__(self) -> None:
        for want in (self.want, *(each.want for each in self.statistics)):
            if not want or want - MODEL_OUTPUTS:
                raise ValueError(
                    f"an objective wants {sorted(want) or 'nothing'} of the model; choose from {sorted(MODEL_OUTPUTS)}"
                )

    def __call__(self, available: Mapping[str, Any]) -> Terms:
        return self.terms(available)


def _mismatched_pair(available: Mapping[str, Any]) -> Tensor:
    names = ("logprobs_T", "reference_T", "trained_T", "segments")
    return mismatched_score(*(available[name] for name in names))


# KTO's reference point: completions put behind other prompts' questions.
MISMATCHED = Statistic("mismatched_score", "mismatched", frozenset({"logprobs_T"}), _mismatched_pair)
STATISTICS = (MISMATCHED,)


def objective_of(row: Row) -> Objective:
    """The loss half of a row: of rollouts, or of files."""
    cells = [each for slot, each in row.cells() if slot in LOSS_SLOTS]
    inputs = {name for each in cells for name in each.inputs}
    want = inputs & MODEL_OUTPUTS
    if row.loss is None or "logprobs_B" in inputs:
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
        coupling=lambda whole: step_statistics(whole, cells, mismatch=row.mismatch, ratio=row.ratio),
        coupling_want=frozenset(asked & MODEL_OUTPUTS | ({"logprobs_T"} if asked & FROM_LOGPROBS else set())),
        carried=tuple(name for name, each in coupled.items() if name in each.inputs),
    )


def _terms_of(row: Row) -> Callable[[Mapping[str, Any]], Terms]:
    if row.loss is not None:
        loss = row.loss
        return lambda available: file_terms(available, loss=loss, focus=row.focus, auxiliary=row.auxiliary)
    mismatch, ratio, gate, aggregate = row.mismatch, row.ratio, row.gate, row.aggregate
    if mismatch is None or ratio is None or gate is None or aggregate is None:
        raise ValueError(f"row {row.name!r} has neither a loss nor all of mismatch, ratio, gate and aggregate")
    return lambda available: policy_terms(
        available,
        mismatch=mismatch,
        ratio=ratio,
        gate=gate,
        aggregate=aggregate,
        focus=row.focus,
        kl=row.kl,
        entropy=row.entropy,
        value=row.value,
        auxiliary=row.auxiliary,
    )
