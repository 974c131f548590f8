"""The table: every row is complete, every cell follows the convention, presets hold their papers' numbers."""

from __future__ import annotations

import inspect
from dataclasses import replace

import pytest

from ascent.algorithms import SLOTS, TABLE, VOCABULARY, Row
from ascent.cells import Cell, cell, cell_numbers
from ascent.losses import aggregation, pointwise, preferences, supervised, token_weights
from ascent.parameter_ranges import number_rules

REQUIRED = [
    "rlvr",
    "rlhf",
    "reinforce",
    "vpg",
    "ppo",
    "instructgpt",
    "ppo_penalty",
    "vapo",
    "rloo",
    "remax",
    "reinforce_pp",
    "reinforce_pp_baseline",
    "grpo",
    "grpo_r1",
    "grpo_process",
    "dr_grpo",
    "dapo",
    "lite_ppo",
    "gspo",
    "gspo_token",
    "cispo",
    "sapo",
    "gdpo",
    "opo",
    "gmpo",
    "scale_rl",
    "sft",
    "reward_model",
    "reward_model_kwise",
    "reward_model_listwise",
    "dpo",
    "ipo",
    "kto",
    "orpo",
    "simpo",
    "cpo",
    *(
        "vespo",
        "luspo",
        "dppo_tv",
        "dppo_kl",
        "dro",
        "clip_cov",
        "kl_cov",
        "gpg",
        "intellect_2",
        "grpo_v32",
    ),
    *(
        "high_entropy",
        "skywork_or1",
        "fipo",
        "real",
        "grpo_passk",
        "optimal_baseline",
        "nash_md",
        "a2po",
        "rlsd",
    ),
    *(
        "grpo_rejection",
        "robust_dpo",
        "exo",
        "nca",
        "bco_pair",
        "bco",
        "sppo",
        "apo_zero",
        "apo_down",
    ),
    *(
        "apo_zero_unpaired",
        "aot",
        "aot_unpaired",
        "discopop",
        "dpo_norm",
        "slic",
        "f_dpo",
        "ld_dpo",
        "wpo",
        "mpo",
    ),
    "online_dpo",
    *("xpo", "cpo_simpo", "alphapo", "tpo", "dft", "gkd", "kd", "prm", "prm_soft"),
]

# Everything a cell may ask for. A new name here is a new obligation for whoever builds batches.
NOUNS = set(
    [
        "segments",
        "groups",
        "loss_mask_T",
        "logprobs_T",
        "old_logprobs_T",
        "ref_logprobs_T",
        "sampler_logprobs_T",
        "log_ratio_T",
        "advantages_T",
        "advantages_B",
        "entropy_T",
        "values_T",
        "old_values_T",
        "returns_T",
        "rewards_T",
        "rewards_B",
        "scored_B",
        "correct_B",
        "truncated_B",
        "lengths_B",
        "tokens_B",
        "greedy_rewards_B",
        "reward_components_BK",
        "component_weights_BK",
        "step_rewards_T",
        "step_ends_T",
        "bootstrap_B",
        "scores_B",
        "ranks_B",
        "chosen_P",
        "rejected_P",
        "margins_P",
        "chosen_B",
        "desirable_B",
        "mismatched_score",
        "logprobs_B",
        "ref_logprobs_B",
        "pretraining_logprobs_X",
        "pretraining_trained_X",
        "coefficient",
        "kl_per_sequence",
        "kl_per_token",
        "sequences",
        "correction_T",
        "log_collision_T",
        "noise_T",
        "teacher_logprobs_T",
        "logits_TV",
        "teacher_TV",
        "step_logits_TC",
        "step_labels_T",
        "optimal_values_B",
        "from_reference_B",
        "win_prob_B",
        "gold_B",
    ]
)

# Statistics of the whole optimizer step: computed by the functions that `coupled` names, not by who builds batches.
STATISTICS = {
    "group_tokens_B",
    "group_sequences_B",
    "entropy_floor",
    "entropy_memory",
    "reward_memory",
    "mean_weight",
    "draining_T",
    "most_covariant_T",
    "matched_margin_B",
    "matched_score_B",
    "real_value_B",
    "real_slope_B",
}


def test_every_promised_row_is_there_and_the_recommended_ones_come_first() -> None:
    assert sorted(TABLE) == sorted(REQUIRED)
    assert list(TABLE)[:2] == ["rlvr", "rlhf"]
    assert all(name == row.name for name, row in TABLE.items())


@pytest.mark.parametrize("row", TABLE.values(), ids=list(TABLE))
def test_a_row_is_complete(row: Row) -> None:
    assert row.title and row.paper and row.formula and row.origin and row.pitfalls
    if row.source == "rollouts":
        assert (
            row.advantage
            and row.advantage_norm
            and row.rollout_correction
            and row.ratio
            and row.policy_loss
            and row.aggregation
        )
        assert row.loss is None
    else:
        assert row.loss is not None and row.policy_loss is None and row.advantage is None
    if row.samples:
        assert {"rollouts.group_size", "update.epochs", "update.minibatches"} <= set(row.defaults)
    for slot, made in row.cells():
        assert VOCABULARY[slot][made.name] is made.function, (
            f"{slot}: {made.name} is not in the vocabulary"
        )


@pytest.mark.parametrize("row", TABLE.values(), ids=list(TABLE))
def test_compositions_that_make_no_sense_do_not_ship(row: Row) -> None:
    if row.ratio is not None and row.ratio.name.startswith("sequence_geometric"):
        assert row.aggregation is not None and row.aggregation.function in aggregation.PER_SEQUENCE
    if "groups" in (row.advantage.required if row.advantage else ()):
        assert row.defaults["rollouts.group_size"] >= 2
    if row.kl is not None:
        assert row.kl.name != "k1"
        assert row.kl_controller is not None
    if row.advantage_norm is not None and "advantages_B" in row.advantage_norm.inputs:
        assert row.advantage is not None and "rewards_T" not in row.advantage.inputs


@pytest.mark.parametrize(
    "function",
    [f for slot in VOCABULARY.values() for f in slot.values()],
    ids=lambda f: f"{f.__module__}.{f.__name__}",
)
def test_tensors_are_positional_numbers_keyword_only_and_words_come_from_the_vocabulary(
    function,
) -> None:
    statistics = Cell(function, {name: None for name in cell_numbers(function)}).statistics
    for each in (function, *(statistic.function for statistic in statistics.values())):
        for parameter in inspect.signature(each).parameters.values():
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
                kind, _ = number_rules(each)[parameter.name]
                assert kind in (float, int, bool, str)
            else:
                assert parameter.name in NOUNS | set(statistics), parameter.name
        assert inspect.getdoc(each)
    assert set(statistics) <= STATISTICS


def test_every_statistic_is_used() -> None:
    """A statistic belongs to the cell that asks for it; two cells that share a name share its function's meaning."""
    used = [
        name
        for slot in VOCABULARY.values()
        for f in slot.values()
        for name in f.__dict__.get("statistics", {})
    ]
    assert set(used) == STATISTICS


def test_every_cell_in_the_vocabulary_has_a_slot_in_the_row() -> None:
    assert tuple(VOCABULARY) == SLOTS


def test_what_rows_need_is_read_off_their_cells() -> None:
    assert TABLE["ppo"].needs == {"critic", "reference"}
    assert TABLE["remax"].needs == {"greedy", "reference"}
    assert TABLE["dapo"].needs == frozenset()
    assert TABLE["instructgpt"].needs == {"critic", "reference", "pretraining"}
    assert TABLE["gdpo"].needs == {"reward_parts"}
    assert [row for row in TABLE if TABLE[row].reads("noise_T")] == ["clip_cov", "kl_cov"]
    assert TABLE["reward_model"].needs == {"score_head"}
    assert TABLE["online_dpo"].needs == {"reference"}
    assert TABLE["xpo"].needs == {"reference", "reference_samples"}
    assert TABLE["nash_md"].needs == {"reference", "opponent_samples"}


def numbers(name: str, slot: str) -> dict:
    made = getattr(TABLE[name], slot)
    return dict(made.numbers) if made is not None else {}


def test_numbers_of_the_papers() -> None:
    """A change here changes what a name means."""
    assert numbers("dapo", "policy_loss") == {"low": 0.2, "high": 0.28}
    assert numbers("gspo", "policy_loss") == {"low": 3e-4, "high": 4e-4}
    assert numbers("cispo", "policy_loss") == {"floor": 0.0, "cap": 5.0}
    assert numbers("sapo", "policy_loss") == {"tau_positive": 1.0, "tau_negative": 1.05}
    assert numbers("gmpo", "policy_loss") == {"low": 0.4, "high": 0.4}
    assert numbers("ppo", "advantage") == {"gamma": 1.0, "lam": 0.95}
    assert numbers("ppo", "value_loss") == {"radius": 0.2}
    assert numbers("vapo", "advantage") == {"gamma": 1.0, "alpha": 0.05, "critic_lam": 1.0}
    assert numbers("simpo", "loss") == {"beta": 2.5, "margin": 1.375, "label_smoothing": 0.0}
    assert {name: row.kl.weight for name, row in TABLE.items() if row.kl} == {
        "grpo": 0.04,
        "grpo_r1": 0.001,
        "grpo_process": 0.04,
        "reinforce_pp_baseline": 1e-5,
        "ppo_penalty": 1.0,
        "intellect_2": 0.001,
        "grpo_v32": 0.001,
    }
    assert TABLE["ppo"].weights == {"policy": 1.0, "value_loss": 0.1}
    assert TABLE["instructgpt"].weights["pretraining_nll"] == 27.8
    assert TABLE["mpo"].weights == {"dpo": 0.8, "chosen_nll": 1.0, "bco_pair": 0.2}
    assert TABLE["xpo"].weights == {"dpo": 1.0, "reference_likelihood": 1e-5}
    assert numbers("clip_cov", "policy_loss") == {
        "low": 0.2,
        "high": 0.2,
        "share": 2e-4,
        "least": 1.0,
        "most": 5.0,
    }
    assert numbers("dppo_tv", "policy_loss") == {"low": 0.2, "high": 0.2, "cap": 20.0}
    assert numbers("exo", "loss")["label_smoothing"] == 1e-3
    assert TABLE["orpo"].weights == {"odds_ratio": 0.1, "chosen_nll": 1.0}


def test_a_function_stands_once_among_the_terms_and_once_among_the_token_weights() -> None:
    """Terms go by name: of two of one name, one would be lost without a word."""
    dpo, pushed = TABLE["dpo"], cell(preferences.dpo, beta=1.0, weight=0.5)
    with pytest.raises(
        ValueError, match=r"dpo: loss and extra_losses have dpo, dpo, but each.*one cell of dpo"
    ):
        replace(dpo, extra_losses=(pushed,))
    with pytest.raises(
        ValueError, match=r"have dpo, chosen_nll, chosen_nll, .*keep one cell of chosen_nll and set"
    ):
        replace(
            dpo, extra_losses=(cell(supervised.chosen_nll), cell(supervised.chosen_nll, weight=2.0))
        )
    with pytest.raises(
        ValueError, match=r"algorithm grpo: token_weights have probability, probability"
    ):
        replace(
            TABLE["grpo"],
            token_weights=(cell(token_weights.probability), cell(token_weights.probability)),
        )
    joined = replace(dpo, extra_losses=(cell(pointwise.bco_pair, weight=0.5),))
    assert joined.weights == {"dpo": 1.0, "bco_pair": 0.5}


def test_dr_grpo_makes_both_deletions() -> None:
    row = TABLE["dr_grpo"]
    assert row.advantage_norm is not None and row.advantage_norm.name == "none"
    assert row.aggregation is not None and row.aggregation.name == "sequence_mean_token_scaled"
