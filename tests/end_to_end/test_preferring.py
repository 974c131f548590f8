"""RLHF from end to end on tiny models, five seeds: PPO beats imitation, a reward model gets hacked, a skill is lost.

The figures behind the marks are in bench/results/*-rlhf-*.json (`python bench/rlhf.py`) and in docs/results/rlhf.md.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from ascent.models import tiny
from ascent.tasks import TASKS
from tests.end_to_end import preferring

pytestmark = pytest.mark.usefixtures("one_thread")


def gap(found: Sequence[Mapping[str, Any]], more: str, less: str) -> float:
    """By how much one figure is above another, on average over seeds."""
    return statistics.mean(each[more] - each[less] for each in found)


@pytest.mark.learning
@pytest.mark.parametrize("name", preferring.FOLLOWED)
def test_following_a_reward_model_beats_imitation_by_the_true_preference(root, name):
    """On four of five seeds or more the whole 95% interval of the win rate is above a half, and KL is in its bound.

    Measured: five of five for both. The interval's lower end .70 to .81 (PPO) and .64 to .75 (GRPO), the win rate on
    average .81 and .76, KL 1.4 to 2.3 and 1.2 to 2.1 nats of 2.5. Nothing learnt is a win rate of a half; a beta of .05
    spends 4 nats (seed 0).
    """
    found = [preferring.followed(root, seed, name) for seed in preferring.SEEDS]
    bound = preferring.FOLLOWED[name].kl_bound
    assert sum(each["win_low"] > 0.5 and each["kl"] <= bound for each in found) >= 4, found
    assert statistics.mean(each["win"] for each in found) > 0.68, found


@pytest.mark.learning
def test_without_kl_the_score_rises_and_the_truth_falls(root):
    """Measured without KL, seed by seed: the score rises by 1.4 to 3.6, the truth falls by .81 to 1.05 of at most 1.25.

    With KL, on average: the score ends lower by 2.2, KL by 34 nats, and the truth .73 higher.
    """
    found = [preferring.overdone(root, seed) for seed in preferring.SEEDS]
    for each in found:
        assert each["without_proxy"] - each["before_proxy"] > 0.5, each
        assert each["before_truth"] - each["without_truth"] > 0.4, each
    assert gap(found, "without_proxy", "with_proxy") > 0.7, found
    assert gap(found, "without_kl", "with_kl") > 10, found
    assert gap(found, "with_truth", "without_truth") > 0.4, found


@pytest.mark.learning
def test_another_skill_is_lost_and_its_text_keeps_it(root):
    """Measured: the other skill loses .37 on average (.15 to .56 by seed), with its text .02 (.00 to .05).

    The wanted one must be learnt beside the text, since whoever learns nothing loses nothing: from .20 to .83.
    """
    found = [preferring.taxed(root, seed) for seed in preferring.SEEDS]
    assert gap(found, "with_other", "without_other") > 0.15, found
    assert gap(found, "before_other", "with_other") < 0.1, found
    assert gap(found, "with_truth", "before_truth") > 0.3, found


def test_nats_by_hand(tmp_path):
    """KL as sampled is the mean of what the two models' own log-probs say, answer by answer."""
    start, other = (tiny.create(tmp_path / str(seed), seed=seed) for seed in (0, 1))
    answers = preferring.said(other, TASKS["contrary"].prompts("heldout", 3, 0), 0)
    wanted = 0.0
    for each in answers:
        (turn,) = each.turns
        tokens = torch.tensor([[*turn.observed, *turn.completion.tokens]])
        for model, sign in ((other, 1), (start, -1)):
            logprobs = (
                AutoModelForCausalLM.from_pretrained(model)(tokens).logits[0, :-1].log_softmax(-1)
            )
            sampled = logprobs[torch.arange(tokens.shape[1] - 1), tokens[0, 1:]][
                len(turn.observed) - 1 :
            ]
            wanted += sign * sampled.sum().item() / len(answers)
    assert preferring.nats(answers, start) == pytest.approx(wanted, abs=1e-4)
    assert preferring.nats(answers, other) == pytest.approx(0, abs=1e-4)


def test_loud_lists_prefer_right_then_calm():
    verify = preferring.LOUD_LISTS.parts
    assert verify("3 5 7", "3 5 7") == {"correct": 1.0, "calm": 1.0, "marks": 0.0}
    assert verify("3 5 7", "3 5 7!!!") == {"correct": 1.0, "calm": 0.0, "marks": 1.0}
    assert verify("3 5 7", "5 3 7")["correct"] == verify("3 5 7", "3 5 7!?")["correct"] == 0
    pairs = preferring.LOUD_LISTS.pairs("train", 400)
    counted = [
        pair.chosen[0].content.count("!") - pair.rejected[0].content.count("!") for pair in pairs
    ]
    assert sum(gap > 0 for gap in counted) > 2 * sum(
        gap < 0 for gap in counted
    )  # whoever counts marks is mostly right
