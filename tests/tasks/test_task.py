"""What every family promises: items by (seed, index), disjoint splits, sound verifiers, known preferences."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascent.records import Prompt
from ascent.tasks import TASKS, find_task
from ascent.tasks.task import SPLITS, Task, overlap, position_accuracy

# Several texts are correct; the families' own tests say which.
SEVERAL_ANSWERS = {"countdown", "tagged", "emphasis", "digest", "digest_drafts"}
EVERY = pytest.mark.parametrize("task", TASKS.values(), ids=lambda task: task.name)


def question(prompt: Prompt) -> str:
    return prompt.messages[-1].content


@EVERY
def test_items_do_not_depend_on_how_many_are_asked_for(task: Task) -> None:
    for make in (task.prompts, task.demonstrations, task.pairs, task.unpaired):
        few, many = make("train", 5, seed=3), make("train", 12, seed=3)
        assert few == many[:5]
        assert make("train", 5, seed=4) != few
    assert task.rankings("train", 3, size=2) == task.rankings("train", 6, size=2)[:3]


@EVERY
def test_ten_thousand_train_items_share_nothing_with_held_out_ones(task: Task) -> None:
    train = {question(prompt) for prompt in task.prompts("train", 8000, seed=1)}
    held = [prompt for seed in (1, 2) for prompt in task.prompts("heldout", 1000, seed=seed)]
    assert not train & {question(prompt) for prompt in held}
    assert len({question(prompt) for prompt in held}) > 10
    ids = [prompt.id for prompt in held]
    assert len(set(ids)) == len(ids)


def test_a_held_out_answer_was_never_shown() -> None:
    """Not even the same digits in another order, or b + a for a + b."""
    for name in ("sort_digits", "style"):
        shown = {prompt.answer for prompt in TASKS[name].prompts("train", 3000)}
        assert not shown & {prompt.answer for prompt in TASKS[name].prompts("heldout", 500)}
    sums = {
        tuple(sorted(question(p)[:-2].split(" + ")))
        for p in TASKS["arithmetic"].prompts("train", 3000)
    }
    held = {
        tuple(sorted(question(p)[:-2].split(" + ")))
        for p in TASKS["arithmetic"].prompts("heldout", 500)
    }
    assert not {pair for pair in sums & held if len(pair) == 2}


@EVERY
def test_a_tenth_is_held_out(task: Task) -> None:
    from ascent.tasks.keyed_random import KeyedRandom
    from ascent.tasks.task import split_of

    keys = {task.draw(KeyedRandom("share", index)).key for index in range(3000)}
    share = sum(split_of(f"{task.name}/{key}") == "heldout" for key in keys) / len(keys)
    assert abs(share - 0.1) < 4 * math.sqrt(0.09 / len(keys))


@EVERY
@pytest.mark.parametrize("split", SPLITS)
def test_demonstrations_are_correct(task: Task, split: str) -> None:
    for prompt, example in zip(
        task.prompts(split, 200), task.demonstrations(split, 200), strict=True
    ):  # type: ignore[arg-type]
        assert example.messages[:-1] == prompt.messages
        scores = task.verify(prompt, example.messages[-1].content)
        # Both show, on purpose, what is not wanted.
        part = {"contrary": "listed", "digest_drafts": None}.get(task.name, "correct")
        assert part is None or scores[part] == 1


@EVERY
@given(text=st.text(max_size=12) | st.text("0123456789 -", max_size=12))
def test_scores_lie_between_0_and_1_for_any_text(task: Task, text: str) -> None:
    prompt = task.prompts("train", 1)[0]
    scores = task.verify(prompt, text)
    assert all(0 <= score <= 1 for score in scores.values())
    assert scores["correct"] in (0, 1)


@EVERY
def test_attempts_spread_over_qualities_and_no_wrong_one_is_correct(task: Task) -> None:
    rankings = task.rankings("train", 300, size=2)
    texts = [
        (ranking.prompt, answer[0].content) for ranking in rankings for answer in ranking.answers
    ]
    assert len({round(task.true_utility(prompt, text), 6) for prompt, text in texts}) >= 2
    if task.name in SEVERAL_ANSWERS:
        return
    for prompt, text in texts:
        exact = text == prompt.answer or (
            task.name == "style" and text.split() == str(prompt.answer).split()[::-1]
        )
        assert task.verify(prompt, text)["correct"] == exact


@EVERY
@pytest.mark.parametrize("strength", [1.0, 4.0])
def test_labels_agree_with_the_truth_at_the_bayes_rate(task: Task, strength: float) -> None:
    """The best judge, who sees the utilities, is right as often as bayes_accuracy says (four standard errors)."""
    pairs = task.pairs("train", 2500, seed=5, strength=strength)
    gaps = [
        task.true_utility(p.prompt, p.chosen[0].content)
        - task.true_utility(p.prompt, p.rejected[0].content)
        for p in pairs
    ]
    right = sum(1.0 if gap > 0 else 0.5 if gap == 0 else 0.0 for gap in gaps) / len(gaps)
    assert abs(right - task.bayes_accuracy(pairs, strength=strength)) < 4 * 0.5 / math.sqrt(
        len(pairs)
    )


def test_the_bayes_rate_of_style_is_the_sigmoid_of_its_strength() -> None:
    task = TASKS["style"]
    for strength in (0.5, 2.0):
        rate = task.bayes_accuracy(task.pairs("train", 50, strength=strength), strength=strength)
        assert rate == pytest.approx(1 / (1 + math.exp(-strength)))


def test_style_demonstrations_have_no_preference_but_its_pairs_do() -> None:
    task = TASKS["style"]

    def ascending(records: list[tuple[Prompt, str]]) -> float:
        return sum(task.verify(prompt, text)["ascending"] for prompt, text in records) / len(
            records
        )

    prompts = task.prompts("train", 2000)
    shown = [e.messages[-1].content for e in task.demonstrations("train", 2000)]
    assert abs(ascending(list(zip(prompts, shown, strict=True))) - 0.5) < 4 * 0.5 / math.sqrt(2000)
    chosen = [
        (pair.prompt, pair.chosen[0].content) for pair in task.pairs("train", 2000, strength=2.0)
    ]
    assert abs(ascending(chosen) - 1 / (1 + math.exp(-2))) < 4 * 0.5 / math.sqrt(2000)


def test_thumbs_follow_their_probability() -> None:
    task = TASKS["style"]
    judged = task.unpaired("train", 4000, strength=3.0)
    up = [j.good for j in judged if task.verify(j.prompt, j.answer[0].content)["ascending"]]
    assert abs(sum(up) / len(up) - 1 / (1 + math.exp(-1.5))) < 4 * 0.5 / math.sqrt(len(up))


def test_rankings_are_plackett_luce() -> None:
    """An answer of the highest utility comes first as often as the softmax share of these says."""
    task, strength = TASKS["sort_digits"], 2.0
    expected, won = 0.0, 0
    rankings = task.rankings("train", 2000, size=4, strength=strength)
    for ranking in rankings:
        utilities = [
            task.true_utility(ranking.prompt, answer[0].content) for answer in ranking.answers
        ]
        weights = [math.exp(strength * utility) for utility in utilities]
        top = max(utilities)
        expected += sum(
            w for w, utility in zip(weights, utilities, strict=True) if utility == top
        ) / sum(weights)
        won += utilities[0] == top
    assert abs(won - expected) < 4 * 0.5 * math.sqrt(len(rankings))


def test_errors_name_the_value_and_the_rule() -> None:
    task = TASKS["style"]
    with pytest.raises(ValueError, match="count=0"):
        task.prompts("train", 0)
    with pytest.raises(ValueError, match="split='test'"):
        task.prompts("test", 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="strength=0"):
        task.pairs("train", 1, strength=0)
    with pytest.raises(ValueError, match="at least 2 answers"):
        task.rankings("train", 1, size=1)
    with pytest.raises(ValueError, match="only 2 answers"):
        task.rankings("train", 1, size=3)
    with pytest.raises(ValueError, match="no answer"):
        task.verify(Prompt("x", task.prompts("train", 1)[0].messages), "1 2")
    with pytest.raises(
        ValueError, match="style scores no steps; use a task that does, such as running_sum"
    ):
        task.verify_steps(task.prompts("train", 1)[0], "1 2")
    with pytest.raises(ValueError, match="did you mean sort_digits"):
        find_task("sort_digit")
    with pytest.raises(ValueError, match="no pairs"):
        task.bayes_accuracy([], strength=1.0)


@given(st.lists(st.sampled_from("abc"), max_size=6), st.lists(st.sampled_from("abc"), max_size=6))
def test_credit_for_bags_and_places(want: list[str], got: list[str]) -> None:
    assert (overlap(want, got) == 1) == (sorted(want) == sorted(got) and bool(want))
    assert (position_accuracy(want, got) == 1) == (want == got and bool(want))
    assert position_accuracy(want, got) <= overlap(want, got)
    assert overlap(want, got) == overlap(got, want)
    assert overlap(want, got) == sum(min(want.count(x), got.count(x)) for x in set(want)) / max(
        len(want), len(got), 1
    )
