"""`ascent collect` through a pipe and through a terminal, interrupted and continued."""

from __future__ import annotations

import os
import pty
import select
import signal
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from ascent.cli.main import app
from ascent.feedback.preference_log import read
from ascent.models.tiny import create


def command(folder: Path, *more: str) -> list[str]:
    model = folder / "model"
    if not model.exists():
        create(model, seed=0)
    return [
        *("collect", str(model), "style:6", "--out", str(folder / "v.jsonl")),
        *("--max-new-tokens", "5", "--annotator", "ann", "--repeat", "0", *more),
    ]


def piped(folder: Path, keys: str, *more: str) -> Result:
    return CliRunner().invoke(app, command(folder, *more), input=keys, catch_exceptions=False)


def verdicts(folder: Path) -> list[str]:
    return [row["verdict"] for row in read(folder / "v.jsonl")]


def test_a_pipe_with_undo_then_the_rest(tmp_path):
    done = piped(tmp_path, "1\nu\n2\nnonsense\nt\nq\n")
    assert done.exit_code == 0, done.stderr
    assert verdicts(tmp_path) == ["second", "tie"]
    assert "question 1 of 6" in done.stdout and "'nonsense' is none of the keys" in done.stdout
    assert (
        "ann has answered 2 of 6 questions" in done.stdout and "continues from there" in done.stdout
    )
    done = piped(tmp_path, "b\ns\n1\n1\n")
    assert done.exit_code == 0 and verdicts(tmp_path) == [
        "second",
        "tie",
        "both_bad",
        "skip",
        "first",
        "first",
    ]
    assert "continuing" in done.stderr and "sampling" not in done.stderr
    assert "ann: 1 both_bad, 2 first, 1 second, 1 skip, 1 tie" in done.stdout
    inspected = CliRunner().invoke(app, ["inspect", str(tmp_path / "v.jsonl")]).stdout
    assert "3 pairs of 6 rows" in inspected and "1 rows set aside: both bad" in inspected
    assert "ann chose what was shown first in 66.7% of 3 choices" in inspected


@pytest.mark.parametrize("samples", [3, 4])
@pytest.mark.parametrize("form", ["rankings", "ratings"])
def test_all_bad_of_several_answers_and_the_rest_later(tmp_path, form, samples):
    more = ("--ask", form, "--samples", str(samples))
    numbers = " ".join(
        map(str, range(1, samples + 1))
    )  # as ranking: best first; as ratings: best last
    done = piped(tmp_path, f"b\n{numbers}\nq\n", *more)
    assert done.exit_code == 0, done.stderr
    word = {"rankings": "ranked", "ratings": "rated"}[form]
    assert verdicts(tmp_path) == ["both_bad", word] and f"ann: 1 both_bad, 1 {word}" in done.stdout
    done = piped(tmp_path, "b\n" * 4, *more)
    assert (
        done.exit_code == 0
        and "ann has answered 6 of 6 questions" in done.stdout
        and "continuing" in done.stderr
    )
    done = piped(tmp_path, f"{numbers}\n" + "b\n" * 5, *more, "--annotator", "bob")
    pairs = samples * (samples - 1) // 2
    # Alike are questions 3 to 6: four of six.
    assert (
        done.exit_code == 0
        and f"agreement of 2 annotators: 66.7% of {6 * pairs}, Cohen's kappa" in done.stdout
    )
    inspected = (
        CliRunner()
        .invoke(app, ["inspect", str(tmp_path / "v.jsonl")], catch_exceptions=False)
        .stdout
    )
    assert "2 rankings of 12 rows" in inspected and "10 rows set aside: both bad" in inspected
    assert (
        "ann: 5 both_bad" in inspected
        and f"agreement of 2 annotators: 66.7% of {6 * pairs}" in inspected
    )


def test_an_ended_pipe_is_quit(tmp_path):
    assert piped(tmp_path, "1\n").exit_code == 0
    assert verdicts(tmp_path) == ["first"]


def test_a_simulated_annotator_and_errors_in_one_line(tmp_path):
    done = piped(tmp_path, "", "--from", "exact", "--annotator", "sim", "--repeat", "1")
    assert done.exit_code == 0 and "sim: 12 tie" in done.stdout
    with pytest.raises(ValueError, match="no task named 'styl'"):
        piped(tmp_path, "", "--from", "simulated:styl")
    with pytest.raises(
        ValueError, match="was sampled with other arguments: samples was 2 and is 3"
    ):
        piped(tmp_path, "", "--samples", "3")


class Terminal:
    """The command on a terminal of its own."""

    def __init__(self, words: list[str]) -> None:
        self.child, self.handle = pty.fork()
        if self.child == 0:
            os.execv(sys.executable, [sys.executable, "-m", "ascent", *words])
        self.text = ""

    def until(self, words: str, seconds: float = 120) -> None:
        limit = time.monotonic() + seconds
        while words not in self.text:
            ready, _, _ = select.select([self.handle], [], [], max(limit - time.monotonic(), 0))
            assert ready, f"no {words!r} in {self.text!r}"
            try:
                self.text += os.read(self.handle, 65536).decode("utf-8", "replace")
            except OSError:  # the child has gone
                raise AssertionError(f"ended without {words!r}: {self.text!r}") from None
        self.text = self.text.partition(words)[2]

    def press(self, keys: str) -> None:
        os.write(self.handle, keys.encode())

    def ended(self) -> int:
        while True:
            try:
                if not os.read(self.handle, 65536):
                    break
            except OSError:
                break
        status = os.waitpid(self.child, 0)[1]
        os.close(self.handle)
        return os.waitstatus_to_exitcode(status)


# Python warns that forking a process with threads may lock up; the child becomes another program at once.
@pytest.mark.filterwarnings("ignore:.*forkpty:DeprecationWarning")
def test_on_a_terminal_one_key_is_enough_and_nothing_is_lost_on_ctrl_c(tmp_path):
    first = Terminal(command(tmp_path))
    first.until("question 1 of 6")
    first.press("1")
    first.until("question 2 of 6")
    first.press("2")
    first.until("question 3 of 6")
    first.press("u")
    first.until("taken back")
    first.press("t")
    first.until("question 3 of 6")
    assert verdicts(tmp_path) == ["first", "tie"]  # on the disk while the next question is open
    first.press("\x03")
    first.until("the same command continues from there")
    assert first.ended() == 130
    assert verdicts(tmp_path) == ["first", "tie"]
    second = Terminal(command(tmp_path))
    second.until("question 3 of 6")
    os.kill(second.child, signal.SIGKILL)
    second.ended()
    assert verdicts(tmp_path) == ["first", "tie"]
    third = Terminal(command(tmp_path))
    third.until("question 3 of 6")
    for number, key in enumerate("12bs", 4):
        third.press(key)
        third.until(
            f"question {number} of 6" if number < 7 else "ann has answered 6 of 6 questions"
        )
    assert third.ended() == 0
    assert verdicts(tmp_path) == ["first", "tie", "first", "second", "both_bad", "skip"]
