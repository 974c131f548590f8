"""Rewards at steps: from characters to sampled tokens, exactly, for any tokenizer; and from steps to one number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascent.models.tiny import tiny_tokenizer
from ascent.records import Completion, Message, Prompt, Rollout, StepReward, Turn
from ascent.rewards.calls import score_all
from ascent.rewards.outcome import Unscored
from ascent.rewards.steps import (
    AGGREGATES,
    Answer,
    ProcessReward,
    StepScore,
    answers_of,
    scores_by_token,
    token_at,
    tokens_at,
)
from tests.data import chat

BYTES = tiny_tokenizer()
MERGED = tiny_tokenizer(["3 11 13 11 13 3 11"] * 4, vocabulary=262)
SPACED = chat.spaced(None)  # drops the space at the start of a text
TOKENIZERS = {"bytes": BYTES, "merged": MERGED, "words": chat.tokenizer(None), "spaced": SPACED}


def decoder(tokenizer: Any) -> Callable[[Sequence[int]], str]:
    return lambda tokens: str(tokenizer.decode(list(tokens), skip_special_tokens=True))


@settings(max_examples=60)
@given(st.sampled_from([*TOKENIZERS]), st.text("ab 13\n.é→", max_size=16))
def test_the_token_is_the_first_after_which_the_text_stands_so_far(name: str, text: str) -> None:
    """Against looking at every beginning, from the end: before that token the text was not there, after it it stays."""
    tokenizer = TOKENIZERS[name]
    decode = decoder(tokenizer)
    tokens = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
    text = decode(tokens)  # as rollouts have it; some tokenizers cannot write every character
    for end in range(1, len(text) + 1):
        written = [decode(tokens[: count + 1])[:end] == text[:end] for count in range(len(tokens))]
        slow = next(count for count in range(len(tokens)) if all(written[count:]))
        assert token_at(end, text, tokens, decode) == slow
    assert token_at(len(text) + 1, text, tokens, decode) == len(tokens) - 1  # what ended the answer


@settings(max_examples=200)
@given(
    st.sampled_from([*TOKENIZERS]), st.text("ab 13\n.é→", max_size=60), st.sets(st.integers(1, 61))
)
def test_many_ends_are_found_where_each_alone_is(name: str, text: str, ends: set[int]) -> None:
    decode = decoder(TOKENIZERS[name])
    tokens = [
        *TOKENIZERS[name].encode(text, add_special_tokens=False),
        TOKENIZERS[name].eos_token_id,
    ]
    text = decode(tokens)
    assert tokens_at(ends, text, tokens, decode) == {
        end: token_at(end, text, tokens, decode) for end in ends
    }


@given(
    st.lists(
        st.sampled_from([b"\n", b"a", b"\xc3", b"\xa9", b"\n\xf0\x9f", b"\x98\x80", b"\x80", b""]),
        max_size=40,
    )
)
def test_many_ends_among_bytes_that_are_no_characters(pieces: list[bytes]) -> None:
    def decode(tokens: Sequence[int]) -> str:
        return b"".join(pieces[token] for token in tokens).decode(errors="replace")

    tokens = range(len(pieces))
    text = decode(tokens)
    ends = [place + 1 for place, letter in enumerate(text) if letter == "\n"]
    assert tokens_at(ends, text, tokens, decode) == {
        end: token_at(end, text, tokens, decode) for end in ends
    }


@pytest.mark.parametrize("line", ["1\n", "\n", "12345678 é\n", "x" * 500 + "\n"])
def test_what_is_decoded_for_many_steps_is_linear_in_the_answer(line: str) -> None:
    def decoded(size: int) -> int:
        asked = 0

        def decode(tokens: Sequence[int]) -> str:
            nonlocal asked
            asked += len(tokens)
            return "".join(map(chr, tokens))

        text = line * (size // len(line))
        tokens_at(
            [place + 1 for place, each in enumerate(text) if each == "\n"],
            text,
            [*map(ord, text)],
            decode,
        )
        return asked

    assert decoded(20_000) < 100 * 20_000
    assert decoded(80_000) < 5 * decoded(20_000)


def test_tokens_by_hand() -> None:
    """Tokens "3", " 11", "\\n\\n", two halves of "é", the end: a step that ends behind "3 " ends in the token " 11"."""
    pieces = [b"3", b" 11", b"\n\n", b"\xc3", b"\xa9", b""]

    def decode(tokens: Sequence[int]) -> str:
        return b"".join(pieces[token] for token in tokens).decode(errors="replace")

    text = decode(range(6))
    assert [token_at(end, text, range(6), decode) for end in range(1, 9)] == [
        0,
        1,
        1,
        1,
        2,
        2,
        4,
        5,
    ]


def test_long_answers_are_not_decoded_token_by_token() -> None:
    asked = []

    def decode(tokens: Sequence[int]) -> str:
        asked.append(len(tokens))
        return "".join(map(chr, tokens))

    text = "abcdefg\n" * 512
    assert token_at(8 * 300, text, [ord(each) for each in text], decode) == 8 * 300 - 1
    assert len(asked) <= 13


def test_steps_that_end_in_one_token_count_once_with_the_lowest_score() -> None:
    tokenizer = tiny_tokenizer(["20202 20202 20202"] * 4, vocabulary=262)
    tokens = [*tokenizer.encode("20202"), tokenizer.eos_token_id]
    assert len(tokens) == 2  # one token writes all three steps, split at 0, and one ends the answer
    found = scores_by_token([(2, 0.9), (4, 0.2), (6, 0.7)], "20202", tokens, decoder(tokenizer))
    assert found == {0: 0.2, 1: 0.7}


def rollout(*turns: str, heard: Sequence[str] = (), tokenizer: Any = BYTES) -> Rollout:
    made = []
    for place, text in enumerate(turns):
        tokens = (*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id)
        done = Completion("p", 0, tokens, (-0.5,) * len(tokens), (0,) * len(tokens), "eos")
        made.append(
            Turn((1,), done, decoder(tokenizer)(tokens), heard[place - 1] if place else "", "tool")
        )
    return Rollout(Prompt("p", (Message("user", "?"),)), 0, tuple(made))


def by_length(answers: Sequence[Answer]) -> list[list[StepScore] | Unscored]:
    """Lines are steps; one of n characters is right with probability 1 / n. "?" cannot be judged."""
    found: list[list[StepScore] | Unscored] = []
    for answer in answers:
        lines, ends = answer.text.split("\n"), []
        for line in lines:
            ends.append((ends[-1] if ends else 0) + len(line) + 1)
        ends[-1] = len(answer.text) + 1
        scores = [StepScore(end, 1 / len(line)) for end, line in zip(ends, lines, strict=True)]
        found.append(Unscored("unreadable", "?") if "?" in answer.text else scores)
    return found


def test_every_step_is_rewarded_at_the_token_that_ends_it() -> None:
    """One byte a token: "ab\\nabcd\\na" and the end. Steps end with the line breaks, 2 and 7, and with the end, 9."""
    reward = ProcessReward(by_length, decoder(BYTES))
    scored, unscored = reward.score([rollout("ab\nabcd\na"), rollout("?")])
    assert scored == [StepReward(2, 0.5), StepReward(7, 0.25), StepReward(9, 1.0)]
    assert isinstance(unscored, Unscored) and unscored.kind == "unreadable"
    (found,) = score_all({"prm": reward}, [rollout("ab\nabcd\na")], timeout=5)
    assert found["prm"].parts == {"": 1.75} and found["prm"].steps == tuple(scored)


@pytest.mark.parametrize(
    ("name", "value"), [("min", 0.25), ("product", 0.125), ("mean", 1.75 / 3), ("last", 1.0)]
)
def test_one_number_of_an_answers_steps(name: str, value: float) -> None:
    assert set(AGGREGATES) == {"min", "product", "mean", "last"}
    assert ProcessReward(by_length, decoder(BYTES), name).score([rollout("ab\nabcd\na")]) == [
        pytest.approx(value)
    ]


def test_steps_of_several_turns_stand_in_their_own_completions() -> None:
    """Turns of 6 and 3 tokens: the second's steps come after the first's tokens, what was heard counts for nothing."""
    talked = rollout("ab\nab", "abc", heard=["go on"])
    assert [each.messages[1:] for each in answers_of(talked)] == [
        (),
        (Message("assistant", "ab\nab"), Message("tool", "go on")),
    ]
    (found,) = ProcessReward(by_length, decoder(BYTES)).score([talked])
    assert found == [StepReward(2, 0.5), StepReward(5, 0.5), StepReward(9, 1 / 3)]
    (lowest,) = ProcessReward(by_length, decoder(BYTES), "min").score([talked])
    assert lowest == pytest.approx(1 / 3)


def test_what_was_aborted_before_its_first_token_is_unscored() -> None:
    aborted = Rollout(
        Prompt("p", (Message("user", "?"),)),
        0,
        (Turn((1,), Completion("p", 0, (), (), (), "abort"), "a"),),
    )
    (found,) = ProcessReward(by_length, decoder(BYTES)).score([aborted])
    assert isinstance(found, Unscored) and found.kind == "aborted"
