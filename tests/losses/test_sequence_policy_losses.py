"""VESPO, FIPO, REAL and regression: worked numbers, phi, finite differences, groups cut apart."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from ascent.cells import cell
from ascent.losses import aggregation as modes
from ascent.losses import policy_losses, ratios, rollout_correction, sequence_policy_losses
from ascent.losses.objective import policy_terms, step_statistics
from ascent.maths.groups import Groups
from ascent.maths.segments import Segments
from ascent.update.microbatch import step_of

SEGMENTS = Segments.from_lengths([3, 2])
ALL = torch.ones(5, dtype=torch.bool)
OLD = torch.tensor([-1.0, -1, -1, -2, -2], dtype=torch.float64)
NOW = torch.tensor(
    [-0.8, -1.3, -0.7, -1.5, -2.3], dtype=torch.float64
)  # both sequences moved by .2 in all
A = torch.tensor([1.0, 1, 1, -1, -1], dtype=torch.float64)
ONE = torch.ones(5, dtype=torch.float64)


def test_vespo_weighs_whole_sequences() -> None:
    now = NOW.clone().requires_grad_()
    gated = sequence_policy_losses.vespo(now, OLD, A, ALL, SEGMENTS, ONE)
    (grad,) = torch.autograd.grad(gated.loss_T.sum(), now)
    assert grad.tolist() == pytest.approx([-0.767814] * 3 + [1.170223] * 2, abs=1e-6)
    on_policy = sequence_policy_losses.vespo(OLD, OLD, A, ALL, SEGMENTS, ONE)
    torch.testing.assert_close(on_policy.loss_T, -A * OLD)


def test_vespo_takes_the_samplers_weight_into_the_product_and_nowhere_else() -> None:
    """Old moved by .2 from the sampler instead of the policy from the old one: the same weight."""
    sampler = torch.tensor([0.2, -0.3, 0.3, 0.5, -0.3], dtype=torch.float64).exp()
    gated = sequence_policy_losses.vespo(OLD, OLD, A, ALL, SEGMENTS, sampler)
    assert (gated.loss_T / (-A * OLD)).tolist() == pytest.approx(
        [0.767814] * 3 + [1.170223] * 2, abs=1e-6
    )
    known = {
        "logprobs_T": OLD,
        "old_logprobs_T": OLD,
        "sampler_logprobs_T": OLD - sampler.log(),
        "advantages_T": A,
        "loss_mask_T": ALL,
    }
    terms = policy_terms(
        {**known, "segments": SEGMENTS},
        rollout_correction=cell(rollout_correction.token_truncate, cap=10.0),
        ratio=cell(ratios.none),
        policy_loss=cell(sequence_policy_losses.vespo),
        aggregation=cell(modes.token_mean),
    )
    assert float(terms["policy"].numerator) == pytest.approx(float(gated.loss_T.sum()))


def fipo(now: Tensor, a: Tensor = A, **numbers: float) -> policy_losses.PolicyLoss:
    return sequence_policy_losses.fipo(
        now, OLD, ratios.token(now, OLD, ALL), a, ALL, SEGMENTS, **numbers
    )


def test_fipo_counts_what_the_policy_did_next() -> None:
    now = OLD + torch.tensor([0.1, 0.2, -0.1, 0.0, 0.0], dtype=torch.float64)
    inner = policy_losses.clip(now - OLD, A, ALL)
    gated = fipo(now, gamma=0.5, radius=0.0)
    factors = (gated.loss_T / inner.loss_T)[:3].tolist()
    assert factors == pytest.approx([1.191246, 1.161834, 0.904837], abs=1e-6)
    held = fipo(now, gamma=0.5, radius=0.1)
    assert (held.loss_T / inner.loss_T)[:3].tolist() == pytest.approx([1.1, 1.1, 1.0])
    both = fipo(now, gamma=0.5, radius=0.1, high_only=False)
    assert (both.loss_T / inner.loss_T)[:3].tolist() == pytest.approx(
        [1.1, 1.1, 0.904837], abs=1e-6
    )


def test_fipo_is_careful_with_unwanted_tokens_that_grew() -> None:
    now = OLD + torch.tensor([0.0, 0.0, 0.0, 1.0, 0.5], dtype=torch.float64)
    inner = policy_losses.clip(now - OLD, A, ALL)
    assert (fipo(now, safety=2.0).loss_T / inner.loss_T).tolist()[3:] == pytest.approx([1.0, 1.2])
    assert (fipo(now, safety=0.0).loss_T / inner.loss_T).tolist()[3:] == pytest.approx([1.2, 1.2])
    # A cap also ends the drift it caps: the token at e^1 counts nothing for itself.
    capped = fipo(now, safety=0.0, cap=2.0, radius=0.0, gamma=1.0)
    assert capped.loss_T.tolist()[3] == pytest.approx(2.0 * math.exp(0.5))
    # Below 1 + high the cap still ends drifts, so no factor is left, but no loss is cut below the clip.
    assert fipo(now, safety=0.0, cap=1.1, radius=0.0).loss_T.tolist()[3:] == pytest.approx(
        [1.2] * 2
    )


def test_fipos_factor_carries_no_gradient() -> None:
    now = NOW.clone().requires_grad_()
    gated = fipo(now, radius=0.0)
    (grad,) = torch.autograd.grad(gated.loss_T.sum(), now)
    inner = policy_losses.clip(ratios.token(now, OLD, ALL), A, ALL)
    (plain,) = torch.autograd.grad(inner.loss_T.sum(), now)
    torch.testing.assert_close(grad, plain * (gated.loss_T / inner.loss_T).detach())


@pytest.mark.parametrize("cap", [0.5, 1.0, -1.0])
def test_fipos_cap_is_none_or_above_one(cap: float) -> None:
    with pytest.raises(ValueError, match=rf"fipo: cap={cap}, but it must be 0 or above 1"):
        cell(sequence_policy_losses.fipo, cap=cap)
    assert cell(sequence_policy_losses.fipo, cap=0.0) and cell(
        sequence_policy_losses.fipo, cap=1.01
    )


def test_fipos_factor_stays_finite_in_float32() -> None:
    """A future drift of 100 nats is held at 20, and where the advantage is 0 so is the loss."""
    now, old = torch.tensor([-1.0, -1.0, -50.0]), torch.tensor([-1.0, -51.0, -100.0])
    segments, every = Segments.from_lengths([3]), torch.ones(3, dtype=torch.bool)
    inner = ratios.token(old, old, every)
    for a, expected in ((torch.zeros(3), 0.0), (torch.ones(3), -math.exp(20))):
        gated = sequence_policy_losses.fipo(
            now, old, inner, a, every, segments, radius=0.0, gamma=1.0
        )
        assert gated.loss_T.tolist() == pytest.approx([expected] * 3)


def real_step(now: Tensor, pieces: list[list[int]], a: Tensor, tau: float = 0.5) -> Tensor:
    """REAL over single-token sequences, cut into pieces; statistics from the whole."""
    count = now.numel()
    gate, mode = cell(sequence_policy_losses.real, tau=tau), cell(modes.group_mean)
    shared = {"rollout_correction": cell(rollout_correction.none), "ratio": cell(ratios.none)}
    known = {
        "logprobs_T": now,
        "old_logprobs_T": torch.zeros(count, dtype=torch.float64),
        "advantages_T": a,
        "loss_mask_T": torch.ones(count, dtype=torch.bool),
        "segments": Segments.from_lengths([1] * count),
        "groups": Groups.from_ids([0, 0, 0, 1, 1]),
    }
    known |= step_statistics(known, [gate, mode], **shared)
    parts = [
        {n: x[rows] for n, x in known.items() if n.endswith(("_T", "_B"))}
        | {"segments": Segments.from_lengths([1] * len(rows))}
        for rows in pieces
    ]
    return step_of(
        [policy_terms(part, policy_loss=gate, aggregation=mode, **shared) for part in parts], {}
    ).value


def written_out(now: Tensor, tau: float = 0.5) -> Tensor:
    s = now / tau
    first = torch.log(1 + s[1].exp() + s[2].exp()) + torch.log(1 + (-s[0]).exp())
    second = torch.log(1 + s[4].exp()) + torch.log(1 + (-s[3]).exp())
    return (first + second) / 2


def test_real_is_its_definition_however_groups_are_cut() -> None:
    a = torch.tensor([1.0, -1.0, 0.0, 1.0, -1.0], dtype=torch.float64)
    moved = [0.1, -0.2, 0.3, 0.2, -0.1]
    slopes, values = [], []
    for pieces in ([[0, 1, 2, 3, 4]], [[0, 3], [1, 4], [2]], [[4], [3], [2], [1], [0]]):
        now = torch.tensor(moved, dtype=torch.float64, requires_grad=True)
        value = real_step(now, pieces, a)
        values.append(value.item())
        slopes.append(torch.autograd.grad(value, now)[0])
    now = torch.tensor(moved, dtype=torch.float64, requires_grad=True)
    expected = written_out(now)
    assert values == pytest.approx([expected.item()] * 3)
    for slope in slopes:
        torch.testing.assert_close(slope, torch.autograd.grad(written_out(now), now)[0])


def test_real_worked_example_and_one_sided_groups() -> None:
    now = torch.tensor([0.1, -0.2, 0.3, 0.2, -0.1], dtype=torch.float64)
    first_only = torch.tensor(
        [1.0, -1.0, -1.0, -1.0, -1.0], dtype=torch.float64
    )  # the second group has no right one
    assert real_step(now, [[0, 1, 2, 3, 4]], first_only).item() == pytest.approx(
        1.848739 / 2, abs=1e-6
    )


def test_real_stays_finite_in_float32() -> None:
    """The right one at mean log-ratio -45, tau .5: log(1 + e^90) = 90, and the wrong one's log(1 + e^0); slope -1."""
    now, a = torch.tensor([-45.0, 0.0]), torch.tensor([1.0, -1.0])
    known = (now, torch.zeros(2), a, torch.ones(2, dtype=torch.bool), Segments.from_lengths([1, 1]))
    groups = Groups.from_ids([0, 0])
    assert sequence_policy_losses.real_value(*known, groups).tolist() == pytest.approx(
        [90 + math.log(2)] * 2
    )
    assert sequence_policy_losses.real_slope(*known, groups).tolist() == pytest.approx(
        [-2.0, 1.0]
    )  # times two members


def test_regression_is_a_squared_loss_of_the_sequence() -> None:
    def loss(now: Tensor) -> Tensor:
        return sequence_policy_losses.regression(now, OLD, 0.3 * A, ALL, SEGMENTS, beta=2.0).loss_T[
            [0, 3]
        ]

    assert loss(NOW).tolist() == pytest.approx([(0.4 - 0.3) ** 2, (0.4 + 0.3) ** 2])
    assert torch.autograd.gradcheck(loss, NOW.clone().requires_grad_())


def test_in_real_an_answer_that_trains_nothing_is_nobodys_rival() -> None:
    """S of the first three, tau .5: (.2, -.4, .6), the first right; the fourth could not be scored."""
    now, old, segments = (
        torch.tensor([0.1, -0.2, 0.3, 9.0]),
        torch.zeros(4),
        Segments.from_lengths([1, 1, 1, 1]),
    )
    advantages, trained = (
        torch.tensor([1.0, -1.0, -1.0, float("nan")]),
        torch.tensor([True, True, True, False]),
    )
    found = sequence_policy_losses.real_value(
        now, old, advantages, trained, segments, Groups.from_ids([0, 0, 0, 0])
    )
    assert found[0].item() == pytest.approx(1.848739, abs=1e-6)
    alone = torch.tensor([True, False, False, True])
    lonely = sequence_policy_losses.real_value(
        now, old, torch.ones(4), alone, segments, Groups.from_ids([0, 0, 0, 0])
    )
    assert lonely.tolist() == [0.0] * 4
