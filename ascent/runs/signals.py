"""Graceful stop: the first SIGTERM or SIGINT finishes the step and saves, the second exits."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class GracefulStop:
    """A context in which the first signal sets `requested`, which the loop checks between steps.

    A second signal exits with status 128 + its number. Leaving the context restores the previous handlers.
    """

    def __init__(self) -> None:
        self.received: str | None = None
        self._previous: dict[signal.Signals, Any] = {}

    @property
    def requested(self) -> bool:
        return self.received is not None

    def __enter__(self) -> GracefulStop:
        if threading.current_thread() is not threading.main_thread():
            _say(
                "signals are not handled: Python delivers them to the main thread only, and this is another one"
            )
            return self
        self._previous = {each: signal.signal(each, self._handle) for each in SIGNALS}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        for each, handler in self._previous.items():
            signal.signal(each, handler)
        self._previous = {}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if self.requested:
            _say(f"{name} again: exiting now, without saving")
            os._exit(128 + number)
        self.received = name
        _say(f"{name}: finishing this step, saving, then exiting; send it again to exit now")


def _say(text: str) -> None:
    os.write(2, f"\n{text}\n".encode())  # printing is not safe inside a signal handler
