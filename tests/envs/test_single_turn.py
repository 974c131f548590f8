"""One question, one answer."""

from __future__ import annotations

from ascent.envs import find_env
from ascent.records import Message, Prompt, Reply


def test_it_is_over_after_one_turn() -> None:
    prompt = Prompt("p", (Message("user", "?"),))
    env = find_env("single_turn")(prompt)
    assert env.first() == prompt
    assert env.reply("anything") == Reply(None)
