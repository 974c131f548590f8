"""What is asked: different answers only, orders from the seed, repeats later and the other way round."""

from __future__ import annotations

import pytest

from ascent.feedback.comparisons import GAP, make_comparisons, order_for_annotator
from tests.feedback.made import answers, prompt, question


def test_blank_and_equal_answers_are_not_asked_about_and_are_counted():
    prompts = [prompt("a"), prompt("b")]
    said = {"a": answers("x", " x ", "", "y"), "b": answers("same", "same")}
    found, left = make_comparisons(prompts, said, "pairs", seed=0, per_prompt=9)
    assert [each.id for each in found] == ["a#0.0-0.3"]
    assert left == {
        "empty answers": 1,
        "duplicate answers": 2,
        "prompts whose answers are all equal": 1,
    }


def test_with_several_models_pairs_cross_them():
    said = {"a": [*answers("x", "y", model="old"), *answers("z", "w", model="new", place=1)]}
    found, _ = make_comparisons([prompt("a")], said, "pairs", seed=0, per_prompt=99)
    assert len(found) == 4
    assert all({a.model for a in each.answers} == {"old", "new"} for each in found)


def test_pairs_are_drawn_by_the_seed():
    said = {"a": answers(*"abcdefgh")}

    def drawn(seed: int) -> list[str]:
        return [
            each.id
            for each in make_comparisons([prompt("a")], said, "pairs", seed=seed, per_prompt=5)[0]
        ]

    assert drawn(0) == drawn(0) != drawn(1)
    assert len(set(drawn(0))) == 5


def test_rankings_ask_about_all_answers_at_once_up_to_nine():
    found, left = make_comparisons(
        [prompt("a")], {"a": answers(*"abcdefghijk")}, "rankings", seed=0
    )
    assert len(found) == 1 and len(found[0].answers) == 9
    assert left == {"answers beyond nine": 2}


def test_each_side_is_first_about_as_often_and_annotators_see_other_orders():
    questions = [question("x", "y", name=str(number)) for number in range(400)]
    ann, ben = (order_for_annotator(name, questions, seed=0) for name in ("ann", "ben"))
    assert 160 < sum(each.order == (0, 1) for each in ann) < 240
    assert 160 < sum(a.order == b.order for a, b in zip(ann, ben, strict=True)) < 240
    assert (
        ann
        == order_for_annotator("ann", questions, seed=0)
        != order_for_annotator("ann", questions, seed=1)
    )


def test_a_repeat_comes_later_and_reversed():
    questions = [question("x", "y", name=str(number)) for number in range(60)]
    found = order_for_annotator("ann", questions, seed=0, repeat=0.3)
    place = {each.key: number for number, each in enumerate(found)}
    again = [each for each in found if each.repeat]
    assert 8 <= len(again) <= 28
    for each in again:
        first = found[place[each.question.id, 0]]
        assert each.order == first.order[::-1]
        later = place[each.key] - place[first.key]
        assert later >= GAP or place[each.key] >= len(found) - len(
            again
        )  # those of the last questions end the list


@pytest.mark.parametrize("repeat", [-0.1, 1.1])
def test_a_share_is_a_share(repeat):
    with pytest.raises(ValueError, match="a share of the comparisons"):
        order_for_annotator("ann", [], seed=0, repeat=repeat)


def test_an_unknown_form_is_refused():
    with pytest.raises(
        ValueError, match="form='thumbs', but it must be one of pairs, rankings, ratings"
    ):
        make_comparisons([], {}, "thumbs", seed=0)
