"""A maze and twenty questions, played by hand."""

from __future__ import annotations

import pytest

from ascent.envs import find_env
from ascent.records import Message as Said
from ascent.records import Prompt
from ascent.tasks import TASKS


def asked(text: str, answer: str | None = None) -> Prompt:
    return Prompt("p", (Said("user", text),), answer)


def heard(reply: object) -> str:
    message = reply.message  # type: ignore[attr-defined]
    assert isinstance(message, Said) and message.role == "user"
    return message.content


MAZE = "maze\nS.#\n.#G\n...\nmoves:"


def test_a_walk_that_shows_the_drawing() -> None:
    env = find_env("maze")(asked(MAZE))
    assert env.first().messages == (Said("user", "S.#\n.#G\n...\nmove: "),)
    assert heard(env.reply("D")) == "..#\nS#G\n...\nmove: "
    assert heard(env.reply("R")) == "a wall\nmove: "
    assert heard(env.reply("L")) == "a wall\nmove: "  # the edge
    assert heard(env.reply("go down")) == "say one of U, D, L, R\nmove: "
    for move in "DRR":
        assert env.reply(move).parts == {"correct": 0.0}
    last = env.reply(" U\n")
    assert last.message is None and last.parts == {"correct": 1.0}


def test_a_walk_that_shows_the_ways() -> None:
    env = find_env("maze", shows="ways")(asked(MAZE))
    assert env.first().messages[0].content == "open DR goal DRR\nmove: "
    assert heard(env.reply("D")) == "open UD goal RR\nmove: "
    assert env.reply("R").counts == {"walls": 1} and env.reply("?").counts == {"not_a_move": 1}


def test_the_task_of_mazes_can_be_walked() -> None:
    for prompt in TASKS["maze"].prompts("train", 8):
        env = find_env("maze")(prompt)
        *way, last = (prompt.answer or "").split(" ")
        assert all(env.reply(move).message is not None for move in way)
        assert env.reply(last).parts == {"correct": 1.0}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("S..\n...", "one G, this one 0"),
        ("S.\n.GG\n", "no maze"),
        ("SG\nS.", "one S, this one 2"),
        ("hello", "no maze"),
    ],
)
def test_what_is_no_maze(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        find_env("maze")(asked(text))


def test_twenty_questions() -> None:
    env = find_env("twenty_questions")(asked("What do I think of?", "fox"))
    assert heard(env.reply("is it red?")) == "yes\n"
    assert heard(env.reply("Is it a fruit?")) == "no\n"
    assert heard(env.reply("is it tasty?")) == "ask: is it ...?\n"
    assert heard(env.reply("red")) == "ask: is it ...?\n"
    wrong = find_env("twenty_questions")(asked("?", "fox")).reply("it is an apple.")
    assert wrong.message is None and wrong.parts == {"correct": 0.0}
    assert env.reply("is it a fox").parts == {"correct": 1.0}


def test_things_of_ones_own() -> None:
    things = {"oak": ["tall"], "moss": ["small"]}
    assert (
        heard(find_env("twenty_questions", things=things)(asked("?", "oak")).reply("is it tall?"))
        == "yes\n"
    )
    with pytest.raises(ValueError, match="the answer 'fox', but the things are oak, moss"):
        find_env("twenty_questions", things=things)(asked("?", "fox"))
    with pytest.raises(ValueError, match="'tall' is a thing and a property"):
        find_env("twenty_questions", things={"tall": ["x"], "oak": ["tall"]})
    with pytest.raises(ValueError, match="at least 2"):
        find_env("twenty_questions", things={"oak": ["tall"]})
    with pytest.raises(ValueError, match="shows='map'"):
        find_env("maze", shows="map")
