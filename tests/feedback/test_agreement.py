"""Chance-corrected agreement, against numbers worked out by hand or published."""

from __future__ import annotations

import pytest

from ascent.feedback.agreement import (
    agreement,
    agreement_lines,
    cohen,
    krippendorff,
    preference_labels,
    squared,
)
from ascent.feedback.verdicts import Verdict, verdict_row
from tests.feedback.made import choice, shown

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
    assert preference_labels(there) == preference_labels(back) == {("p", "0.0", "0.1"): "a"}
    assert preference_labels(choice("p", "ann", "skip")) == {}


def test_rankings_come_apart_into_preferences():
    row = {
        "id": "p",
        "annotator": "ann",
        "verdict": "ranked",
        "shown": ["0.2", "0.0", "0.1"],
        "ranks": [1, 2, 2],
    }
    assert preference_labels(row) == {
        ("p", "0.0", "0.1"): "tie",
        ("p", "0.0", "0.2"): "b",
        ("p", "0.1", "0.2"): "b",
    }
    rated = row | {"verdict": "rated", "ratings": [1, 2, 2]}
    del rated["ranks"]
    assert preference_labels(rated)["p", "0.0", "0.2"] == "a"


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("form", ["rankings", "ratings"])
def test_all_bad_is_both_bad_of_any_two(form, count):
    row = verdict_row(
        shown(*"wxyz"[:count]), Verdict("both_bad"), form=form, annotator="ann", time="now"
    )
    assert row["set_aside"] == "both bad"
    pairs = {2: 1, 3: 3, 4: 6}[count]
    assert list(preference_labels(row).values()) == ["both_bad"] * pairs
    assert preference_labels(row)["p#q", "0.0", "0.1"] == "both_bad"


def test_one_of_two_annotators_says_all_bad_by_hand():
    """Three answers to p and q, so six pairs. p: ranked x > y > z and all bad. q: all bad, twice.

    Alike are the three of q: share 1/2. Of the labels ann's are 3 a and 3 both_bad, bob's 6 both_bad: expected 3/6, so
    kappa 0. A ranking in which all are equal is a tie of every pair, which is something else than all bad.
    """
    bad, ranked, equal = (
        Verdict("both_bad"),
        Verdict("ranked", (1.0, 2.0, 3.0)),
        Verdict("ranked", (1.0, 1.0, 1.0)),
    )

    def said(name, who, verdict):
        return verdict_row(
            shown("x", "y", "z", name=name), verdict, form="rankings", annotator=who, time="now"
        )

    rows = [
        said("p", "ann", ranked),
        said("p", "bob", bad),
        said("q", "ann", bad),
        said("q", "bob", bad),
    ]
    found = agreement(rows)
    assert found.between is not None
    assert (found.between.share, found.between.units) == (0.5, 6)
    assert found.between.chance_corrected == pytest.approx(0)
    assert "bob: 2 both_bad" in agreement_lines(found)
    unlike = agreement([said("p", "ann", equal), said("p", "bob", bad)]).between
    assert unlike is not None and (unlike.share, unlike.units) == (0, 3)


def test_all_bad_twice_agrees_with_itself():
    bad = Verdict("both_bad")
    there, back = shown("x", "y", "z"), shown("x", "y", "z", swapped=True, repeat=1)
    rows = [
        verdict_row(each, bad, form="ratings", annotator="ann", time="now")
        for each in (there, back)
    ]
    assert agreement(rows).self_agreement["ann"][1:] == (1, None, 3)


def test_two_annotators_by_hand():
    """Of four shared questions three alike: a/a, a/a, b/b, tie/a. Expected (2*3 + 1*1) / 16, so kappa 5/9."""
    said = {
        "p": ("first", "first"),
        "q": ("first", "first"),
        "r": ("second", "second"),
        "s": ("tie", "first"),
    }
    rows = [
        choice(name, who, word)
        for name, words in said.items()
        for who, word in zip("ab", words, strict=True)
    ]
    found = agreement([*rows, choice("t", "a", "first")]).between
    assert found is not None
    assert (found.measure, found.share, found.units) == ("Cohen's kappa", 0.75, 4)
    assert (
        found.chance_corrected
        == pytest.approx((0.75 - 7 / 16) / (1 - 7 / 16))
        == pytest.approx(5 / 9)
    )


def test_three_annotators_get_alpha():
    rows = [choice(name, who, "first") for name in "pqr" for who in "ab"]
    rows += [choice("p", "c", "first"), choice("q", "c", "second"), choice("r", "c", "skip")]
    found = agreement(rows).between
    assert found is not None and found.measure == "Krippendorff's alpha" and found.units == 3
    # p: a a a, q: a a b, r: a a. Observed (2 * 2 / 2) / 8, expected 2 * 7 * 1 / 56: alpha 1 - .25 / .25 = 0.
    assert found.chance_corrected == pytest.approx(0)


def test_somebody_who_always_takes_the_first_contradicts_itself():
    rows = [choice(str(n), "ann", "first", swapped=n % 2 == 0) for n in range(20)]
    rows += [choice(str(n), "ann", "first", swapped=n % 2 == 1, repeat=1) for n in range(20)]
    found = agreement(rows)
    assert found.self_agreement["ann"].share == 0 and found.self_agreement["ann"].units == 20
    assert found.self_agreement["ann"].chance_corrected == pytest.approx(-1)
    assert found.position_bias["ann"].value == 1
    told = "\n".join(agreement_lines(found))
    assert "ann: 40 first" in told
    assert "0.0% of 20, Cohen's kappa -1.000" in told
    assert (
        "shown first in 100.0% of 40 choices (95% interval 91.2% to 100.0%): a position bias"
        in told
    )


def test_somebody_steady_agrees_with_itself_and_shows_no_bias():
    rows = [choice(str(n), "ann", "first" if n % 2 else "second") for n in range(20)]
    rows += [
        choice(str(n), "ann", "second" if n % 2 else "first", swapped=True, repeat=1)
        for n in range(20)
    ]
    found = agreement(rows)
    assert found.self_agreement["ann"].share == 1 and found.self_agreement[
        "ann"
    ].chance_corrected == pytest.approx(1)
    assert "bias" not in "\n".join(agreement_lines(found))
