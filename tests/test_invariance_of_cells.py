"""For every cell of the vocabulary, in a row that allows it: no cut, order or padding changes value, gradient, metrics.

The rows of the table are held to this in test_invariance.py; many cells are in no row of it. A cell is put into the
first row in which a recipe may have it, once with its own numbers and once for every other word and switch it knows.
A new cell is covered by being in the vocabulary; one that no row allows fails here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from ascent.algorithms import TABLE, VOCABULARY, Row
from ascent.algorithms.row import EXTRAS
from ascent.cells import Cell, cell, cell_numbers
from ascent.config.schema import MULTI_CELL_SLOTS, TERM_SLOTS
from ascent.config.validate import validate
from ascent.losses import kl
from ascent.parameter_ranges import OneOf
from ascent.plan import resolve
from ascent.update.microbatch import step_of
from tests.batches import LEAVES, Batch, random_batch, rows_of, with_padding
from tests.recipes import least
from tests.test_invariance import cut, terms_of, units_of, whole_step, with_statistics

TOLERANCE = 1e-10
SEED = 5
# Numbers that functions do not have, or without which they would act on no token of a batch this small. Rewards and
# ratios are both clipped by a function called `clip`.
NUMBERS: dict[str, dict[str, Any]] = {
    "sequence_mean_token_scaled": {"length": 7},
    "soft_overlong": {"max_length": 5, "cache": 3},
    "clip": {"low": 0.3, "high": 0.6},
    "kl_penalty": {"beta": 0.1},
    "n_step": {"n": 2},
    "clip_cov": {"share": 0.3},
    "kl_cov": {"share": 0.3},
}
# What such numbers, or such a function, need elsewhere in a recipe.
BESIDE: dict[str, dict[str, Any]] = {"soft_overlong": {"rollouts": {"max_new_tokens": 6}}}
# Cells that a recipe may have in no row: an estimator that has no use as a loss.
REFUSED = {"kl": kl.k1}
# They read numbers that were measured over the whole step, and no batch.
OF_NUMBERS = ("kl_controller",)

Function = Callable[..., Any]
CELLS = [
    (slot, each)
    for slot, known in VOCABULARY.items()
    if slot not in OF_NUMBERS
    for each in known.values()
]


def variants(function: Function) -> Iterator[dict[str, Any]]:
    """Its numbers as they are, and with every other word and the other side of every switch, one at a time."""
    own = dict(cell(function, **NUMBERS.get(function.__name__, {})).numbers)
    yield own
    for name, (kind, rule, _) in cell_numbers(function).items():
        words = rule.words if isinstance(rule, OneOf) else (True, False) if kind is bool else ()
        yield from ({**own, name: word} for word in words if word != own[name])


def allowed(slot: str, function: Function) -> Row:
    """The first row of the table that has it, or that a recipe may give it to."""
    having = [
        row for row in TABLE.values() if any(each.function is function for _, each in row.cells())
    ]
    refusals = []
    for row in (*having, *TABLE.values()):
        try:
            return resolve(validate(recipe(row, slot, function))).row
        except ValueError as error:
            refusals.append(f"{row.name}: {error}")
    raise ValueError(f"no row allows cells.{slot} {function.__name__}:\n" + "\n".join(refusals))


def recipe(row: Row, slot: str, function: Function) -> dict[str, Any]:
    made = cell(function, **NUMBERS.get(function.__name__, {}))
    numbers = NUMBERS.get(function.__name__, {}) | (
        {"weight": 0.5} if slot in (*TERM_SLOTS, "extra_losses") else {}
    )
    section = (
        {function.__name__: numbers}
        if slot in MULTI_CELL_SLOTS
        else {"use": function.__name__, **numbers}
    )
    found = {**least(row.name), **BESIDE.get(function.__name__, {}), "cells": {slot: section}}
    needs = {EXTRAS[name] for name in made.required if name in EXTRAS}
    if needs & {"teacher", "teacher_distribution"}:
        found["model"] = {**found["model"], "teacher": "big"}
    if "pretraining" in needs:
        found["data"] = {**found["data"], "pretraining": "text"}
    if slot == "kl" and row.kl_controller is None:
        found["cells"]["kl_controller"] = {"use": "fixed"}
    return found


def holding(row: Row, slot: str, function: Function, numbers: dict[str, Any]) -> Row:
    """The row with this very cell in its slot."""
    held = getattr(row, slot)
    made = Cell(function, numbers, 0.5 if slot in (*TERM_SLOTS, "extra_losses") else 1.0)
    if not isinstance(held, tuple):
        return replace(row, **{slot: made})
    rest = tuple(each for each in held if each.function is not function)
    return replace(row, **{slot: (*rest, made)})


def awkward(seed: int) -> Batch:
    """Half of the sequences agree with their sampler, the others do not at all; one has no reward, one token no number.

    So thresholds have something to keep and something to drop.
    """
    batch = random_batch(seed, groups=3)
    segments, rng = batch["segments"], torch.Generator().manual_seed(seed)
    apart_T = segments.broadcast(torch.arange(segments.count) % 2).double()
    batch["sampler_logprobs_T"] = batch["old_logprobs_T"] + apart_T * torch.randn(
        segments.total, generator=rng, dtype=torch.float64
    )
    batch["sampler_logprobs_T"][-1] = float("nan")
    for name in ("rewards_B", "correct_B"):
        batch[name][1] = float("nan")
    batch["entropy_memory"] = torch.tensor(
        [0.0, 0.4, 0.1], dtype=torch.float64
    )  # the step before was too sure
    return batch


def kept(row: Row, batch: Batch) -> Batch:
    """What the row's filters leave, each of which takes the same sequences in another order."""
    keep_B = torch.ones(batch["segments"].count, dtype=torch.bool)
    for each in row.filter:
        own_B = each(batch)
        assert torch.equal(each(rows_of(batch, shuffle(batch))), own_B[shuffle(batch)]), each.name
        keep_B = keep_B & own_B
    return rows_of(batch, keep_B.nonzero()[:, 0])


def shuffle(batch: Batch) -> Tensor:
    return torch.randperm(batch["segments"].count, generator=torch.Generator().manual_seed(SEED))


def same(ours: Tensor, theirs: Tensor | int, what: str) -> None:
    room = TOLERANCE * max(1.0, float(ours.abs().max()))
    assert float((ours - theirs).abs().max()) <= room, what


@pytest.mark.parametrize(
    ("slot", "function"), CELLS, ids=[f"{slot}.{each.__name__}" for slot, each in CELLS]
)
def test_no_cut_order_or_padding_changes_a_cell(slot: str, function: Function) -> None:
    allowing = TABLE["grpo"] if REFUSED.get(slot) is function else allowed(slot, function)
    for numbers in variants(function):
        row = holding(allowing, slot, function, numbers)
        batch = kept(row, awkward(SEED))
        known = with_statistics(row, dict(batch))
        value, grads, metrics = whole_step(row, known)
        assert bool(torch.isfinite(value)) and any(bool(grad.any()) for grad in grads.values()), (
            numbers
        )

        pieces = cut(row, known, len(units_of(row, batch)), SEED)
        step = step_of([terms_of(row, piece) for piece in pieces], row.weights)
        again = torch.autograd.grad(step.value, [known[name] for name in LEAVES], allow_unused=True)
        same(value, step.value.detach(), f"cut {numbers}")
        for (name, grad), other in zip(grads.items(), again, strict=True):
            same(grad, 0 if other is None else other, f"cut {name} {numbers}")
        for name, tally in step.metrics.items():
            assert tally.value() == pytest.approx(
                metrics[name], abs=TOLERANCE, rel=TOLERANCE, nan_ok=True
            ), name

        others = {
            "permuted": lambda each: rows_of(each, shuffle(each)),
            "padded": lambda each: with_padding(each, 2, SEED),
        }
        for how, change in others.items():
            other_value, other, _ = whole_step(row, with_statistics(row, change(batch)))
            same(value, other_value, f"{how} {numbers}")
            expected = change({**batch, **grads})
            for name, grad in other.items():
                same(grad, torch.nan_to_num(expected[name]), f"{how} {name} {numbers}")


def test_what_is_left_out_reads_no_batch() -> None:
    for slot in OF_NUMBERS:
        for function in VOCABULARY[slot].values():
            kinds = {
                parameter.annotation
                for parameter in inspect.signature(function).parameters.values()
            }
            assert not kinds & {"Tensor", "Segments", "Groups"}, function.__name__


@pytest.mark.parametrize("slot", REFUSED)
def test_what_is_refused_everywhere_is_refused(slot: str) -> None:
    with pytest.raises(ValueError, match="no row allows"):
        allowed(slot, REFUSED[slot])
