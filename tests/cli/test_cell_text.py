from dataclasses import replace

from ascent.algorithms import TABLE, VOCABULARY
from ascent.cli import cell_text
from ascent.parameter_ranges import OneOf, Range


def test_rows_are_split_by_what_they_learn_from():
    from_rollouts, from_pairs, from_files = [rows for _, _, rows in cell_text.split(TABLE.values())]
    assert {row.name for row in from_files} >= {"sft", "dpo", "reward_model"}
    assert {row.name for row in from_pairs} == {"online_dpo", "xpo"}
    assert {row.name for row in from_rollouts} >= {"rlvr", "ppo"}
    assert len(from_rollouts) + len(from_pairs) + len(from_files) == len(TABLE)


def test_kl_says_where_and_how_much():
    assert cell_text.kl(TABLE["grpo"]) == "k3 0.04"
    assert cell_text.kl(TABLE["ppo"]) == "reward 0.05"
    assert cell_text.kl(TABLE["dapo"]) == ""
    assert cell_text.kl(replace(TABLE["ppo"], kl=TABLE["grpo"].kl)) == "k3 0.04, reward 0.05"


def test_summary_leaves_out_what_does_nothing():
    found = cell_text.summary(TABLE["reinforce"])
    assert (found["advantage"], found["ratio"], found["policy_loss"], found["advantage_norm"]) == (
        "reward_to_go",
        "",
        "",
        "",
    )


def test_cells_show_weights_only_where_they_count():
    found = {slot: numbers for slot, _, numbers, _ in cell_text.cells(TABLE["ppo"])}
    assert found["value_loss"].startswith("weight 0.1, radius 0.2")
    assert "weight" not in found["policy_loss"]


def test_numbers_are_short():
    assert cell_text.numbers({"eps": 1e-4, "ddof": 1, "part_weights": ""}) == "eps 0.0001, ddof 1"


def test_every_cell_of_the_vocabulary_is_a_choice_once():
    named = [(each.slot, each.name) for each in cell_text.choices()]
    assert named == [(slot, name) for slot, known in VOCABULARY.items() for name in known]


def test_a_choice_says_how_a_recipe_sets_it_and_within_what():
    found = {(each.slot, each.name): each for each in cell_text.choices()}
    assert found["policy_loss", "dual_clip"].recipe == "cells.policy_loss.use: dual_clip"
    assert (
        found["policy_loss", "dual_clip"].numbers
        == "low 0.2 (at least 0), high 0.2 (at least 0), cap 3 (above 1)"
    )
    assert (
        found["reward_shaping", "whiten_rewards"].recipe
        == "cells.reward_shaping.whiten_rewards: {}"
    )
    assert (
        found["reward_shaping", "clip"].recipe == "cells.reward_shaping.clip: {low: ..., high: ...}"
    )
    assert found["extra_losses", "bco_pair"].recipe == "cells.extra_losses.bco_pair: {weight: ...}"
    assert found["kl", "rho_k1"].numbers == "weight (at least 0)"
    focus = found["token_weights", "teacher_agreement"].numbers
    assert focus == "mix 0.5 (0 to 1); from Python: radius 0.2 (0 to 1), negative_only False"


def test_ranges_are_put_into_words():
    assert cell_text.rule(Range(at_least=0, at_most=1)) == "0 to 1"
    assert cell_text.rule(Range(above=0, below=0.5)) == "above 0, below 0.5"
    assert cell_text.rule(Range(above=0, at_most=1, or_zero=True)) == "0 or above 0, at most 1"
    assert cell_text.rule(OneOf(("token", "sum"))) == "token or sum"
