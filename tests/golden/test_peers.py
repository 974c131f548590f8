"""docs/peers.md is current, names only what exists, and leaves out nothing that the golden cases ask for."""

from __future__ import annotations

from pathlib import Path

import pytest

from ascent.algorithms import TABLE
from tests.golden.cases import VECTORS, load
from tests.golden.peers import page, unknown_references
from tests.golden.peers_options import PEERS

DOCS = Path(__file__).parents[2] / "docs" / "peers.md"


def test_the_page_is_current() -> None:
    assert DOCS.read_text() == page(load(VECTORS)), "make it again: python -m tests.golden.peers > docs/peers.md"


def test_every_row_and_cell_it_names_exists() -> None:
    assert unknown_references() == []


def test_no_option_is_listed_twice() -> None:
    for options in PEERS.values():
        named = [(each.setting, each.value) for each in options]
        assert len(named) == len(set(named))


ASKED = ("loss_type", "loss_mode", "loss_agg_mode", "advantage_estimator", "f_divergence_type", "rollout_rs",
         "importance_sampling_level", "policy_loss_type", "vllm_is_correction_type", "kl_loss_type")  # fmt: skip


def _values(entry: object) -> list[str]:
    if isinstance(entry, list):
        return [each for item in entry for each in _values(item)]
    return [word.strip() for word in entry.split(",")] if isinstance(entry, str) else []


@pytest.mark.parametrize("setting", ASKED)
def test_every_value_that_occurs_in_the_vectors_is_on_the_page(setting: str) -> None:
    text = DOCS.read_text()
    asked = {value for case in load(VECTORS) for value in _values(case.params.entries.get(setting))}
    assert not [value for value in sorted(asked) if value not in text]


def test_every_row_but_our_own_is_somewhere_on_the_page() -> None:
    """What no peer has: our two recommendations, papers nobody else ships as such, and compositions of ours."""
    ours = {"rlvr", "rlhf", "reinforce", "vpg", "instructgpt", "ppo_penalty", "vapo", "grpo_r1", "grpo_process",
            "scale_rl", "reward_model_kwise", "reward_model_listwise"}  # fmt: skip
    text = DOCS.read_text()
    assert {name for name in TABLE if f"`row {name}`" not in text} == ours
