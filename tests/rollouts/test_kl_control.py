"""The KL coefficient and its controllers, by hand."""

from __future__ import annotations

import pytest
import torch

from ascent.algorithms import TABLE
from ascent.algorithms.row import Row
from ascent.config.schema import Cells
from ascent.maths.segments import Segments
from ascent.plan.overrides import with_cells
from ascent.rollouts.kl_control import KLController, kl_from_old, kl_to_reference

# Two completions of two tokens behind a prompt of one. Log-probs apart by .2 -.5 | 0 .3; the second half as old.
BATCH = {
    "segments": Segments.from_lengths([3, 3]),
    "loss_mask_T": torch.tensor([False, True, True, False, True, True]),
    "old_logprobs_T": torch.tensor([9.0, -1.0, -2.0, 9.0, -0.5, -0.1]),
    "ref_logprobs_T": torch.tensor([0.0, -1.2, -1.5, 0.0, -0.5, -0.4]),
}


def row(name: str, **cells: object) -> Row:
    return with_cells(TABLE[name], Cells.model_validate(cells))


def test_kl_to_the_reference_in_both_units() -> None:
    found = kl_to_reference(BATCH)
    assert found["kl_per_sequence"] == pytest.approx((-0.3 + 0.3) / 2, abs=1e-6)
    assert found["kl_per_token"] == pytest.approx(0, abs=1e-6)
    # e^x - x - 1 at x = -.2, .5, 0, -.3
    assert found["kl_k3_per_token"] == pytest.approx(
        (0.018731 + 0.148721 + 0 + 0.040818) / 4, abs=1e-6
    )
    assert found["sequences"] == 2


def test_a_sequence_that_is_not_trained_does_not_dilute_the_kl() -> None:
    """Only the first is left: .2 - .5 = -.3 in its two tokens. Of none, the coefficient stays."""
    first = {**BATCH, "loss_mask_T": torch.tensor([False, True, True, False, False, False])}
    found = kl_to_reference(first)
    assert found["kl_per_sequence"] == pytest.approx(-0.3) and found[
        "kl_per_token"
    ] == pytest.approx(-0.15)
    assert found["sequences"] == 1
    none = kl_to_reference({**BATCH, "loss_mask_T": torch.zeros(6, dtype=torch.bool)})
    assert (none["kl_per_sequence"], none["sequences"]) == (0, 0)
    kl_controller = KLController(row("ppo", kl_controller={"use": "ziegler_sequence"}))
    kl_controller.update(lambda: none)
    assert kl_controller.value == 0.05


def test_kl_from_the_policy_that_sampled() -> None:
    """ratio - 1 - log ratio at log ratios .1, 0, 0, -.2: .005171, 0, 0, .018731."""
    now_T = torch.tensor([0.0, -0.9, -2.0, 0.0, -0.5, -0.3])
    assert kl_from_old(BATCH, now_T)["kl_per_token"] == pytest.approx(
        (0.005171 + 0.018731) / 4, abs=1e-6
    )


def test_a_fixed_coefficient_stays_and_measures_nothing() -> None:
    kl_controller = KLController(TABLE["ppo"])
    kl_controller.update(lambda: pytest.fail("it does not adapt"))
    assert (kl_controller.adapts, kl_controller.value, kl_controller.row) == (
        False,
        0.05,
        TABLE["ppo"],
    )


def test_ziegler_moves_the_penalty_of_the_reward() -> None:
    kl_controller = KLController(
        row(
            "ppo",
            kl_controller={"use": "ziegler_sequence", "target_per_sequence": 2.0, "horizon": 100},
        )
    )
    kl_controller.update(lambda: {"kl_per_sequence": 2.2, "kl_per_token": 9.0, "sequences": 50})
    assert kl_controller.value == pytest.approx(0.05 * (1 + 0.1 * 50 / 100))
    (penalty,) = [each for each in kl_controller.row.reward_shaping if each.name == "kl_penalty"]
    assert penalty.numbers["beta"] == kl_controller.value
    assert [each.name for each in kl_controller.row.reward_shaping] == ["eos_replace", "kl_penalty"]


def test_a_term_of_the_loss_is_steered_through_the_weights_it_shares() -> None:
    weights = {"policy": 1.0, "kl": 0.04}
    kl_controller = KLController(
        row("grpo", kl_controller={"use": "ziegler_token", "horizon": 10}), weights
    )
    kl_controller.update(lambda: {"kl_per_sequence": 0.0, "kl_per_token": 1.0, "sequences": 10})
    assert weights["kl"] == kl_controller.value == pytest.approx(0.04 * 1.2)
    assert not kl_controller.reads_update_kl


def test_ppo_penalty_doubles_and_halves_and_looks_at_the_finished_update() -> None:
    weights = dict(TABLE["ppo_penalty"].weights)
    kl_controller = KLController(TABLE["ppo_penalty"], weights)
    assert kl_controller.reads_update_kl
    for kl, value in ((0.1, 2.0), (0.1, 4.0), (0.01, 4.0), (0.001, 2.0)):
        kl_controller.update(lambda kl=kl: {"kl_per_token": kl})  # type: ignore[misc]
        assert kl_controller.value == weights["kl"] == value


def test_a_restored_coefficient_reaches_the_loss() -> None:
    weights = dict(TABLE["ppo_penalty"].weights)
    KLController(TABLE["ppo_penalty"], weights).set(0.1 + 0.2)
    assert weights["kl"] == 0.1 + 0.2
