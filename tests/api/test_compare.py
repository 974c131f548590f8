"""Compare: both orders, inconsistent is a tie, unjudged is nothing, and a winner only where the interval says so."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ascent.api.compare import CompareResult, Pairing, compare, judge_pairings
from ascent.feedback.verdicts import NoVerdict, Verdict
from ascent.models.tiny import create
from ascent.setup.judges import judge_of, rollout_of
from tests.feedback.made import prompt


class Judge:
    """Decides by what is shown first and second."""

    name = "test"

    def __init__(self, decide: Callable[[str, str], str | None]) -> None:
        self.decide = decide

    def verdicts(self, shown, form, *, annotator):
        for each in shown:
            word = self.decide(*(answer.text for answer in each.answers))
            yield Verdict(word) if word else NoVerdict("server_down")

    def scores(self, asked, texts):
        return None

    def close(self):
        pass


def compared(
    pairs: list[tuple[str, str]], decide: Callable[[str, str], str | None]
) -> CompareResult:
    pairings = [
        Pairing(prompt(str(n)), rollout_of(prompt(str(n)), a), rollout_of(prompt(str(n)), b))
        for n, (a, b) in enumerate(pairs)
    ]
    return judge_pairings(pairings, Judge(decide), a="A", b="B", data="d", samples=0, settings={})


def better(first: str, second: str) -> str:
    return "first" if first > second else "second" if second > first else "tie"


def test_by_hand():
    """6 wins, 2 losses, one equal text and one tie: (6 + 1) / 10."""
    found = compared(
        [("b", "a")] * 6 + [("a", "b")] * 2 + [("same", "same")] + [("t1", "t2")],
        lambda one, other: "tie" if one[0] == "t" else better(one, other),
    )
    assert found.outcomes == {"a": 6, "b": 2, "tie": 1, "inconsistent": 0, "same": 1}
    assert found.win_rate.value == pytest.approx(0.7) and found.prompts == 10
    assert found.winner is None and found.consistency == 1
    assert found.length_matched.value == pytest.approx(
        7.5 / 11
    )  # no length differs: half a win, half a loss more


def test_a_judge_that_takes_the_first_always_finds_no_winner():
    found = compared([("x", "y")] * 50, lambda one, other: "first")
    assert found.outcomes["inconsistent"] == 50 and found.consistency == 0
    assert found.win_rate.value == 0.5 and found.winner is None
    assert found.first_position is not None and found.first_position.low > 0.9


def test_a_judge_that_likes_length_is_seen_through():
    pairs = [("longer", "short")] * 40 + [("short", "longer")] * 10
    found = compared(pairs, lambda one, other: "first" if len(one) > len(other) else "second")
    assert found.winner == "a" and found.win_rate.low > 0.5
    assert found.length_matched.low < 0.5 < found.length_matched.high
    assert found.length_diff == pytest.approx(0.6)


def test_swapping_the_models_mirrors_everything():
    pairs = [("b", "a")] * 20 + [("aa", "bbb")] * 7
    there, back = compared(pairs, better), compared([(b, a) for a, b in pairs], better)
    assert there.winner == "a" and back.winner == "b"
    assert there.win_rate.value == pytest.approx(1 - back.win_rate.value)
    assert there.length_matched.value == pytest.approx(1 - back.length_matched.value)


def test_what_could_not_be_judged_is_left_out_and_counted():
    found = compared(
        [("b", "a")] * 3 + [("?", "a")], lambda one, other: None if "?" in (one, other) else "tie"
    )
    assert found.unjudged == {"server_down": 1} and found.prompts == 3
    with pytest.raises(ValueError, match="gave no verdict at all"):
        compared([("b", "a")], lambda one, other: None)


def test_answers_to_one_prompt_are_one_observation():
    one = prompt("p")
    pairings = [Pairing(one, rollout_of(one, "b"), rollout_of(one, "a"))] * 40
    found = judge_pairings(pairings, Judge(better), a="A", b="B", data="d", samples=40, settings={})
    assert found.prompts == 1 and found.winner is None


def test_two_models(tmp_path: Path):
    a, b = (str(create(tmp_path / str(seed), seed=seed)) for seed in (0, 1))
    file = tmp_path / "mine.py"
    file.write_text("def brief(rollout):\n    return -float(len(rollout.text))\n")
    judge = judge_of(f"{file}:brief")
    found = compare(a, b, "style@heldout:6", judge, samples=2, max_new_tokens=5)
    assert found.prompts == 6 and sum(found.outcomes.values()) == 12 and found.scores is not None
    assert json.loads(json.dumps(found.as_dict()))["win_rate"]["of"] == 6
    assert found == compare(a, b, "style@heldout:6", judge, samples=2, max_new_tokens=5)
    itself = compare(a, a, "style@heldout:6", judge, max_new_tokens=5)
    assert itself.outcomes["same"] == 6 and itself.win_rate.value == 0.5
