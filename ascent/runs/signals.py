"""Stopping: the first SIGTERM or SIGINT asks for it, the second does it."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

WATCHED = (signal.SIGTERM, signal.SIGINT)


class Stop:
    """While entered, `requested` turns true at the first signal; the loop looks at it between steps.

    A second signal ends the process at once with status 128 + its number. Handlers are put back on leaving.
    """

    def __init__(self) -> None:
        self.received: str | None = None
        self._before: dict[signal.Signals, Any] = {}

    @property
    def requested(self) -> bool:
        return self.received is not None

    def __enter__(self) -> Stop:
        if threading.current_thread() is not threading.main_thread():
            _say("signals are not watched: Python delivers them to the main thread only, and this is another one")
            return self
        self._before = {each: signal.signal(each, self._handle) for each in WATCHED}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for each, before in self._before.items():
            signal.signal(each, before)
        self._before = {}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if self.requested:
            _say(f"{name} again: exiting now, without saving")
            os._exit(128 + number)
        self.received = name
        _say(f"{name}: finishing this step, saving, then exiting; send it again to exit now")


def _say(text: str) -> None:
    os.write(2, f"\n{text}\n".encode())  # printing is not safe inside a signal handler
