"""Advantages in a loop of one's own, by a row of the table or a plain function: `ascent.add_advantages`.

Axes: T flat tokens, B sequences.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from ascent.advantages import normalize
from ascent.advantages.advantage import SequenceAdvantage, TokenAdvantage
from ascent.algorithms import TABLE, Row
from ascent.api.losses import check_inputs, row_of, with_options
from ascent.cells import Cell, cell
from ascent.maths.batch import PackedBatch, select
from ascent.rollouts import experience

VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
SLOTS = ("reward_shaping", "advantage", "advantage_norm", "filter")


def add_advantages(
    batch: PackedBatch, rule: str | Row | Callable[..., Tensor] = "grpo", /, **options: Any
) -> PackedBatch | None:
    """Add `advantages_T` to a batch of scored rollouts.

    batch: what `Policy.pack` returned, with `rewards_B`.
    rule: a row of the table, or a function of tensors by name, such as `rewards_B` and `groups`, which returns
        one advantage per sequence or per token.
    options: cells of the row, as in a recipe: advantage="leave_one_out", advantage_norm="none", eps=1e-6; of a
        function its parameters that have a default or are keyword-only.

    Returns the batch with advantages, and with `returns_T` where there is a critic. Unscored completions are not
    trained. Groups that the row's filters drop (dapo: all rewards equal) are left out; None where none is left.

        batch = ascent.add_advantages(policy.pack(rollouts, rewards), "grpo")
    """
    if "rewards_B" not in batch:
        raise ValueError(
            "the batch has no rewards_B; pack rollouts with their rewards: policy.pack(rollouts, rewards)"
        )
    if callable(rule) and not isinstance(rule, Row):
        row = replace(
            TABLE["grpo"],
            advantage=_function_cell(rule, options),
            advantage_norm=cell(normalize.none),
        )
        options = {}
    else:
        row = row_of(rule)
    if row.advantage is None:
        raise ValueError(
            f"{row.name} learns from {row.source} and has no advantages; use a row such as grpo or ppo"
        )
    row = with_options(row, options, SLOTS)
    check_inputs(row.name, _inputs(row), batch)
    rows = experience.rows_with_signal(batch, row)
    return experience.add_advantages(select(batch, rows), row)[0] if rows else None


def _inputs(row: Row) -> set[str]:
    """What the cells read that is not computed on the way."""
    return {name for slot, each in row.cells() if slot in SLOTS for name in each.required} - {
        "advantages_T"
    }


def _function_cell(function: Callable[..., Tensor], options: Mapping[str, Any]) -> Cell:
    def call(**given: Any) -> SequenceAdvantage | TokenAdvantage:
        own = {name: given[name] for name in names}
        found = function(**own, **options)
        name, segments = getattr(function, "__name__", "advantage"), given["segments"]
        if not isinstance(found, Tensor) or found.shape not in (
            (segments.count,),
            (segments.total,),
        ):
            shape = (
                f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
            )
            raise ValueError(
                f"{name} returns {shape}; return a tensor of {segments.count} advantages, one per sequence, or of "
                f"{segments.total}, one per token"
            )
        return (
            TokenAdvantage(found, None, {})
            if found.shape[0] == segments.total
            else SequenceAdvantage(found, {})
        )

    every = [
        each
        for each in inspect.signature(function).parameters.values()
        if each.kind not in VARIABLE
    ]
    inputs = [
        each for each in every if each.kind is not each.KEYWORD_ONLY and each.default is each.empty
    ]
    free = [each.name for each in every if each not in inputs]
    unknown = [name for name in options if name not in free]
    if unknown:
        raise ValueError(
            f"the function has no option {unknown[0]}; it has {', '.join(free) or 'none'}"
        )
    parameters = [each.replace(kind=each.POSITIONAL_OR_KEYWORD) for each in inputs]
    names = [each.name for each in parameters]
    if "segments" not in names:
        parameters.append(inspect.Parameter("segments", inspect.Parameter.POSITIONAL_OR_KEYWORD))
    call.__dict__["__signature__"] = inspect.Signature(parameters)
    return Cell(call)
