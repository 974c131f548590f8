"""What a policy said, as lines: token texts, advantages, rewards, and what could not be scored."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from ascent.models.tiny import tiny_tokenizer
from ascent.records import Completion, Episode, Message, Prompt, Rollout, Turn
from ascent.rewards.outcome import Tally, failed_outcome
from ascent.rollouts.token_stats import TokenStats
from ascent.runs.jsonl import encode_line
from ascent.setup.sample_records import NewFailures, TokenTexts, answers, samples

TOKENIZER = tiny_tokenizer()


def rollout(
    text: str, reward: float | None = 1.0, parts: dict[str, float | None] | None = None
) -> Rollout:
    tokens = (*TOKENIZER.encode(text, add_special_tokens=False), TOKENIZER.eos_token_id)
    asked = Prompt("p", (Message("system", "s"), Message("user", "why?")))
    done = Completion("p", 0, tokens, (-0.123456,) * len(tokens), (0,) * len(tokens), "eos")
    return Rollout(asked, 0, (Turn((5,), done, text),), reward, parts or {})


def test_pieces_put_together_are_the_text_and_special_tokens_are_seen() -> None:
    tokens = TOKENIZER.encode("a b  c\n12", add_special_tokens=False)
    assert "".join(TokenTexts(TOKENIZER)(tokens)) == "a b  c\n12"
    assert TokenTexts(TOKENIZER)([TOKENIZER.eos_token_id]) == [TOKENIZER.eos_token]


def test_a_sample_has_everything_about_its_tokens() -> None:
    (found,) = samples(
        [rollout("ab", 0.5, {"x/correct": 1.0, "x/odd": None})],
        [[1.0, -2.00001, 0.5]],
        TokenTexts(TOKENIZER),
    )
    assert found["prompt"] == "why?"
    assert found["messages"] == [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "why?"},
    ]
    assert found["completion"] == "ab"
    assert found["tokens"] == ["a", "b", TOKENIZER.eos_token]
    assert found["logprobs"] == [-0.1235] * 3
    assert found["advantages"] == [1.0, -2.0, 0.5]
    assert (found["reward"], found["parts"], found["stop"]) == (
        0.5,
        {"x/correct": 1.0, "x/odd": None},
        "eos",
    )


@pytest.mark.parametrize(("own", "kept"), [([0.25, 0.25, 0.25], 0.25), (None, None)])
def test_one_advantage_for_all_tokens_is_one_number_and_none_is_none(
    own: list[float] | None, kept: float | None
) -> None:
    (found,) = samples([rollout("ab")], [own], TokenTexts(TOKENIZER))
    assert found["advantages"] == kept


def test_an_answer_is_right_wrong_or_unknown() -> None:
    said = [
        rollout("a", 0.3, {"v/correct": 1.0}),
        rollout("b", 0.0),
        rollout("c", None),
        rollout("d", math.nan),
    ]
    found = list(answers(said))
    assert [each["correct"] for each in found] == [1.0, 0.0, None, None]
    assert [each["place"] for each in found] == [0, 1, 2, 3]


def test_each_reason_for_failing_is_told_once_with_its_first_case() -> None:
    tally = Tally()
    complaints = NewFailures(tally)
    assert complaints() == []
    for detail in ("first case", "second case"):
        tally.add("mine", rollout("a"), failed_outcome("raised", detail), "never")
    (told,) = complaints()
    assert "reward mine: unscored (raised), first: prompt 'p', sample 0: first case" in told
    tally.add("mine", rollout("a"), failed_outcome("timeout", "no score in time"), "never")
    assert len(complaints()) == 1
    assert complaints() == []


def test_a_sample_may_have_numbers_of_the_trainer() -> None:
    stats = {1: TokenStats([-0.12345, -1.0, -2.0], [0.5, 0.25, 0.125], [1.0, math.inf, 0.9])}
    first, second = samples(
        [rollout("ab"), rollout("ab")], [None, None], TokenTexts(TOKENIZER), stats
    )
    assert "ratio" not in first and "turns" not in first
    assert (second["trainer_logprobs"], second["entropy"]) == (
        [-0.1235, -1.0, -2.0],
        [0.5, 0.25, 0.125],
    )
    assert second["ratio"] == [1.0, math.inf, 0.9] and b"Infinity" in encode_line(second)


def test_a_sample_of_an_environment_says_where_its_turns_are() -> None:
    said = rollout("ab")
    later = replace(said.turns[0], reply="5", reply_role="tool")
    (found,) = samples(
        [replace(said, turns=(*said.turns, later), episode=Episode("over"))],
        [None],
        TokenTexts(TOKENIZER),
    )
    assert (
        found["turns"] == [{"tokens": 3}, {"role": "tool", "reply": "5", "tokens": 3}]
        and len(found["tokens"]) == 6
    )


def test_a_sample_is_right_wrong_or_unknown() -> None:
    said = [rollout("a", 0.3, {"v/correct": 1.0}), rollout("b", 0.0), rollout("c", None)]
    assert [each["correct"] for each in samples(said, [None] * 3, TokenTexts(TOKENIZER))] == [
        1.0,
        0.0,
        None,
    ]
