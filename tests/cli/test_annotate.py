"""What keys and lines mean."""

from __future__ import annotations

import io
import signal

import pytest
from rich.console import Console

from ascent.cli.annotate import TerminalAnnotator, deferred_interrupt, parse_reply
from ascent.feedback.verdicts import Verdict
from tests.feedback.made import shown


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("1", Verdict("first")),
        ("2", Verdict("second")),
        (" T ", Verdict("tie")),
        ("b", Verdict("both_bad")),
        ("s", Verdict("skip")),
        ("u", "undo"),
        ("q", "quit"),
    ],
)
def test_keys(typed, meant):
    assert parse_reply(typed, "pairs", 2) == meant


@pytest.mark.parametrize(
    ("typed", "ranks"),
    [("2 1 3", (2, 1, 3)), ("3>1>2", (2, 3, 1)), ("2 1=3", (2, 1, 2)), ("2 = 3 1", (3, 1, 1))],
)
def test_rankings(typed, ranks):
    assert parse_reply(typed, "rankings", 3) == Verdict("ranked", ranks)


def test_ratings_and_nonsense():
    assert parse_reply("4, 2.5", "ratings", 2) == Verdict("rated", (4, 2.5))
    for typed, form, words in (
        ("3", "pairs", "none of the keys"),
        ("", "pairs", "none of the keys"),
        ("1 2", "rankings", "does not name each of the answers 1 to 3"),
        ("1 2 2", "rankings", "does not name each"),
        ("4", "ratings", "1 numbers for 3 answers"),
        ("4 x 1", "ratings", "no number"),
        ("4 inf 1", "ratings", "numbers for 3 answers"),
    ):
        with pytest.raises(ValueError, match=words):
            parse_reply(typed, form, 3)


def ask_at(width: int) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=True, color_system=None)
    person = TerminalAnnotator(io.StringIO("x\n1\n"), console)
    assert person.ask(shown("an [bold]apple[/]", "a pear"), "pairs", done=4, total=9) == Verdict(
        "first"
    )
    assert person.ask(shown("a", "b"), "pairs", done=5, total=9) == "quit"  # the input has ended
    return out.getvalue()


def test_answers_side_by_side_where_there_is_room():
    wide, narrow = ask_at(120), ask_at(60)
    assert any("apple" in line and "pear" in line for line in wide.splitlines())
    assert not any("apple" in line and "pear" in line for line in narrow.splitlines())
    for text in (wide, narrow):
        assert (
            "question 5 of 9" in text
            and "an [bold]apple[/]" in text
            and "'x' is none of the keys" in text
        )
        assert "Which?" in text and " m " not in text  # the model's name is hidden


def test_an_answer_cannot_control_the_terminal():
    out = io.StringIO()
    person = TerminalAnnotator(io.StringIO(""), Console(file=out, width=80))
    person.ask(shown("a\x1b[2Jb", "c\x9b1m"), "pairs", done=0, total=1)
    assert (
        "\x1b" not in out.getvalue()
        and "\x9b" not in out.getvalue()
        and "a\u241b[2Jb" in out.getvalue()
    )


def test_an_interrupt_while_a_question_is_drawn_counts_once_it_is_drawn() -> None:
    drawn = []
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a shell starts what runs in its background deaf to it
    with pytest.raises(KeyboardInterrupt), deferred_interrupt():
        signal.raise_signal(signal.SIGINT)
        drawn.append("all of it")
    assert drawn == ["all of it"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with deferred_interrupt():
        pass
