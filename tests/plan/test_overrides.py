import pytest

from ascent.algorithms import TABLE, VOCABULARY
from ascent.config.schema import MULTI_CELL_SLOTS, OPTIONAL_SLOTS, Cells
from ascent.plan.overrides import resolved_cells, with_cells


def changed(algorithm, **cells):
    return with_cells(TABLE[algorithm], Cells.model_validate(cells))


def test_nothing_given_changes_nothing():
    for name, row in TABLE.items():
        assert changed(name) == row


def test_numbers_change_and_the_rest_stays():
    row = changed("dapo", policy_loss={"high": 0.3})
    assert row.policy_loss.numbers == {"low": 0.2, "high": 0.3}
    assert row.advantage == TABLE["dapo"].advantage


def test_another_function_comes_with_its_own_numbers():
    row = changed("grpo", policy_loss={"use": "sapo"})
    assert row.policy_loss.function is VOCABULARY["policy_loss"]["sapo"]
    assert "low" not in row.policy_loss.numbers


def test_a_term_keeps_its_weight_when_its_function_is_swapped():
    assert changed("grpo", kl={"use": "k2"}).kl.weight == TABLE["grpo"].kl.weight == 0.04
    assert changed("grpo", kl={"weight": 0.5}).kl.weight == 0.5
    assert changed("grpo", kl={"weight": 0}).kl.weight == 0


def test_an_empty_slot_can_be_filled():
    row = changed("dapo", kl={"use": "rho_k3", "weight": 0.01})
    assert (row.kl.name, row.kl.weight) == ("rho_k3", 0.01)
    assert "reference" in row.needs


def test_cells_are_added_in_the_order_of_the_vocabulary():
    row = changed("ppo", reward_shaping={"clip": {"low": -1.0, "high": 1.0}})
    assert [each.name for each in row.reward_shaping] == ["eos_replace", "clip", "kl_penalty"]


def test_every_row_keeps_the_order_of_the_vocabulary():
    for name, row in TABLE.items():
        for slot in MULTI_CELL_SLOTS:
            order = list(VOCABULARY[slot])
            places = [order.index(each.name) for each in getattr(row, slot)]
            assert places == sorted(places), f"{name}: {slot}"


def test_false_empties_a_slot_or_removes_a_cell():
    row = changed("grpo", kl=False, kl_controller=False)
    assert row.kl is None
    assert (
        changed("ppo", reward_shaping={"eos_replace": False}).reward_shaping
        == TABLE["ppo"].reward_shaping[1:]
    )


def test_what_was_removed_is_written_as_false():
    row = changed("ppo", reward_shaping={"eos_replace": False}, kl_controller=False)
    section = resolved_cells(row, TABLE["ppo"])
    assert section["reward_shaping"] == {"kl_penalty": {"beta": 0.05}, "eos_replace": False}
    assert section["kl_controller"] is False


@pytest.mark.parametrize(
    ("algorithm", "cells", "words"),
    [
        (
            "grpo",
            {"policy_loss": {"hihg": 1}},
            "cells.policy_loss.hihg has no effect: clip has no number 'hihg'; did you mean high?",
        ),
        (
            "grpo",
            {"policy_loss": {"weight": 1}},
            "cells.policy_loss.weight has no effect: clip has no number 'weight'",
        ),
        (
            "grpo",
            {"policy_loss": {"function": 1}},
            "cells.policy_loss.function has no effect: clip has no number 'function'",
        ),
        (
            "grpo",
            {"advantage": {"gamma": 1}},
            "cells.advantage.gamma has no effect: group_mean_baseline has no number 'gamma'; it takes no",
        ),
        (
            "grpo",
            {"kl": {"beta": 0.0}},
            "cells.kl.beta has no effect: k3 has no number 'beta'; its coefficient is cells.kl.weight",
        ),
        (
            "grpo",
            {"kl": {"wieght": 0.0}},
            "cells.kl.wieght has no effect: k3 has no number 'wieght'; did you mean weight?",
        ),
        (
            "dpo",
            {"loss": {"zzz": 0.0}},
            "cells.loss.zzz has no effect: dpo has no number 'zzz'; known: alpha, beta, divergence, "
            "label_smoothing, weight",
        ),
        (
            "dapo",
            {"extra_losses": {"correct_nll": {"weight": 0.1, "coef": 1}}},
            "cells.extra_losses.correct_nll.coef has no effect: correct_nll has no number 'coef'; its coefficient is "
            "cells.extra_losses.correct_nll.weight",
        ),
        (
            "grpo",
            {"policy_loss": {"low": -0.1}},
            "cells.policy_loss: clip: low=-0.1, but it must be at least 0",
        ),
        (
            "grpo",
            {"policy_loss": {"low": "x"}},
            "cells.policy_loss: clip: low='x', but it must be a number",
        ),
        (
            "grpo",
            {"policy_loss": {"use": "clipp"}},
            "cells.policy_loss: no function named 'clipp'; did you mean clip",
        ),
        (
            "dapo",
            {"kl": {"weight": 0.1}},
            "cells.kl changes a cell that dapo does not have; add cells.kl.use, one of k1",
        ),
        ("dapo", {"kl": {"use": "k2"}}, "cells.kl.weight is missing: k2 is a new term of the loss"),
        ("dapo", {"kl": False}, "cells.kl=false has no effect: dapo has no kl cell"),
        (
            "dapo",
            {"policy_loss": False},
            "cells.policy_loss=false, but this slot cannot be empty; use one of plain",
        ),
        (
            "dapo",
            {"reward_shaping": {"clip": False}},
            "cells.reward_shaping.clip=false has no effect: dapo has no such cell",
        ),
        (
            "dapo",
            {"reward_shaping": {"clpi": {}}},
            "cells.reward_shaping: no function named 'clpi'; did you mean clip",
        ),
        (
            "dapo",
            {"reward_shaping": {"clip": {"low": 1.0}}},
            "cells.reward_shaping.clip: clip needs a value for high",
        ),
        (
            "dapo",
            {"reward_shaping": {"soft_overlong": {"max": 1}}},
            "cells.reward_shaping.soft_overlong.max has no effect",
        ),
        (
            "dapo",
            {"extra_losses": {"correct_nll": {}}},
            "cells.extra_losses.correct_nll.weight is missing",
        ),
        (
            "dapo",
            {"extra_losses": {"correct_nll": {"weight": -1}}},
            "cells.extra_losses.correct_nll: correct_nll: weight=-1",
        ),
        (
            "dapo",
            {"loss": {"use": "dpo"}},
            "cells.loss has no effect: dapo learns from rollouts, and ratio, policy_loss",
        ),
        (
            "dpo",
            {"policy_loss": {"use": "clip"}},
            "cells.policy_loss has no effect: dpo learns from files",
        ),
        (
            "sft",
            {"kl": {"use": "k2", "weight": 1}},
            "cells.kl has no effect: sft learns from files and has only the slots loss, token_weights and extra_losses",
        ),
    ],
)
def test_what_cannot_be_had_is_refused_by_its_key(algorithm, cells, words):
    with pytest.raises(ValueError) as caught:
        changed(algorithm, **cells)
    assert str(caught.value).startswith(words)


def test_only_optional_slots_are_empty_in_the_table():
    for name, row in TABLE.items():
        if row.source == "rollouts":
            empty = {slot for slot in VOCABULARY if getattr(row, slot) is None}
            assert empty <= {*OPTIONAL_SLOTS, "loss"}, name
