"""Who judges, from one name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ascent.feedback.verdicts import NoVerdict
from ascent.setup.judges import judge_of, rollout_of
from tests.feedback.made import prompt, shown
from tests.rewards.servers import misbehaving


def words(name: str, *questions, form="pairs", **options) -> list[str]:
    judge = judge_of(name, **options)
    found = [
        each.word if not isinstance(each, NoVerdict) else each
        for each in judge.verdicts(list(questions), form, annotator="a")
    ]
    judge.close()
    return found


def test_a_simulated_annotator_knows_the_truth_of_its_task():
    ascending, descending = "3 5 7", "7 5 3"
    assert words("simulated:style", shown(ascending, descending)) == ["first"]
    assert words("simulated:style", shown(ascending, descending, swapped=True)) == ["second"]
    assert words("simulated:style", shown(descending, "7 3 5")) == ["tie"]
    many = [shown(ascending, descending, name=str(n)) for n in range(300)]
    slips = words("simulated:style?noise=0.2", *many).count("second") / 300
    assert 0.13 < slips < 0.27
    assert words("simulated:style?noise=0.2", *many) == words("simulated:style?noise=0.2", *many)
    assert words("simulated:style?noise=0.2", *many) != words(
        "simulated:style?noise=0.2", *many, seed=1
    )


def test_a_reward_of_ones_own_judges_pairs_rankings_and_ratings(tmp_path: Path):
    file = tmp_path / "mine.py"
    file.write_text(
        "def brief(rollout):\n    return None if rollout.text == '?' else -float(len(rollout.text))\n"
    )
    name = f"{file}:brief"
    assert words(name, shown("longer", "short")) == ["second"]
    assert words(name, shown("longer", "?")) == [NoVerdict("unscored")]
    judge = judge_of(name)
    (ranked,) = judge.verdicts([shown("aaa", "a", "bbb")], "rankings", annotator="a")
    (rated,) = judge.verdicts([shown("aaa", "a")], "ratings", annotator="a")
    assert (ranked.word, ranked.numbers) == ("ranked", (2, 1, 2))
    assert (rated.word, rated.numbers) == ("rated", (-3, -1))
    assert judge.scores(prompt(), ["aa", "b"]) == [-2, -1] and judge.scores(prompt(), ["?"]) is None
    with pytest.raises(ValueError, match="ratings are the scores themselves"):
        list(judge_of(f"{name}?noise=0.1").verdicts([shown("a", "b")], "ratings", annotator="a"))


def test_a_text_is_thought_about_once(tmp_path: Path):
    file = tmp_path / "counted.py"
    file.write_text(
        "seen = []\ndef one(rollout):\n    seen.append(rollout.text)\n    return len(seen)\n"
    )
    judge = judge_of(f"{file}:one")
    list(judge.verdicts([shown("x", "y"), shown("x", "y", swapped=True)], "pairs", annotator="a"))
    assert judge.scores(prompt(), ["x", "y"]) is not None
    assert sum(1 for _ in judge.known) == 2  # type: ignore[attr-defined]


def test_an_endpoint_is_asked_in_the_order_shown():
    reply = {"choices": [{"message": {"role": "assistant", "content": "Verdict: 1"}}]}
    with misbehaving(lambda path, body: (200, json.dumps(reply).encode())) as server:
        name = f"{server.url}/v1?model=judge&rubric=Be+fair."
        assert words(name, shown("x", "y"), shown("x", "y", swapped=True)) == ["first", "first"]
        assert "Be fair." in server.requests[0][1]["messages"][0]["content"]
        with pytest.raises(
            ValueError, match="compares two answers at a time, but rankings were asked for"
        ):
            words(name, shown("x", "y"), form="rankings")
        assert judge_of(name).scores(prompt(), ["x"]) is None


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("simulated:styl", "no task named 'styl'; did you mean style"),
        ("simulated:style?noice=1", "has no option noice"),
        ("http://localhost/v1", r"give \?model=NAME"),
        (
            "http://me:hunter2@localhost/v1",
            "^the url holds an @, so a user or a password, which would [^2]*$",
        ),
        ("http://me:hunter2?@localhost/v1?model=m", "^the url's host or port cannot be read[^2]*$"),
        ("exacto", "no reward named 'exacto'; did you mean exact"),
    ],
)
def test_names_that_lead_nowhere(name, message):
    with pytest.raises(ValueError, match=message):
        judge_of(name)


def test_rewards_see_the_number_of_tokens():
    assert rollout_of(prompt(), "abc", 7).length == 7
