"""Call a function in its own thread, with a time-out.

A Python thread cannot be stopped. One that hangs is abandoned as a daemon, so it does not keep the interpreter from
ending. Not a thread pool, whose workers would be used up by the first hanging calls.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class BackgroundCall:
    """Runs a function in a thread and keeps its result or error; `done` is called in that thread afterwards."""

    def __init__(
        self, work: Callable[[], Any], *, name: str, done: Callable[[], None] = lambda: None
    ) -> None:
        self.value: Any = None
        self.error: BaseException | None = None
        self._filled, self._done = threading.Event(), done
        threading.Thread(target=self._fill, args=(work,), daemon=True, name=name).start()

    def _fill(self, work: Callable[[], Any]) -> None:
        try:
            self.value = work()
        except BaseException as error:  # SystemExit too: user code must not end the run
            self.error = error
        self._filled.set()
        self._done()

    def wait(self, seconds: float) -> bool:
        """False if it is still running after so many seconds."""
        return self._filled.wait(seconds)


def within(seconds: float, work: Callable[[], Any], *, name: str = "call") -> Any:
    """The result of `work`; raises its error, or TimeoutError."""
    box = BackgroundCall(work, name=name)
    if not box.wait(seconds):
        raise TimeoutError(f"no answer within {seconds:g} s")
    if box.error is not None:
        raise box.error
    return box.value


def error_summary(error: BaseException) -> str:
    """An error in one short line."""
    return f"{type(error).__name__}: {str(error)[:200]}"
