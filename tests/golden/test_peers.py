"""docs/peers.md is current, names only what exists, and leaves out nothing that the golden cases ask for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from ascent.algorithms import TABLE
from tests.golden.cases import VECTORS, Case, load
from tests.golden.peers import page, unknown_references
from tests.golden.peers_options import NOT_HERE, PEERS, Option

DOCS = Path(__file__).parents[2] / "docs" / "peers.md"
CASES = load(VECTORS)


def test_the_page_is_current() -> None:
    assert DOCS.read_text() == page(CASES), (
        "make it again: python -m tests.golden.peers > docs/peers.md"
    )


def test_every_row_and_cell_it_names_exists() -> None:
    assert unknown_references() == []


def test_no_option_is_listed_twice() -> None:
    for options in PEERS.values():
        named = [(each.setting, each.value) for each in options]
        assert len(named) == len(set(named))


class Asked(NamedTuple):
    """Where the page must answer for a parameter of some cases: `cases` is part of their file or function."""

    cases: str
    parameter: str
    setting: str
    beginning: str = ""

    def asks(self, case: Case) -> bool:
        return (
            self.cases in f"{case.file} {case.function}" and self.parameter in case.params.entries
        )

    def entries(self) -> list[Option]:
        """The entries that may hold the answer: of the peer, of the setting, and of the part of it that is meant."""
        peer = {"trl": "TRL", "verl": "verl", "openrlhf": "OpenRLHF", "swift": "ms-swift"}[
            self._file().split("_")[0]
        ]
        options = next(options for name, options in PEERS.items() if name.startswith(peer))
        return [
            each
            for each in options
            if each.setting == self.setting and each.value.startswith(self.beginning)
        ]

    def _file(self) -> str:
        return next(case.file for case in CASES if self.asks(case))


# Words: every value that occurs must be a word of such an entry.
VALUES = (
    Asked("trl_dpo_losses", "loss_type", "DPO loss_type"),
    Asked("trl_dpo_losses", "f_divergence_type", "DPO modifiers", "f_divergence_type"),
    Asked("CPOTrainer", "loss_type", "without a reference", "CPO"),
    Asked("TPOTrainer", "loss_type", "without a reference", "TPO"),
    Asked("trl_kto_losses", "loss_type", "unpaired", "KTO"),
    Asked("XPOTrainer", "loss_type", "online and regression", "XPO"),
    Asked("trl_grpo_losses", "loss_type", "GRPO loss_type"),
    Asked(
        "trl_grpo_losses", "importance_sampling_level", "GRPO options", "importance_sampling_level"
    ),
    Asked("gspo_token", "loss_type", "GRPO loss_type"),
    Asked("gspo_token", "importance_sampling_level", "GRPO options", "importance_sampling_level"),
    Asked("trl_advantages", "scale_rewards", "GRPO options", "scale_rewards"),
    Asked(
        "trl_advantages",
        "multi_objective_aggregation",
        "GRPO options",
        "multi_objective_aggregation",
    ),
    Asked("trl_advantages", "vllm_importance_sampling_mode", "GRPO options", "vllm"),
    Asked("trl_ppo", "kl_estimator", "other trainers", "PPO kl_estimator"),
    Asked("trl_reward_losses", "reduction", "supervised, rewards, distillation", "GKD reduction"),
    Asked("verl_policy_losses", "loss_mode", "policy loss_mode"),
    Asked("verl_actor_loss", "loss_mode", "policy loss_mode"),
    Asked("verl_policy_losses", "loss_agg_mode", "loss_agg_mode"),
    Asked("verl_actor_loss", "loss_agg_mode", "loss_agg_mode"),
    Asked("verl_primitives", "loss_agg_mode", "loss_agg_mode"),
    Asked("verl_actor_loss", "kl_loss_type", "KL"),
    Asked("core_algos.kl_penalty", "kl_penalty", "KL"),
    Asked("apply_kl_penalty", "kl_penalty", "KL in the reward", "kl_penalty"),
    Asked("get_kl_controller", "type", "KL", "fixed and adaptive controllers"),
    Asked("verl_rollout_correction", "rollout_is", "rollout correction", "rollout_is "),
    Asked("verl_rollout_correction", "rollout_rs", "rollout correction", "rollout_rs"),
    Asked("openrlhf_advantages", "estimator", "advantage estimator"),
    Asked("openrlhf_losses", "policy_loss_type", "policy loss"),
    Asked("openrlhf_losses", "vllm_is_correction_type", "policy loss", "vllm"),
    Asked("openrlhf_losses", "labels", "other losses", "PRMLoss"),
    Asked("openrlhf_primitives", "kl_estimator", "rewards and KL", "kl estimator"),
    Asked("openrlhf_primitives", "type", "rewards and KL", "adaptive KL controller"),
    Asked("swift_advantages", "advantage_estimator", "advantage_estimator"),
    Asked("swift_advantages", "scale_rewards", "scale_rewards"),
    Asked("swift_grpo_losses", "loss_type", "loss_type"),
    Asked(
        "swift_grpo_losses",
        "importance_sampling_level",
        "GRPO options",
        "importance_sampling_level",
    ),
    Asked("swift_grpo_losses", "rollout_importance_sampling_mode", "GRPO options", "rollout"),
)

# Switches and numbers: the parameter's own name must be a word of such an entry.
NAMES = (
    *(
        Asked("trl_dpo_losses", name, "DPO modifiers")
        for name in ("ld_alpha", "use_weighting", "loss_weights", "label_smoothing")
    ),
    *(
        Asked("trl_kto_losses", name, "unpaired", "KTO")
        for name in ("desirable_weight", "undesirable_weight")
    ),
    Asked("CPOTrainer", "cpo_alpha", "without a reference", "CPO"),
    Asked(
        "trl_reward_losses",
        "center_rewards_coefficient",
        "supervised, rewards, distillation",
        "reward model",
    ),
    *(
        Asked("trl_grpo_losses", name, "GRPO options")
        for name in (
            "delta",
            "beta",
            "use_bias_correction_kl",
            "off_policy_mask_threshold",
            "top_entropy_quantile",
            "entropy_coef",
        )
    ),
    Asked("trl_advantages", "mask_truncated_completions", "GRPO options"),
    *(
        Asked("RLOOTrainer", name, "other trainers", "RLOO")
        for name in ("normalize_advantages", "reward_clip_range")
    ),
    Asked("trl_ppo", "whiten_rewards", "other trainers", "PPO"),
    *(
        Asked("verl_advantages", name, "adv_estimator")
        for name in ("norm_adv_by_std_in_grpo", "handle_zero_tail")
    ),
    Asked("verl_actor_loss", "entropy_coeff", "policy loss_mode"),
    Asked("verl_rollout_correction", "rollout_is_batch_normalize", "rollout correction"),
    Asked("openrlhf_advantages", "no_std_norm", "advantage estimator"),
    *(
        Asked("openrlhf_advantages", name, "rewards and KL")
        for name in ("overlong_buffer_len", "reward_clip_range")
    ),
    *(Asked("openrlhf_losses", name, "policy loss") for name in ("dual_clip", "token_level_loss")),
    *(
        Asked("openrlhf_losses", name, "other losses", "KTOLoss")
        for name in ("desirable_weight", "undesirable_weight")
    ),
    Asked("openrlhf_losses", "ipo", "other losses", "DPOLoss"),
    Asked("swift_advantages", "kl_in_reward", "GRPO options"),
    Asked("swift_advantages", "negative_only", "teachers", "RLSD"),
    *(
        Asked("swift_grpo_losses", name, "GRPO options")
        for name in (
            "delta",
            "beta",
            "off_policy_sequence_mask_delta",
            "top_entropy_quantile",
            "overlong_filter",
        )
    ),
    Asked("swift_grpo_losses", "fipo_clip_high_only", "loss_type", "fipo"),
)

# Words and switches that choose nothing, or nothing that is not said by another one.
NO_OPTIONS = {
    "train_mode": "whether the model is in training",
    "calculate_KL": "follows from KTO's loss_type",
    "enable_vllm_is_correction": "whether there is a vllm_is_correction_type",
    "rollout_is_threshold": "a number, or two in one word",
    "rollout_rs_threshold": "a number, or several in one word",
    "gdpo_reward_keys": "names of the parts",
    "match_underlying_distribution": "under 'Not here'",
}


def _values(entry: object) -> list[str]:
    if isinstance(entry, list):
        return [each for item in entry for each in _values(item)]
    return [word.strip() for word in entry.split(",")] if isinstance(entry, str) else []


def _words(entries: list[Option]) -> set[str]:
    return {word for each in entries for word in re.split(r"[\s,()]+", each.value)}


@pytest.mark.parametrize("asked", VALUES, ids=lambda each: f"{each.cases} {each.parameter}")
def test_every_value_that_occurs_in_the_vectors_is_in_its_own_entry(asked: Asked) -> None:
    occurring = {
        value
        for case in CASES
        if asked.asks(case)
        for value in _values(case.params.entries[asked.parameter])
    }
    assert occurring
    assert occurring - _words(asked.entries()) == set()


@pytest.mark.parametrize("asked", NAMES, ids=lambda each: f"{each.cases} {each.parameter}")
def test_every_switch_that_occurs_in_the_vectors_has_its_own_entry(asked: Asked) -> None:
    assert asked.parameter in _words(asked.entries())


def _choices(case: Case) -> Iterator[str]:
    """The parameters of a case that are words or switches, and so choose something."""
    for name, value in case.params.entries.items():
        if isinstance(value, bool) or _values(value):
            yield name


def test_no_word_or_switch_of_the_vectors_is_forgotten() -> None:
    asked = (*VALUES, *NAMES)
    forgotten = {
        (case.file, name)
        for case in CASES
        if case.file != "cross_peer"
        for name in _choices(case)
        if name not in NO_OPTIONS
        and not any(each.parameter == name and each.asks(case) for each in asked)
    }
    assert forgotten == set()
    assert any("match_underlying_distribution" in what for _, what, _ in NOT_HERE)


def test_every_row_but_our_own_is_somewhere_on_the_page() -> None:
    """What no peer has: our two recommendations, papers nobody else ships as such, and compositions of ours."""
    ours = {
        "rlvr",
        "rlhf",
        "reinforce",
        "vpg",
        "instructgpt",
        "ppo_penalty",
        "vapo",
        "grpo_r1",
        "grpo_process",
        "scale_rl",
        "reward_model_kwise",
        "reward_model_listwise",
    }
    text = DOCS.read_text()
    assert {name for name in TABLE if f"`row {name}`" not in text} == ours
