"""Calls in a policy's text, and what comes back; the Python one runs in the sandbox."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascent.envs import EnvFactory, find_env
from ascent.envs.tools import MAX_CALLS
from ascent.records import Message, Prompt, Reply

PROMPT = Prompt("p", (Message("user", "7*8=?"),), "56")


def content(reply: Reply) -> str:
    assert reply.message is not None
    return reply.message.content


def test_calls_are_answered_in_order_and_a_turn_without_any_ends_it() -> None:
    env = find_env("tools", tools=["calculator"])(PROMPT)
    both = env.reply("First <calculator>7*8</calculator>, then <calculator> 1/0 </calculator>.")
    assert both.message is not None and both.message.role == "tool"
    assert (
        content(both)
        == "<result>56</result>\n<result>error: ZeroDivisionError: Fraction(1, 0)</result>"
    )
    assert both.counts == {"calculator/calls": 2, "calculator/raised": 1}
    assert env.reply("It is 56, not <b>57</b>.") == Reply(None)


def test_a_call_that_is_not_closed_says_so() -> None:
    env = find_env("tools", tools=["calculator"])(PROMPT)
    found = env.reply("<calculator>7*8")
    assert content(found) == "<result>error: <calculator> is not closed by </calculator></result>"
    assert found.counts == {"calculator/malformed": 1}


def test_only_so_many_calls_of_a_turn_are_answered() -> None:
    env = find_env("tools", tools=["calculator"])(PROMPT)
    found = env.reply("<calculator>1+1</calculator>" * 5000)
    *answered, last = content(found).split("\n")
    assert answered == ["<result>2</result>"] * MAX_CALLS
    assert (
        last
        == f"<result>error: {5000 - MAX_CALLS} more calls were not answered; a turn has at most 64</result>"
    )
    assert found.counts == {"calculator/calls": MAX_CALLS, "calculator/left_out": 5000 - MAX_CALLS}
    found = env.reply("<calculator>2</calculator>" + "<calculator>" * 5000)
    assert len(content(found).split("\n")) == MAX_CALLS + 1
    assert found.counts["calculator/malformed"] == MAX_CALLS - 1


@pytest.fixture(scope="module")
def echoing(tmp_path_factory: pytest.TempPathFactory) -> EnvFactory:
    file = tmp_path_factory.mktemp("tools") / "mine.py"
    file.write_text(
        "def one(text):\n    return f'1{text}'\ndef two(text):\n    return f'2{text}'\n"
    )
    return find_env("tools", tools=[f"{file}:one", f"{file}:two"])


@given(
    st.lists(
        st.sampled_from(["<one>", "</one>", "<two>", "</two>", "x", " ", "<", "one>"]), max_size=12
    ).map("".join)
)
def test_calls_as_one_pattern_finds_them(echoing: EnvFactory, text: str) -> None:
    """The pattern looks for the end of every call by itself, which takes quadratic time where there is none."""
    pattern = re.compile(r"<(one|two)>(.*?)</\1>")
    said = [f"{'1' if name == 'one' else '2'}{inside}" for name, inside in pattern.findall(text)]
    left = re.findall("<(one|two)>", pattern.sub("", text))
    said += [f"error: <{name}> is not closed by </{name}>" for name in left]
    reply = echoing(PROMPT).reply(text)
    assert (content(reply) if reply.message else "") == "\n".join(
        f"<result>{each}</result>" for each in said
    )


def test_tools_are_announced_before_the_prompt_or_not_at_all() -> None:
    first, second = find_env("tools", tools=["calculator"])(PROMPT).first().messages
    assert first.role == "system" and "<calculator>...</calculator> (arithmetic)" in first.content
    assert second == PROMPT.messages[0]
    system = Prompt("p", (Message("system", "Be brief."), *PROMPT.messages))
    (merged, _) = find_env("tools", tools=["calculator"])(system).first().messages
    assert merged.content.startswith("Be brief.\n\nYou can call tools")
    assert find_env("tools", tools=["calculator"], announce=False)(PROMPT).first() == PROMPT


def test_a_tool_of_ones_own_long_results_and_another_role(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "def twice(text):\n    return text * 2\ndef three(text):\n    return 3\n"
    )
    names = [f"{tmp_path}/mine.py:twice", f"{tmp_path}/mine.py:three"]
    env = find_env("tools", tools=names, characters=4, role="user")(PROMPT)
    assert env.reply("<twice>abc</twice>").message == Message(
        "user", "<result>abca (2 more characters)</result>"
    )
    assert (
        content(env.reply("<three>x</three>"))
        == "<result>error: three returned a int, not text</result>"
    )


def test_search_needs_a_corpus_and_finds_in_it(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="search needs the option corpus"):
        find_env("tools", tools=["search"])
    (tmp_path / "facts.txt").write_text("the fox is red\nthe frog is green\n")
    env = find_env("tools", tools=["search"], corpus=str(tmp_path / "facts.txt"), results=1)(PROMPT)
    assert (
        content(env.reply("<search>green frog</search>")) == "<result>1. the frog is green</result>"
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tools": []}, "tools is empty"),
        ({"tools": ["calculator", "calculator"]}, "two tools are called calculator"),
        ({"tools": ["calculater"]}, "no tool named 'calculater'; did you mean calculator"),
        ({"tools": ["calculator"], "seconds": 0}, "seconds=0"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        find_env("tools", **options)


@pytest.mark.skipif(
    shutil.which("bwrap") is None and os.environ.get("CI") != "true",
    reason="the package bubblewrap is not installed (with CI=true this is a failure)",
)
def test_python_prints_raises_and_hangs_in_the_sandbox(tmp_path: Path) -> None:
    family = find_env("tools", tools=["python"], seconds=2.0, workers=1)
    env = family(PROMPT)
    try:
        assert (
            content(env.reply("<python>\nx = 7\nprint(x * 8)\n</python>")) == "<result>56</result>"
        )
        assert content(env.reply("<python>print(x)</python>")).startswith(
            "<result>error: NameError"
        )  # nothing is kept
        late = env.reply("<python>while True: pass</python>")
        assert content(late) == "<result>error: the program was stopped after 2 s</result>"
        assert late.counts == {"python/calls": 1, "python/timeout": 1}
        assert "error" in content(env.reply(f"<python>open({str(tmp_path / 'x')!r}, 'w')</python>"))
        assert list(tmp_path.iterdir()) == []
    finally:
        family.close()
