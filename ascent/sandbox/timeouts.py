"""Call a function in a thread of its own and wait only so long.

A thread cannot be stopped in Python. One that hangs is left behind: a daemon, so that it does not keep the interpreter
from ending. Not a pool, whose workers would be used up by the first few that hang.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class Box:
    """Where a thread leaves what a function returned or raised; `done` is called then, in that thread."""

    def __init__(self, work: Callable[[], Any], *, name: str, done: Callable[[], None] = lambda: None) -> None:
        self.value: Any = None
        self.error: BaseException | None = None
        self._filled, self._done = threading.Event(), done
        threading.Thread(target=self._fill, args=(work,), daemon=True, name=name).start()

    def _fill(self, work: Callable[[], Any]) -> None:
        try:
            self.value = work()
        except BaseException as error:  # SystemExit too: what users bring must not end the run
            self.error = error
        self._filled.set()
        self._done()

    def wait(self, seconds: float) -> bool:
        """False when there is nothing yet after so many seconds."""
        return self._filled.wait(seconds)


def within(seconds: float, work: Callable[[], Any], *, name: str = "call") -> Any:
    """What `work` returns; what it raises is raised, and TimeoutError when it takes longer."""
    box = Box(work, name=name)
    if not box.wait(seconds):
        raise TimeoutError(f"no answer within {seconds:g} s")
    if box.error is not None:
        raise box.error
    return box.value


def shown(error: BaseException) -> str:
    """An error in one short line."""
    return f"{type(error).__name__}: {str(error)[:200]}"
