"""The loss of a step in a loop of one's own: a row or a loss of the table with options, or a plain function of tensors.

Options are the `cells` of a recipe: a slot with another function (`policy_loss="cispo"`), with other numbers
(`policy_loss={"high": 0.28}`), with another weight (`kl=0.01`) or without a cell (`kl=False`), or just a number that
only one of the row's cells has (`beta=0.1`). Axes: T flat tokens, B sequences, P pairs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from ascent.algorithms import TABLE, VOCABULARY, Row
from ascent.cells import Cell, cell, nearest, recipe_numbers
from ascent.config.schema import MULTI_CELL_SLOTS, TERM_SLOTS
from ascent.config.validate import validate
from ascent.losses.loss import ItemLosses
from ascent.maths.batch import PackedBatch
from ascent.maths.metrics import mean_of, single
from ascent.maths.segments import Segments
from ascent.plan.overrides import with_budget, with_cells
from ascent.plan.rows import find_row
from ascent.update.objective import LOSS_SLOTS, Objective

Loss = str | Row | Callable[..., Any]
Head = Literal["tokens", "scalar", "both"]
# Inputs of every wrapped function, besides its own: they tell which entries of its result count.
COUNTED_BY = ("loss_mask_T", "segments", "chosen_P", "rejected_P")

# Inputs of cells that only the caller can supply, and how.
SUPPLY = {
    "advantages_T": 'batch = ascent.add_advantages(batch, "grpo")',
    "returns_T": 'batch = ascent.add_advantages(batch, "ppo")',
    "old_logprobs_T": 'batch["old_logprobs_T"] = policy.logprobs(batch)',
    "ref_logprobs_T": 'batch["ref_logprobs_T"] = policy.reference_logprobs(batch)',
    "teacher_logprobs_T": 'batch["teacher_logprobs_T"] = teacher.logprobs(batch)',
    "teacher_TV": 'for each in (batches := policy.microbatches(batch)): each["teacher_TV"] = teacher.logits(each)',
    "values_T": 'batch |= critic.outputs(batch, "values_T")',
    "greedy_rewards_B": "one reward for each sequence, of the prompt's policy.sample(prompts, greedy=True)",
    "chosen_P": "batch = policy.pack(pairs), with records of kind pairs",
    "ranks_B": "batch = policy.pack(rankings), with records of kind rankings",
    "desirable_B": "batch = policy.pack(answers), with records of kind unpaired",
}


def check_inputs(name: str, needed: Collection[str], batch: Mapping[str, Any]) -> None:
    """ValueError that says how to supply what the batch lacks."""
    needed = {
        "ref_logprobs_T" if each == "ref_logprobs_B" else each for each in needed
    }  # their sums
    missing = [each for each in SUPPLY if each in needed and each not in batch]
    if missing:
        ways = "; ".join(f"{each}: {SUPPLY[each]}" for each in missing)
        raise ValueError(
            f"{name} needs {', '.join(missing)}, which this batch does not have. {ways}"
        )


def check_step(batches: Sequence[PackedBatch], objective: Objective, steps: int) -> None:
    """What the loss reads is there, and its ratio is to the policy that sampled; the policy has taken `steps` steps."""
    row, first = objective.row, batches[0]
    needed = {name for each in objective.cells for name in each.required} - objective.want
    check_inputs(row.name, needed - ({"old_logprobs_T"} if row.loss is None else set()), first)
    if objective.wants_mismatched and "ref_logprobs_T" not in first.get(
        "mismatched", {"ref_logprobs_T": None}
    ):
        raise ValueError(
            f"{row.name} needs reference log-probs of its mismatched answers too: inner = batch['mismatched']; "
            "inner['ref_logprobs_T'] = policy.reference_logprobs(inner)"
        )
    if row.loss is None and objective.part != "critic" and "old_logprobs_T" not in first:
        check_versions(batches, steps)


def check_versions(batches: Sequence[PackedBatch], steps: int) -> None:
    """ValueError where log-probs of the policy that sampled are needed and it is gone."""
    sampled = max(
        (int(each["versions_T"].max()) for each in batches if "versions_T" in each), default=steps
    )
    if sampled < steps:
        raise ValueError(
            f"the batch was sampled at step {sampled} and the policy is at step {steps}, so its ratio would be 1 "
            'everywhere; set batch["old_logprobs_T"] = policy.logprobs(batch) before the first step'
        )


def objective_of_loss(
    loss: Loss,
    options: Mapping[str, Any],
    *,
    head: Head,
    max_new_tokens: int,
    single_microbatch: bool,
) -> Objective:
    """What the learner minimizes. A scalar model trains a row's value loss, one with a token head all other terms."""
    if callable(loss) and not isinstance(loss, Row):
        row = loss_row(function_loss(loss, options, single_microbatch=single_microbatch))
    else:
        row = with_options(row_of(loss), options, LOSS_SLOTS, max_new_tokens)
    if "step_head" in row.needs:
        raise ValueError(
            f"{row.name} trains a process reward model, which needs a recipe: ascent.train({row.name!r}, ...)"
        )
    critic = head == "scalar" and row.loss is None
    part: Literal["all", "policy", "critic"] = (
        "critic" if critic else "all" if head == "both" else "policy"
    )
    return Objective(row, {"value_loss": 1.0} if critic else row.weights, part)


def row_of(name: str | Row) -> Row:
    """A row of the table, or one that holds a single loss function of its vocabulary."""
    if isinstance(name, Row):
        return name
    if not isinstance(name, str):
        raise ValueError(
            f"a loss is a name of the table, a Row or a function, not {name!r} ({type(name).__name__})"
        )
    if name not in TABLE and name in VOCABULARY["loss"]:
        return loss_row(cell(VOCABULARY["loss"][name]))
    return find_row(name)


def loss_row(loss: Cell) -> Row:
    return Row(loss.name, loss.name, "", loss.summary, "", (), loss=loss)


def with_options(
    row: Row, options: Mapping[str, Any], slots: Collection[str], max_new_tokens: int | None = None
) -> Row:
    """The row with the cells of its `slots` changed by the options."""
    section: dict[str, Any] = {}
    for name, value in options.items():
        if name in VOCABULARY and name not in slots:
            raise ValueError(
                f"{name} has no effect here; the slots of this call are {', '.join(slots)}"
            )
        slot, change = (
            (name, _slot_change(name, value))
            if name in VOCABULARY
            else _number_change(row, name, value, slots)
        )
        if isinstance(change, dict) and isinstance(section.get(slot), dict):
            change = section[slot] | change
        section[slot] = change
    complete = {
        "algorithm": row.name,
        "model": {"policy": "-"},
        "data": {"train": "-"},
        "cells": section,
    }
    cells = validate(complete).cells
    changed = with_cells(row, cells)
    return changed if max_new_tokens is None else with_budget(changed, cells, max_new_tokens)


def _slot_change(slot: str, value: Any) -> Any:
    if isinstance(value, str):
        return {value: {}} if slot in MULTI_CELL_SLOTS else {"use": value}
    if slot in TERM_SLOTS and isinstance(value, int | float) and not isinstance(value, bool):
        return {"weight": float(value)}
    return value


def _number_change(
    row: Row, name: str, value: Any, slots: Collection[str]
) -> tuple[str, dict[str, Any]]:
    """A number by its name alone, where one cell of the row has it."""
    cells = [(slot, each) for slot, each in row.cells() if slot in slots]
    owners = [(slot, each) for slot, each in cells if name in recipe_numbers(each.function)]
    if not owners:
        known = {number for _, each in cells for number in recipe_numbers(each.function)} | {
            slot for slot, _ in cells
        }
        raise ValueError(f"{row.name} has no option {name!r}; {nearest(name, known)}")
    if len(owners) > 1:
        ways = " or ".join(f"{slot}={_put(slot, each, name, value)}" for slot, each in owners)
        raise ValueError(
            f"{name}={value!r}: several cells of {row.name} have this number; write {ways}"
        )
    ((slot, each),) = owners
    return slot, _put(slot, each, name, value)


def _put(slot: str, each: Cell, name: str, value: Any) -> dict[str, Any]:
    return {each.name: {name: value}} if slot in MULTI_CELL_SLOTS else {name: value}


def function_loss(
    function: Callable[..., Any], options: Mapping[str, Any], *, single_microbatch: bool
) -> Cell:
    """A plain function as a loss. Its positional parameters are fields of the batch and model outputs, by name."""
    name = getattr(function, "__name__", type(function).__name__)
    parameters = inspect.signature(function).parameters.values()
    own = [
        each
        for each in parameters
        if each.kind not in (each.KEYWORD_ONLY, each.VAR_KEYWORD, each.VAR_POSITIONAL)
    ]
    known = {each.name for each in parameters if each.kind is each.KEYWORD_ONLY}
    for option in options:
        if option not in known:
            raise ValueError(
                f"{name} has no option {option!r}; options are its keyword-only parameters: {nearest(option, known)}"
            )

    def call(**given: Any) -> ItemLosses:
        inputs = {each.name: given[each.name] for each in own if each.name in given}
        losses = item_losses(
            name, function(**inputs, **options), given, single_microbatch=single_microbatch
        )
        trains = any(isinstance(value, Tensor) and value.requires_grad for value in inputs.values())
        if trains and not losses.losses.requires_grad:
            raise ValueError(
                f"{name} returns a loss without a gradient; compute it from logprobs_T, not a detached copy"
            )
        return losses

    optional = [
        inspect.Parameter(each, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None)
        for each in COUNTED_BY
    ]
    names = {each.name for each in own}
    call.__name__ = name if name.isidentifier() else "loss"
    call.__doc__ = function.__doc__
    call.__dict__["__signature__"] = inspect.Signature(
        [*own, *(each for each in optional if each.name not in names)]
    )
    return Cell(call)


def item_losses(
    name: str, result: Any, given: Mapping[str, Any], *, single_microbatch: bool
) -> ItemLosses:
    """What a plain function returned, with the entries that count: trained tokens, answers or pairs."""
    if isinstance(result, ItemLosses):
        return result
    losses, logged = result if isinstance(result, tuple) and len(result) == 2 else (result, {})
    segments: Segments = given["segments"]
    if not isinstance(losses, Tensor):
        raise ValueError(
            f"{name} returns {type(losses).__name__}; return a tensor, or (tensor, metrics by name)"
        )
    counted: Tensor | None
    if losses.ndim == 0 and single_microbatch:
        losses, counted = losses[None], torch.ones(1, dtype=torch.bool, device=losses.device)
    else:
        counted = _counted(
            losses, given["loss_mask_T"], segments, given.get("chosen_P"), given.get("rejected_P")
        )
    if counted is None:
        shape = "one number" if losses.ndim == 0 else f"shape {tuple(losses.shape)}"
        raise ValueError(
            f"{name} returns {shape} for {segments.total} tokens of {segments.count} sequences; return one loss per "
            "token, sequence or pair, and the step divides by how many count. One number is possible where the batch "
            "is a single micro-batch: raise tokens_per_microbatch"
        )
    metrics = {
        key: mean_of(value, counted)
        if isinstance(value, Tensor) and value.shape == counted.shape
        else single(value)
        for key, value in logged.items()
    }
    return ItemLosses(losses, counted, metrics)


def _counted(
    losses: Tensor,
    loss_mask_T: Tensor,
    segments: Segments,
    chosen_P: Tensor | None,
    rejected_P: Tensor | None,
) -> Tensor | None:
    """Which losses count, by their shape; None where it is of no axis."""
    if losses.shape == loss_mask_T.shape:
        return loss_mask_T
    trained_B = segments.sum(loss_mask_T) > 0
    if losses.shape == trained_B.shape:
        return trained_B
    if chosen_P is not None and rejected_P is not None and losses.shape == chosen_P.shape:
        return trained_B[chosen_P] & trained_B[rejected_P]
    return None
