"""Callbacks of a run, called after every step, after every evaluation and at the end. They may stop it.

A callback is a function of (step, metrics), called after every step, or an object with any of the methods
`on_step(step, metrics)`, `on_evaluate(step, metrics)` and `on_end(step, reason)`. Returning True, or a reason as text,
stops the run: the step is evaluated and saved first. So is the step in which a callback raises; the run then fails.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ascent.rewards.outcome import place_of, plain_number

METHODS = ("on_step", "on_evaluate", "on_end")
RULE = "a function of (step, metrics), or an object with on_step, on_evaluate or on_end"


class Callbacks:
    """All callbacks of a run. `reason` is why one of them stops it, or empty."""

    def __init__(self, callbacks: Any = ()) -> None:
        if not isinstance(callbacks, Sequence) or isinstance(callbacks, str):
            callbacks = [callbacks]
        self._methods = [
            _methods_of(f"callbacks[{place}]", each) for place, each in enumerate(callbacks)
        ]
        self.reason = ""
        self._error: Exception | None = None

    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        self._call("on_step", step, metrics)

    def on_evaluate(self, step: int, metrics: Mapping[str, float]) -> None:
        self._call("on_evaluate", step, metrics)

    def on_end(self, step: int, reason: str) -> None:
        """`reason` is why the run stopped before its last step, or empty."""
        self._call("on_end", step, reason)
        self.raise_error()

    def raise_error(self) -> None:
        """The exception of a callback, once the step is saved."""
        if self._error is not None:
            raise self._error

    def _call(self, method: str, step: int, value: Any) -> None:
        for methods in self._methods:
            if method in methods and self._error is None:
                name = f"callback {getattr(methods[method], '__qualname__', method)}"
                try:
                    returned = plain_number(
                        methods[method](step, dict(value) if isinstance(value, Mapping) else value)
                    )
                except Exception as error:
                    self._fail(
                        f"{name} raised {type(error).__name__}: {error}{place_of(error)}",
                        step,
                        error,
                    )
                    continue
                if returned is not None and not isinstance(returned, bool | str):
                    if inspect.iscoroutine(returned):
                        returned.close()
                    kind = type(returned).__name__
                    self._fail(
                        f"{name} returned a {kind}; it returns None, True or a reason to stop", step
                    )
                elif returned:
                    self.reason = self.reason or (
                        returned if isinstance(returned, str) else f"stopped by {name}"
                    )

    def _fail(self, words: str, step: int, cause: Exception | None = None) -> None:
        self._error = RuntimeError(f"{words} (step {step})")
        self._error.__cause__ = cause
        self.reason = str(self._error)


def _methods_of(key: str, callback: Any) -> dict[str, Callable[[int, Any], Any]]:
    """The methods of a callback, each checked; a function is `on_step`."""
    if isinstance(callback, type):
        raise ValueError(
            f"{key} is the class {callback.__name__}; pass an instance, {callback.__name__}()"
        )
    found = {
        name: getattr(callback, name) for name in METHODS if callable(getattr(callback, name, None))
    }
    if not found and callable(callback):
        found = {"on_step": callback}
    if not found:
        raise ValueError(
            f"{key} is a {type(callback).__name__} ({callback!r:.60}); a callback is {RULE}"
        )
    if hasattr(callback, "on_step_end"):
        raise ValueError(
            f"{key} is a {type(callback).__name__} with on_step_end, as of transformers; give {RULE}"
        )
    for name, method in found.items():
        second = "reason" if name == "on_end" else "metrics"
        if inspect.iscoroutinefunction(method):
            raise ValueError(
                f"{key}: {name} is async, but callbacks are plain functions; remove `async`"
            )
        try:
            inspect.signature(method).bind(0, {})
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{key}: {name} is called with (step, {second}), but: {error}"
            ) from None
    return found
