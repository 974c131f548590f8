"""Chance-corrected agreement, against numbers worked out by hand or published."""

from __future__ import annotations

import pytest

from ascent.feedback.agreement import agreement, cohen, krippendorff, labels_of, squared
from ascent.feedback.summary import lines_of
from tests.feedback.made import choice

# Three observers, fifteen units, from the textbook example of Krippendorff's alpha; 0 is missing.
OBSERVERS = (
    (0, 0, 0, 0, 0, 3, 4, 1, 2, 1, 1, 3, 3, 0, 3),
    (1, 0, 2, 1, 3, 3, 4, 3, 0, 0, 0, 0, 0, 0, 0),
    (0, 0, 2, 1, 3, 4, 4, 0, 2, 1, 1, 3, 3, 0, 4),
)


def test_cohen_by_hand():
    pairs = [("y", "y")] * 20 + [("y", "n")] * 5 + [("n", "y")] * 10 + [("n", "n")] * 15
    assert cohen(pairs) == pytest.approx(0.4)
    assert cohen([("y", "y")] * 3) is None and cohen([]) is None
    assert cohen([("y", "n"), ("n", "y")]) == pytest.approx(-1)


def test_krippendorff_by_hand_and_by_the_textbook():
    assert krippendorff([(0, 0), (1, 1), (0, 1)]) == pytest.approx(4 / 9)
    units = [[each[place] for each in OBSERVERS if each[place]] for place in range(15)]
    assert krippendorff(units) == pytest.approx(0.691, abs=5e-4)
    assert krippendorff(units, squared) == pytest.approx(0.811, abs=5e-4)
    assert krippendorff([(1, 1), (1, 1)]) is None


def test_labels_do_not_depend_on_the_order_shown():
    there, back = choice("p", "ann", "first"), choice("p", "ann", "second", swapped=True)
    assert labels_of(there) == labels_of(back) == {("p", "0.0", "0.1"): "a"}
    assert labels_of(choice("p", "ann", "skip")) == {}


def test_rankings_come_apart_into_preferences():
    row = {"id": "p", "annotator": "ann", "verdict": "ranked", "shown": ["0.2", "0.0", "0.1"], "ranks": [1, 2, 2]}
    assert labels_of(row) == {("p", "0.0", "0.1"): "tie", ("p", "0.0", "0.2"): "b", ("p", "0.1", "0.2"): "b"}
    rated = row | {"verdict": "rated", "ratings": [1, 2, 2]}
    del rated["ranks"]
    assert labels_of(rated)["p", "0.0", "0.2"] == "a"


def test_two_annotators_by_hand():
    """Of four shared questions three alike: a/a, a/a, b/b, tie/a. Expected (2*3 + 1*1) / 16, so kappa 5/9."""
    said = {"p": ("first", "first"), "q": ("first", "first"), "r": ("second", "second"), "s": ("tie", "first")}
    rows = [choice(name, who, word) for name, words in said.items() for who, word in zip("ab", words, strict=True)]
    found = agreement([*rows, choice("t", "a", "first")]).between
    assert found is not None
    assert (found.measure, found.share, found.units) == ("Cohen's kappa", 0.75, 4)
    assert found.beyond_chance == pytest.approx((0.75 - 7 / 16) / (1 - 7 / 16)) == pytest.approx(5 / 9)


def test_three_annotators_get_alpha():
    rows = [choice(name, who, "first") for name in "pqr" for who in "ab"]
    rows += [choice("p", "c", "first"), choice("q", "c", "second"), choice("r", "c", "skip")]
    found = agreement(rows).between
    assert found is not None and found.measure == "Krippendorff's alpha" and found.units == 3
    # p: a a a, q: a a b, r: a a. Observed (2 * 2 / 2) / 8, expected 2 * 7 * 1 / 56: alpha 1 - .25 / .25 = 0.
    assert found.beyond_chance == pytest.approx(0)


def test_somebody_who_always_takes_the_first_contradicts_itself():
    rows = [choice(str(n), "ann", "first", swapped=n % 2 == 0) for n in range(20)]
    rows += [choice(str(n), "ann", "first", swapped=n % 2 == 1, repeat=1) for n in range(20)]
    found = agreement(rows)
    assert found.itself["ann"].share == 0 and found.itself["ann"].units == 20
    assert found.itself["ann"].beyond_chance == pytest.approx(-1)
    assert found.first_place["ann"].value == 1
    told = "\n".join(lines_of(found))
    assert "ann: 40 first" in told
    assert "0.0% of 20, Cohen's kappa -1.000" in told
    assert "shown first in 100.0% of 40 choices (95% interval 91.2% to 100.0%): a bias of position" in told


def test_somebody_steady_agrees_with_itself_and_shows_no_bias():
    rows = [choice(str(n), "ann", "first" if n % 2 else "second") for n in range(20)]
    rows += [choice(str(n), "ann", "second" if n % 2 else "first", swapped=True, repeat=1) for n in range(20)]
    found = agreement(rows)
    assert found.itself["ann"].share == 1 and found.itself["ann"].beyond_chance == pytest.approx(1)
    assert "bias" not in "\n".join(lines_of(found))
