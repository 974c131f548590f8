"""An annotator in a browser: reads the page, presses keys, waits for the next question."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

PAUSE = 260  # the page ignores verdicts in the first moments of a question


class Annotator:
    """`page` shows the labeling page; `enter` gives a name, as a new annotator does."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self._shown = (
            math.inf
        )  # when the question had been shown at the latest, where that is known

    def enter(self, name: str) -> Annotator:
        self.page.fill("#name", name)
        self.page.keyboard.press("Enter")
        self.page.wait_for_selector(".verdict, .message")
        self._shown = time.monotonic()
        return self

    def texts(self) -> list[str]:
        return self.page.locator(".answer .text").all_inner_texts()

    def done(self) -> int:
        return int(self.page.inner_text("#count").split()[0].replace(",", ""))

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def judge(self, *keys: str) -> None:
        """Press keys of which the last is the verdict, and wait until the server has it."""
        self.page.wait_for_timeout(
            min(max(PAUSE - 1000 * (time.monotonic() - self._shown), 0), PAUSE)
        )
        before = self.done()
        self.press(*keys)
        self.wait_for(before + 1)

    def judge_all(self, rule: Callable[[list[str]], str], most: int = 1000) -> int:
        """Judge by a rule until nothing is left; returns how many."""
        count = 0
        while count < most and self.page.locator(".verdict").count():
            self.judge(rule(self.texts()))
            count += 1
        return count

    def undo(self) -> None:
        before = self.done()
        self.press("u")
        self.wait_for(before - 1)

    def wait_for(self, done: int) -> None:
        self.page.wait_for_function(
            "done => document.getElementById('count').textContent.startsWith(`${done} `)", arg=done
        )
        self._shown = time.monotonic()
