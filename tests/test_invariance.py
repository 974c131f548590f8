"""For every row of the table: no cut, order, padding or rank count changes the value or the gradient (float64, 1e-9).

The statistics that couple a batch are taken once over the whole of it; only then is it cut.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ascent.advantages.estimate import estimate
from ascent.algorithms import TABLE, Row
from ascent.losses.loss import Terms
from ascent.losses.objective import file_terms, policy_terms, step_statistics
from ascent.update.microbatch import denominators, scaled, step_of
from ascent.update.objective import LOSS_SLOTS
from tests.batches import LEAVES, Batch, random_batch, require_grad, rows_of, with_padding

TOLERANCE = 1e-9
CHECK = settings(max_examples=8, deadline=None)
SEEDS = st.integers(0, 10_000)


def with_statistics(row: Row, batch: Batch) -> Batch:
    """The step-statistics phase: advantages, targets and group token counts of the whole batch."""
    if row.source != "rollouts":
        return {**batch, **coupled(row, batch)}
    assert row.advantage is not None and row.advantage_norm is not None
    result = estimate(
        batch,
        reward_shaping=row.reward_shaping,
        advantage=row.advantage,
        advantage_norm=row.advantage_norm,
    )
    known = {**batch, "advantages_T": result.advantages_T}
    known |= {} if result.returns_T is None else {"returns_T": result.returns_T}
    return {**known, **coupled(row, known)}


def coupled(row: Row, batch: Batch) -> Batch:
    cells = [each for slot, each in row.cells() if slot in LOSS_SLOTS]
    return step_statistics(batch, cells, rollout_correction=row.rollout_correction, ratio=row.ratio)


def terms_of(row: Row, batch: Batch) -> Terms:
    if row.loss is not None:
        return file_terms(
            batch, loss=row.loss, token_weights=row.token_weights, extra_losses=row.extra_losses
        )
    assert row.rollout_correction and row.ratio and row.policy_loss and row.aggregation
    return policy_terms(
        batch,
        rollout_correction=row.rollout_correction,
        ratio=row.ratio,
        policy_loss=row.policy_loss,
        aggregation=row.aggregation,
        token_weights=row.token_weights,
        kl=row.kl,
        entropy_bonus=row.entropy_bonus,
        value_loss=row.value_loss,
        extra_losses=row.extra_losses,
    )


def whole_step(row: Row, batch: Batch) -> tuple[Tensor, dict[str, Tensor], dict[str, float]]:
    """Value, gradients of the leaves, metrics of the uncut batch."""
    leaves = require_grad(batch)
    step = step_of([terms_of(row, batch)], row.weights)
    grads = torch.autograd.grad(step.value, list(leaves.values()), allow_unused=True)
    filled = {
        n: torch.zeros_like(leaf) if g is None else g
        for (n, leaf), g in zip(leaves.items(), grads, strict=True)
    }
    return (
        step.value.detach(),
        filled,
        {name: tally.value() for name, tally in step.metrics.items()},
    )


def units_of(row: Row, batch: Batch) -> list[list[int]]:
    """What must stay together: pairs, rankings, or single sequences."""
    ids_B = batch["groups"].ids_B
    if row.source in ("pairs", "fresh_pairs", "rankings"):
        return [(ids_B == g).nonzero().flatten().tolist() for g in range(batch["groups"].count)]
    return [[b] for b in range(ids_B.numel())]


def cut(row: Row, batch: Batch, pieces: int, seed: int) -> list[Batch]:
    """The batch in random pieces, its pretraining text too; every piece non-empty."""
    rng = torch.Generator().manual_seed(seed)
    units = units_of(row, batch)
    order = torch.randperm(len(units), generator=rng).tolist()
    pieces = min(pieces, len(units))
    assigned = [[b for u in order[p::pieces] for b in units[u]] for p in range(pieces)]
    batches = [rows_of(batch, torch.tensor(rows)) for rows in assigned]
    for place, piece in enumerate(batches):
        for name in ("pretraining_logprobs_X", "pretraining_trained_X"):
            piece[name] = batch[name][place::pieces]
    return batches


@pytest.mark.parametrize("row", TABLE.values(), ids=list(TABLE))
@CHECK
@given(seed=SEEDS, pieces=st.integers(2, 7))
def test_cutting_into_micro_batches_changes_nothing(row: Row, seed: int, pieces: int) -> None:
    batch = with_statistics(row, random_batch(seed))
    value, grads, metrics = whole_step(row, batch)
    leaves = {name: batch[name] for name in LEAVES}
    step = step_of([terms_of(row, piece) for piece in cut(row, batch, pieces, seed)], row.weights)
    again = torch.autograd.grad(step.value, list(leaves.values()), allow_unused=True)
    assert abs(float(step.value.detach() - value)) < TOLERANCE
    for (name, grad), other in zip(grads.items(), again, strict=True):
        assert float((grad - (0 if other is None else other)).abs().max()) < TOLERANCE, name
    for name, tally in step.metrics.items():
        assert tally.value() == pytest.approx(metrics[name], abs=TOLERANCE, nan_ok=True), name


@pytest.mark.parametrize("row", TABLE.values(), ids=list(TABLE))
@CHECK
@given(seed=SEEDS, ranks=st.integers(2, 4), per_rank=st.integers(1, 3))
def test_ranks_that_average_gradients_agree_with_one(
    row: Row, seed: int, ranks: int, per_rank: int
) -> None:
    batch = with_statistics(row, random_batch(seed, groups=6))
    _, grads, _ = whole_step(row, batch)
    pieces = cut(row, batch, ranks * per_rank, seed + 1)
    totals = denominators(terms_of(row, piece) for piece in pieces)  # the all-reduce
    leaves = [batch[name] for name in LEAVES]
    averaged = [torch.zeros_like(leaf) for leaf in leaves]
    for rank in range(ranks):
        for piece in pieces[rank::ranks]:
            loss = scaled(terms_of(row, piece), totals, row.weights, ranks=ranks)
            for total, grad in zip(
                averaged, torch.autograd.grad(loss, leaves, allow_unused=True), strict=True
            ):
                total += (0 if grad is None else grad) / ranks
    for (name, grad), other in zip(grads.items(), averaged, strict=True):
        assert float((grad - other).abs().max()) < TOLERANCE, name


@pytest.mark.parametrize("row", TABLE.values(), ids=list(TABLE))
@CHECK
@given(seed=SEEDS)
def test_order_of_sequences_does_not_matter(row: Row, seed: int) -> None:
    batch = random_batch(seed)
    order = torch.randperm(batch["segments"].count, generator=torch.Generator().manual_seed(seed))
    value, grads, _ = whole_step(row, with_statistics(row, dict(batch)))
    shuffled_value, shuffled, _ = whole_step(row, with_statistics(row, rows_of(batch, order)))
    assert abs(float(value - shuffled_value)) < TOLERANCE
    expected = rows_of({**batch, **grads}, order)
    for name, grad in shuffled.items():
        assert float((grad - expected[name]).abs().max()) < TOLERANCE, name


@pytest.mark.parametrize("row", TABLE.values(), ids=list(TABLE))
@CHECK
@given(seed=SEEDS, extra=st.integers(1, 4))
def test_padding_of_nan_does_not_matter(row: Row, seed: int, extra: int) -> None:
    batch = random_batch(seed)
    value, grads, _ = whole_step(row, with_statistics(row, dict(batch)))
    padded_value, padded, _ = whole_step(
        row, with_statistics(row, with_padding(batch, extra, seed))
    )
    assert abs(float(value - padded_value)) < TOLERANCE
    expected = with_padding({**batch, **grads}, extra, seed)
    for name, grad in padded.items():
        assert float((grad - torch.nan_to_num(expected[name])).abs().max()) < TOLERANCE, name


@pytest.mark.parametrize("row", TABLE.values(), ids=list(TABLE))
def test_a_fully_masked_micro_batch_gives_zero_and_finite_gradients(row: Row) -> None:
    batch = with_statistics(row, random_batch(3))
    batch["loss_mask_T"] = torch.zeros_like(batch["loss_mask_T"])
    batch["pretraining_trained_X"] = torch.zeros_like(batch["pretraining_trained_X"])
    batch["step_ends_T"] = torch.zeros_like(batch["step_ends_T"])
    if row.source in ("pairs", "rankings") and "scores_B" in row.inputs:
        return  # reward models have no token mask: their items are pairs and rankings
    value, grads, _ = whole_step(row, batch)
    assert float(value) == 0.0
    assert all(
        bool(torch.isfinite(grad).all()) and float(grad.abs().max()) == 0.0
        for grad in grads.values()
    )
