"""Functions in threads of their own: what they return, raise, and what happens when they hang."""

from __future__ import annotations

import threading
import time

import pytest

from ascent.sandbox.timeouts import BackgroundCall, error_summary, within
from tests.wall_clock import wall_clock


def test_values_and_errors_come_back() -> None:
    assert within(5, lambda: 3) == 3
    with pytest.raises(KeyError, match="gone"):
        within(5, lambda: {}["gone"])


@wall_clock
def test_a_hanging_call_is_left_behind() -> None:
    wait, start = threading.Event(), time.monotonic()
    with pytest.raises(TimeoutError, match=r"within 0\.1 s"):
        within(0.1, wait.wait)
    assert time.monotonic() - start < 2
    wait.set()


def test_a_box_tells_when_it_is_filled() -> None:
    told = threading.Event()
    box = BackgroundCall(lambda: 1 / 0, name="x", done=told.set)
    assert told.wait(5) and box.wait(0)
    assert (
        box.error is not None and error_summary(box.error) == "ZeroDivisionError: division by zero"
    )
