"""Tasks that no other study trains on can be learnt from their rewards, and no part is paid for with another.

The figures behind the marks are in bench/results/*-learning-tasks.json (`python bench/learning.py tasks`).
"""

from __future__ import annotations

import statistics

import pytest

from tests.end_to_end import tasks

pytestmark = pytest.mark.usefixtures("one_thread")


def gain(found: list[tasks.Found], part: str) -> float:
    """On average over seeds."""
    return statistics.mean(each[f"after_{part}"] - each[f"before_{part}"] for each in found)


@pytest.mark.learning
def test_countdown_is_learnt_from_right_and_wrong(root):
    """Seeds 1 to 5: .146 to .236, the least gain .075. With a coin it is lost: .002."""
    found = [tasks.practised(root, "countdown", seed) for seed in tasks.SEEDS]
    assert gain(found, "correct") >= 0.06, found
    assert min(each["after_correct"] - each["before_correct"] for each in found) > 0.02, found


@pytest.mark.learning
@pytest.mark.parametrize(("name", "briefer"), [("tagged-gdpo", 0.12), ("tagged-grpo", 0.08)])
def test_three_rewards_at_once_are_all_raised(root, name, briefer):
    """Seeds 1 to 5, gdpo, grpo: correct .271 to .353, .352, format .459 to .901, .906, brief .608 to .767, .718.

    A coin instead: .197, .457, .603. One and the same answer to every question is right in one of twenty.
    """
    found = [tasks.practised(root, name, seed) for seed in tasks.SEEDS]
    assert gain(found, "format") >= 0.35 and gain(found, "brief") >= briefer, found
    assert gain(found, "correct") >= 0.04, found


@pytest.mark.learning
@pytest.mark.parametrize("name", tasks.SHUFFLED)
def test_a_coin_for_a_reward_teaches_no_task(root, name):
    found = [tasks.practised(root, name, seed, shuffled=True) for seed in tasks.SEEDS]
    parts = tasks.PRACTISED[name].weights or {"correct": 1.0}
    assert max(gain(found, part) for part in parts) <= 0.05, found


@pytest.mark.learning
def test_a_reward_model_of_summaries_raises_the_truth(root):
    """Seeds 1 to 5: truth 1.522 to 1.736 of 2, all facts and nothing else .116 to .400, ROUGE-L .676 to .882, KL 1.7.

    On seed 0, from a start that cannot copy yet (220 steps), with a KL weight of .05 and 40 steps, the truth rose by
    .13 (of 1.07) while less of what was named was true (.514 to .446): two places and two days hacked the reward model.
    """
    found = [tasks.summarized(root, seed) for seed in tasks.SEEDS]
    assert gain(found, "proxy") > 0 and gain(found, "truth") >= 0.15, found
    assert all(each["after_truth"] > each["before_truth"] for each in found), found
    assert gain(found, "faithful") >= -0.05, found  # naming more is no way to be paid
    assert gain(found, "rouge_l") > 0, (
        found
    )  # the truth counts facts alone; sentences must not be lost on the way


@pytest.mark.learning
def test_the_shipped_rounds_beat_their_first_policy(root):
    """Seeds 1 to 5: .234, .691, .698 right. The second round need not add anything: it did on three of five."""
    found = [tasks.iterated(root, seed) for seed in tasks.SEEDS]
    start, one, two = (
        statistics.mean(each[f"truth_{number}"] for each in found) for number in (0, 1, 2)
    )
    assert min(one, two) > start + 0.35 and two > one - 0.05, found
    assert all(each["win_low_2"] > 0.5 for each in found), found
