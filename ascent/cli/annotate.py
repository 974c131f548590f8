"""A person who annotates at a terminal: panels, one key (or one line, where input is piped), progress, undo."""

from __future__ import annotations

import signal
import sys
import termios
import threading
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, TextIO

from rich.columns import Columns
from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from ascent.cli.console import make_console
from ascent.cli.samples import escape_controls
from ascent.feedback.comparisons import Form, ShownComparison
from ascent.feedback.verdicts import Verdict, ranks_of

Reply = Verdict | Literal["undo", "quit"]
KEYS: dict[str, Reply] = {
    "1": Verdict("first"),
    "2": Verdict("second"),
    "t": Verdict("tie"),
    "b": Verdict("both_bad"),
    "s": Verdict("skip"),
    "u": "undo",
    "q": "quit",
}
HELP = {
    "pairs": "1 or 2: the better answer   t: tie   b: both bad   s: skip   u: undo   q: quit",
    "rankings": "numbers from best to worst, = between equals (2 1=3)   b: all bad   s: skip   u: undo   q: quit",
    "ratings": "a number for each answer, high is good (4 2 5)   b: all bad   s: skip   u: undo   q: quit",
}
WIDE = 100  # columns from which two answers are shown side by side
END = "\x04"


class TerminalAnnotator:
    """Reads keys from a terminal, lines from anything else; the end of input is `quit`."""

    def __init__(self, source: TextIO | None = None, console: Console | None = None) -> None:
        self._source = source or sys.stdin
        self._console = console or make_console(pipe_width=80)

    def ask(self, shown: ShownComparison, form: Form, *, done: int, total: int) -> Reply:
        with deferred_interrupt():
            self._show(shown, form, done, total)
        read = read_key if form == "pairs" and self._source.isatty() else read_line
        while True:
            self._console.print("> ", end="")
            typed = read(self._source)
            if typed is None:
                return "quit"
            self._console.print(typed if read is read_key or not self._source.isatty() else "")
            try:
                return parse_reply(typed, form, len(shown.answers))
            except ValueError as error:
                self._console.print(f"{error}\n{HELP[form]}")

    def tell(self, text: str) -> None:
        self._console.print(text)

    def _show(self, shown: ShownComparison, form: Form, done: int, total: int) -> None:
        console = self._console
        console.rule(f"question {done + 1} of {total}")
        for message in shown.question.prompt.messages:
            text = Text(escape_controls(message.content))
            console.print(Panel(text, title=message.role, title_align="left", border_style="cyan"))
        panels = [
            Panel(Text(escape_controls(answer.text)), title=f"answer {number}", title_align="left")
            for number, answer in enumerate(shown.answers, 1)
        ]
        if len(panels) == 2 and console.is_terminal and console.width >= WIDE:
            console.print(Columns(panels, equal=True, expand=True, width=console.width // 2 - 1))
        else:
            for panel in panels:
                console.print(panel)
        console.print(HELP[form], style="dim")


@contextmanager
def deferred_interrupt() -> Iterator[None]:
    """Raise KeyboardInterrupt after the block: raised while rich draws, it can get lost."""
    if (
        threading.current_thread() is not threading.main_thread()
    ):  # only the main thread gets signals
        yield
        return
    pressed: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed:
        raise KeyboardInterrupt


def parse_reply(typed: str, form: Form, answers: int) -> Reply:
    """The reply that was typed; ValueError where it is none."""
    word = typed.strip().lower()
    if form == "pairs" or word in ("b", "s", "u", "q"):
        if word not in KEYS:
            raise ValueError(f"{word!r} is none of the keys")
        return KEYS[word]
    return _parse_ranking(word, answers) if form == "rankings" else _parse_ratings(word, answers)


def _parse_ranking(word: str, answers: int) -> Verdict:
    steps = [
        step.split("=")
        for step in word.replace(">", " ").replace(" =", "=").replace("= ", "=").split()
    ]
    named = [name for step in steps for name in step]
    if sorted(named) != sorted(str(number) for number in range(1, answers + 1)):
        raise ValueError(f"{word!r} does not name each of the answers 1 to {answers} once")
    place = {name: number for number, step in enumerate(steps) for name in step}
    return Verdict(
        "ranked", ranks_of([place[str(n)] for n in range(1, answers + 1)], high_is_good=False)
    )


def _parse_ratings(word: str, answers: int) -> Verdict:
    try:
        numbers = tuple(float(each) for each in word.replace(",", " ").split())
    except ValueError:
        raise ValueError(f"{word!r} holds something that is no number") from None
    if len(numbers) != answers or not all(abs(number) < float("inf") for number in numbers):
        raise ValueError(f"{word!r} has {len(numbers)} numbers for {answers} answers")
    return Verdict("rated", numbers)


def read_line(source: TextIO) -> str | None:
    line = source.readline()
    return line.rstrip("\n") if line else None


def read_key(source: TextIO) -> str | None:
    """One key without Enter. Ctrl-C interrupts, Ctrl-D ends the input."""
    handle = source.fileno()
    before = termios.tcgetattr(handle)
    try:
        tty.setcbreak(handle, termios.TCSANOW)  # keeps keys pressed before the question was shown
        key = source.read(1)
    finally:
        termios.tcsetattr(handle, termios.TCSADRAIN, before)
    return None if key in ("", END) else key
