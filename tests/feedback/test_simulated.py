"""Stated noise is measured noise, and a draw depends on its key alone."""

from __future__ import annotations

import math

import pytest

from ascent.feedback.simulated import (
    SimulatedAnnotator,
    annotator_from_options,
    preference,
    verdict,
)
from tests.feedback.made import shown

COUNT = 4000


def share(model: SimulatedAnnotator, scores, *, swapped=False, seed=0) -> float:
    """How often the first shown is chosen."""
    said = [
        verdict(
            shown("x", "y", name=str(n), swapped=swapped),
            scores,
            "pairs",
            model,
            seed=seed,
            annotator="ann",
        ).word
        for n in range(COUNT)
    ]
    return said.count("first") / COUNT


def test_probabilities_by_hand():
    assert (
        preference([1, 0], SimulatedAnnotator()) == 1
        and preference([0, 1], SimulatedAnnotator()) == 0
    )
    assert preference([1, 0], SimulatedAnnotator(noise=0.1)) == pytest.approx(0.9)
    assert preference([math.log(3), 0], SimulatedAnnotator(strength=1)) == pytest.approx(0.75)
    assert preference([math.log(3), 0], SimulatedAnnotator(strength=1, noise=0.1)) == pytest.approx(
        0.1 + 0.8 * 0.75
    )
    assert preference(
        [0, math.log(3)], SimulatedAnnotator(strength=1, bias=math.log(3))
    ) == pytest.approx(0.5)
    assert preference([-1e6, 1e6], SimulatedAnnotator(strength=1e6)) == 0  # no overflow


@pytest.mark.parametrize(
    ("model", "scores"),
    [
        (SimulatedAnnotator(noise=0.1), [0, 1]),
        (SimulatedAnnotator(strength=2), [0.5, 0]),
        (SimulatedAnnotator(strength=1, bias=0.7, noise=0.05), [0, 0.2]),
    ],
)
def test_draws_have_the_stated_probability(model, scores):
    chance = preference(scores, model)
    error = math.sqrt(chance * (1 - chance) / COUNT)
    assert abs(share(model, scores) - chance) < 4 * error


def test_the_same_key_gives_the_same_verdict_and_another_one_does_not():
    model = SimulatedAnnotator(noise=0.5)

    def said(seed=0, annotator="ann", repeat=0):
        questions = [shown("x", "y", name=str(n), repeat=repeat) for n in range(64)]
        return [
            verdict(q, [1, 0], "pairs", model, seed=seed, annotator=annotator).word
            for q in questions
        ]

    assert said() == said()
    assert (
        len({tuple(each) for each in (said(), said(seed=1), said(annotator="ben"), said(repeat=1))})
        == 4
    )


def test_ties():
    assert (
        verdict(
            shown("x", "y"), [1, 1], "pairs", SimulatedAnnotator(strength=1), seed=0, annotator="a"
        ).word
        == "tie"
    )
    assert (
        verdict(
            shown("x", "y"), [1, 0.9], "pairs", SimulatedAnnotator(tie=0.2), seed=0, annotator="a"
        ).word
        == "tie"
    )
    assert (
        verdict(
            shown("x", "y"), [1, 0.7], "pairs", SimulatedAnnotator(tie=0.2), seed=0, annotator="a"
        ).word
        == "first"
    )


def test_rankings():
    found = verdict(
        shown("x", "y", "z"), [1, 3, 3], "rankings", SimulatedAnnotator(), seed=0, annotator="a"
    )
    assert found.numbers == (3, 1, 1)
    first = [
        verdict(
            shown("x", "y", "z", name=str(n)),
            [math.log(2), 0, 0],
            "rankings",
            SimulatedAnnotator(strength=1),
            seed=0,
            annotator="a",
        ).numbers[0]
        == 1
        for n in range(COUNT)
    ]
    assert abs(sum(first) / COUNT - 0.5) < 0.032  # Plackett-Luce: 2 / (2 + 1 + 1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"noise": "0.6"}, "noise=0.6, but it is the share of flipped choices"),
        ({"strength": "0"}, "strength=0.0, but it must be above 0"),
        ({"bias": "1"}, "give a strength too"),
        ({"nois": "0.1"}, "has no option nois; it has noise, strength, bias, tie"),
        ({"noise": "much"}, "could not convert"),
    ],
)
def test_options_that_do_not_fit(options, words):
    with pytest.raises(ValueError, match=words):
        annotator_from_options(options, "simulated:style")
