"""Digests: facts kept, made up and left out can be counted by hand."""

from __future__ import annotations

import pytest

from ascent.tasks.digest import (
    DIGEST,
    DIGEST_DRAFTS,
    FACTS,
    WHAT,
    WHEN,
    WHERE,
    WHO,
    WORD,
    draw,
    parts,
)
from ascent.tasks.keyed_random import KeyedRandom

ANSWER = "Anna lost a ring in Oslo on Friday."


def test_the_lists_share_no_word_so_that_a_word_is_one_fact() -> None:
    assert len(FACTS) == len(WHO) + len(WHAT) + len(WHERE) + len(WHEN)


def test_a_post_tells_its_facts_and_names_one_stranger() -> None:
    for index in range(200):
        problem = draw(KeyedRandom("post", index))
        told = FACTS.intersection(WORD.findall(problem.question))
        facts = FACTS.intersection(WORD.findall(problem.answer))
        assert len(facts) == 4 and facts < told and len(told) == 5
        assert problem.question.startswith("POST: ") and problem.question.endswith("\nTL;DR:")


@pytest.mark.parametrize(
    ("text", "correct", "facts", "faithful", "brief"),
    [
        (ANSWER, 1, 1, 1, 1),
        ("on Friday, in Oslo: Anna lost a ring", 1, 1, 1, 1),
        ("Anna lost a ring.", 0, 2 / 4, 1, 1),
        ("Ben lost a ring in Oslo on Friday.", 0, 3 / 4, 3 / 4, 1),
        (f"{ANSWER} Ben says hello.", 0, 1, 4 / 5, 1),
        (f"{ANSWER} {'so ' * 10}", 0, 1, 1, 2 - 18 / 12),
        (f"{ANSWER} {'so ' * 30}", 0, 1, 1, 0),
        (ANSWER.replace(" ", ","), 1, 1, 1, 1),
        (f"{ANSWER}{',so' * 40}", 0, 1, 1, 2 - (7 + 11) / 12),
        ("Somebody lost something.", 0, 0, 0, 0),
        ("", 0, 0, 0, 0),
    ],
)
def test_scores(text: str, correct: float, facts: float, faithful: float, brief: float) -> None:
    assert parts(ANSWER, text) == pytest.approx(
        {"correct": correct, "facts": facts, "faithful": faithful, "brief": brief}
    )


def test_naming_everything_without_a_space_is_not_brief() -> None:
    """Words were counted by their spaces once; this was worth more than half of the facts and nothing made up."""
    everything = ",".join(sorted(FACTS))
    assert parts(ANSWER, everything)["brief"] < 0.5
    prompt = DIGEST.prompts("train", 1)[0]
    half = str(prompt.answer).partition(" in ")[0]
    assert DIGEST.true_utility(prompt, everything) < DIGEST.true_utility(prompt, half)


def test_repeating_the_post_is_not_the_best_summary() -> None:
    prompt = DIGEST.prompts("train", 1)[0]
    post = prompt.messages[0].content
    assert DIGEST.true_utility(prompt, post) < DIGEST.true_utility(prompt, str(prompt.answer))


def test_of_the_drafts_that_are_shown_one_in_five_is_correct() -> None:
    shown = zip(
        DIGEST_DRAFTS.prompts("train", 2000),
        DIGEST_DRAFTS.demonstrations("train", 2000),
        strict=True,
    )
    correct = [
        DIGEST_DRAFTS.verify(prompt, each.messages[-1].content)["correct"] for prompt, each in shown
    ]
    assert 0.15 < sum(correct) / len(correct) < 0.25
