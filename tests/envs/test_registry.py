"""Environments are found by name, in files and among entry points; what does not fit is refused at once."""

from __future__ import annotations

import importlib.metadata
from dataclasses import replace
from pathlib import Path

import pytest

from ascent.envs import find_env
from ascent.records import Message, Prompt

PROMPT = Prompt("p", (Message("user", "?"),), "fox")
FILE = """
from ascent.records import Reply

class Echo:
    def __init__(self, prompt, *, times=1):
        self.prompt, self.times = prompt, times
    def first(self):
        return self.prompt
    def reply(self, text):
        return Reply(None, {"correct": float(self.times)})

def echo(prompt, *, times=1):
    return Echo(prompt, times=times)

class Shared:
    def __init__(self, *, times):
        self.times, self.closed = times, False
    def __call__(self, prompt):
        return Echo(prompt, times=self.times)
    def close(self):
        self.closed = True

class Uncallable:
    pass

number = 3
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    return str(path)


def test_a_function_and_a_class_of_a_file(file: str) -> None:
    assert find_env(f"{file}:echo")(PROMPT).reply("x").parts == {"correct": 1.0}
    assert find_env(f"{file}:echo", times=2)(PROMPT).reply("x").parts == {"correct": 2.0}
    assert find_env(f"{file}:Echo", times=2)(PROMPT).reply("x").parts == {"correct": 2.0}
    with pytest.raises(ValueError, match="often"):
        find_env(f"{file}:Echo", often=2)
    shared = find_env(f"{file}:Shared", times=3)
    assert shared(PROMPT).reply("x").parts == {"correct": 3.0}
    shared.close()
    assert shared.make.closed  # type: ignore[attr-defined]
    find_env(f"{file}:echo").close()  # nothing to close


def test_an_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = importlib.metadata.EntryPoint(
        "elsewhere", "ascent.envs.single_turn:SingleTurn", "ascent.envs"
    )
    monkeypatch.setattr(
        importlib.metadata, "entry_points", lambda group: [entry] if group == "ascent.envs" else []
    )
    assert find_env("elsewhere")(PROMPT).first() == PROMPT


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("tols", {}, "no env named 'tols'; did you mean tools"),
        ("tools", {}, "env tools needs the option tools"),
        ("tools", {"tools": ["calculator"], "second": 1}, "has no option second; it has tools"),
        ("{file}:number", {}, "is a int, not a function"),
        ("{file}:missing", {}, "defines no missing"),
        ("{file}:Uncallable", {}, "cannot be called with a prompt"),
        ("{file}:echo", {"time": 2}, "has no option time; it has times"),
    ],
)
def test_what_does_not_fit_is_refused(
    name: str, options: dict[str, object], words: str, file: str
) -> None:
    with pytest.raises(ValueError, match=words):
        find_env(name.format(file=file), **options)


def test_what_an_environment_takes_out_of_its_prompt_is_there_for_the_next(tmp_path: Path) -> None:
    path = tmp_path / "cards.py"
    path.write_text(
        "class Cards:\n    def __init__(self, prompt):\n        self.prompt = prompt\n"
        "        self.card = prompt.info['cards'].pop() + prompt.columns['more'].pop('b')\n"
        "    def first(self):\n        return self.prompt\n    def reply(self, text):\n        return self.card\n"
    )
    prompt = replace(PROMPT, info={"cards": [1, 2]}, columns={"more": {"b": 3}})
    family = find_env(f"{path}:Cards")
    assert [family(prompt).reply("") for _ in range(3)] == [5, 5, 5]
    assert prompt.info == {"cards": [1, 2]} and prompt.columns == {"more": {"b": 3}}
