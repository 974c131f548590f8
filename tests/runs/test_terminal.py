"""Plain lines; and on a screen a small curve, colors and a live bar."""

from __future__ import annotations

import io

import pytest

from ascent.progress import add_tokens, phase, track
from ascent.runs.terminal import PHASES, SECONDS_WITHOUT_LINE, Display, Terminal, fit, phase_times


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_plain_lines_tell_metrics_speed_and_time_left() -> None:
    stream, clock = io.StringIO(), Clock()
    terminal = Terminal(100, done=10, stream=stream, clock=clock)
    clock.now = 2.0
    terminal.log(
        11, {"loss/total": 1.23456, "tokens/run": 3000.0, "optim/skipped": 0.0, "other": 1.0}
    )
    clock.now = 4.0
    terminal.log(
        12,
        {
            "loss/total": 1.0,
            "tokens/run": 3000.0,
            "optim/skipped": 1.0,
            "eval/preference/accuracy": 0.5,
            "eval/odd": 1.0,
        },
    )
    terminal.note("warning x")
    terminal.close()
    assert stream.getvalue().splitlines() == [
        "step 11/100  loss 1.235  1,500 tokens/s  0:02:58 left",
        "step 12/100  loss 1  held-out accuracy 0.5  skipped 1  1,500 tokens/s  0:02:56 left",
        "warning x",
    ]


def test_a_reward_of_right_or_wrong_is_told_once_and_nothing_cut_is_not_told() -> None:
    stream = io.StringIO()
    terminal = Terminal(1, stream=stream, clock=Clock())
    terminal.log(
        1,
        {
            "reward/mean": 0.5,
            "reward/correct": 0.5,
            "completion/truncated_frac": 0.0,
            "completion/length_mean": 12.0,
            "policy/ref_kl": 0.01,
        },
    )
    assert stream.getvalue() == "step 1/1  reward 0.5  kl 0.01  length 12  ? left\n"


def test_speed_is_smoothed_over_steps_and_a_clock_that_stands_still_does_no_harm() -> None:
    stream, clock = io.StringIO(), Clock()
    terminal = Terminal(10, stream=stream, clock=clock)
    terminal.log(1, {"tokens/run": 10.0})
    for step, now in ((2, 1.0), (3, 11.0)):
        clock.now = now
        terminal.log(step, {"tokens/run": 10.0})
    first, second, third = stream.getvalue().splitlines()
    assert first == "step 1/10  ? left"
    assert second == "step 2/10  10 tokens/s  0:00:08 left"
    assert (
        third == "step 3/10  9 tokens/s  0:00:13 left"
    )  # 0.9 * 1 + 0.1 * 10 = 1.9 s a step, 7 steps


def test_fast_steps_are_not_all_told_but_the_first_the_last_and_evaluations_are() -> None:
    stream, clock = io.StringIO(), Clock()
    terminal = Terminal(100, stream=stream, clock=clock)
    for step in range(1, 101):
        clock.now = step * 0.1
        terminal.log(step, {"loss/total": 1.0, **({"eval/loss/total": 2.0} if step == 42 else {})})
    told = [
        int(line.split("/")[0].removeprefix("step ")) for line in stream.getvalue().splitlines()
    ]
    assert told[0] == 1 and told[-1] == 100 and 42 in told
    assert 18 <= len(told) <= 24  # ten seconds, two lines in each


def test_on_a_screen_there_are_a_curve_of_the_main_quantity_a_bar_and_colors() -> None:
    stream, clock = Screen(), Clock()
    terminal = Terminal(4, done=1, history=[{"reward/mean": 0.0}], stream=stream, clock=clock)
    for step in (2, 3, 4):
        clock.now = float(step)
        terminal.log(step, {"loss/total": 9.0, "reward/mean": step / 4})
    terminal.note("warning truncation")
    terminal.close()
    shown = stream.getvalue()
    assert "▁▅▇█" in shown  # 0, .5, .75, 1, the first of them from before the resume
    assert "step 4/4" in shown and "reward 1" in shown
    assert "\x1b[33mwarning truncation" in shown


def test_plain_text_has_no_curve_and_no_colors() -> None:
    stream = io.StringIO()
    terminal = Terminal(2, stream=stream, clock=Clock())
    terminal.log(1, {"loss/total": 0.25})
    terminal.note("warning x")
    assert stream.getvalue().isascii() and "\x1b" not in stream.getvalue()


TIMES = {
    "time/step": 2.0,
    "time/sample": 1.25,
    "time/score": 0.05,
    "time/prepare": 0.0,
    "time/update": 0.7,
}


def test_a_step_says_where_its_time_went() -> None:
    assert phase_times({}) == []
    assert phase_times({"time/step": 0.5}) == ["0.5 s"]
    assert phase_times(TIMES) == ["2 s: sample 1.2", "update 0.7"]
    assert phase_times(TIMES | {"time/evaluate": 8.0}) == [
        "10 s: sample 1.2",
        "update 0.7",
        "evaluate 8",
    ]
    between = {"time/log": 0.1, "time/save": 7.9}
    assert phase_times(TIMES | between) == ["10 s: sample 1.2", "update 0.7", "save 7.9"]
    everything = dict.fromkeys((f"time/{name}" for name in PHASES), 0.0123) | {"time/step": 0.1}
    assert max(map(len, fit(["step 1000/1000", *phase_times(everything)], 80).splitlines())) <= 80


def test_a_line_breaks_between_its_numbers_and_only_where_it_must() -> None:
    parts = ["step 1/9", "reward 0.5", "held-out reward 0.25", "1,234 tokens/s"]
    assert (
        fit(parts, None)
        == fit(parts, 80)
        == "step 1/9  reward 0.5  held-out reward 0.25  1,234 tokens/s"
    )
    assert fit(parts, 30) == "step 1/9  reward 0.5\n    held-out reward 0.25\n    1,234 tokens/s"


@pytest.mark.parametrize("make", [io.StringIO, Screen])
def test_no_line_is_longer_than_the_terminal(make, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    stream, clock = make(), Clock()
    terminal = Terminal(100, stream=stream, clock=clock)
    numbers = dict.fromkeys(
        ("loss/total", "reward/mean", "reward/correct", "policy/entropy", "policy/ref_kl"), -0.1234
    )
    for step in range(1, 4):
        clock.now += 1
        terminal.log(step, numbers | TIMES | {"eval/reward/mean": 0.123456, "tokens/run": 123456.0})
    terminal.close()
    lines = [line.rpartition("\x1b[2K")[2] for line in stream.getvalue().splitlines()]
    assert len(lines) >= 6 and max(map(len, lines)) <= 80
    assert any(line.startswith("    ") for line in lines)


def test_a_screen_shows_the_phase_with_its_rates_and_a_bar() -> None:
    stream = Screen()
    display = Display(stream)
    with phase("evaluating"), phase("sampling", 64, "rollouts") as sampling:
        sampling.done += 16
        add_tokens(5000)
        sampling.started -= 2.0
        assert display.bars is not None
        display.bars.refresh()
    display.close()
    shown = stream.getvalue()
    assert "evaluating, sampling" in shown and "━" in shown
    assert "16/64 rollouts" in shown and " tokens/s  2 s" in shown


def test_a_pipe_gets_a_line_about_a_long_phase_and_none_about_a_short_one() -> None:
    stream, clock = io.StringIO(), Clock()
    display = Display(stream, clock)
    display.print_phase()  # nothing is going on
    for place in track("updating", range(4), "micro-batches"):
        clock.now += 0.6 * SECONDS_WITHOUT_LINE
        display.print_phase()
        assert stream.getvalue().count("\n") == (place + 1) // 2
    display.close()
    assert stream.getvalue().startswith("  updating  1/4 micro-batches")
    assert stream.getvalue().isascii()
