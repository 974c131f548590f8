from dataclasses import replace

from ascent.algorithms import TABLE
from ascent.cli import words


def test_rows_are_split_by_what_they_learn_from():
    from_rollouts, from_pairs, from_files = [rows for _, _, rows in words.split(TABLE.values())]
    assert {row.name for row in from_files} >= {"sft", "dpo", "reward_model"}
    assert {row.name for row in from_pairs} == {"online_dpo", "xpo"}
    assert {row.name for row in from_rollouts} >= {"rlvr", "ppo"}
    assert len(from_rollouts) + len(from_pairs) + len(from_files) == len(TABLE)


def test_kl_says_where_and_how_much():
    assert words.kl(TABLE["grpo"]) == "k3 0.04"
    assert words.kl(TABLE["ppo"]) == "reward 0.05"
    assert words.kl(TABLE["dapo"]) == ""
    assert words.kl(replace(TABLE["ppo"], kl=TABLE["grpo"].kl)) == "k3 0.04, reward 0.05"


def test_summary_leaves_out_what_does_nothing():
    found = words.summary(TABLE["reinforce"])
    assert (found["credit"], found["ratio"], found["gate"], found["normalise"]) == ("reward_to_go", "", "", "")


def test_cells_show_weights_only_where_they_count():
    found = {slot: numbers for slot, _, numbers, _ in words.cells(TABLE["ppo"])}
    assert found["value"].startswith("weight 0.1, radius 0.2")
    assert "weight" not in found["gate"]


def test_numbers_are_short():
    assert words.numbers({"eps": 1e-4, "ddof": 1, "part_weights": ""}) == "eps 0.0001, ddof 1"
