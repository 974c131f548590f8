"""Plain lines and a live bar."""

from __future__ import annotations

import io

from ascent.runs.terminal import Terminal


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
    terminal.log(11, {"loss": 1.23456, "tokens": 3000.0, "skipped": 0.0, "other": 1.0})
    clock.now = 4.0
    terminal.log(12, {"loss": 1.0, "tokens": 3000.0, "skipped": 1.0, "evaluate/accuracy": 0.5})
    terminal.close()
    assert stream.getvalue().splitlines() == [
        "step 11/100  loss 1.235  1,500 tokens/s  0:02:58 left",
        "step 12/100  loss 1  skipped 1  evaluate/accuracy 0.5  1,500 tokens/s  0:02:56 left",
    ]


def test_speed_is_smoothed_over_steps_and_a_clock_that_stands_still_does_no_harm() -> None:
    stream, clock = io.StringIO(), Clock()
    terminal = Terminal(10, stream=stream, clock=clock)
    terminal.log(1, {"tokens": 10.0})
    for step, now in ((2, 1.0), (3, 11.0)):
        clock.now = now
        terminal.log(step, {"tokens": 10.0})
    first, second, third = stream.getvalue().splitlines()
    assert first == "step 1/10  ? left"
    assert second == "step 2/10  10 tokens/s  0:00:08 left"
    assert third == "step 3/10  9 tokens/s  0:00:13 left"  # 0.9 * 1 + 0.1 * 10 = 1.9 s a step, 7 steps


def test_on_a_screen_a_bar_is_drawn() -> None:
    stream = Screen()
    terminal = Terminal(4, stream=stream, clock=Clock())
    terminal.log(4, {"loss": 0.25})
    terminal.close()
    assert "step 4/4" in stream.getvalue()
    assert "loss 0.25" in stream.getvalue()
