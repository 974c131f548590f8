"""The native engine with what a server needs besides: output while it is sampled, and requests that are given up."""

from __future__ import annotations

from collections.abc import Iterator

from ascent.engines.native.engine import NativeEngine

Key = tuple[str, int]  # prompt id and sample number


class StreamingEngine(NativeEngine):
    @property
    def idle(self) -> bool:
        return self._scheduler.idle

    def is_active(self, key: Key) -> bool:
        return key in self._active

    def partial_outputs(self) -> Iterator[tuple[Key, list[int], list[float]]]:
        """Tokens and log-probs so far of every running request."""
        for row, sequence in enumerate(self._scheduler.running):
            key = sequence.request.prompt_id, sequence.request.sample
            yield key, self._outputs.tokens(row), self._outputs.logprobs(row)

    def abort(self, key: Key) -> None:
        """Give up a request, running or waiting; without effect on the others."""
        if key not in self._active:
            return
        running = [
            (each.request.prompt_id, each.request.sample) for each in self._scheduler.running
        ]
        if key in running and self._runner is not None:
            self._move_rows(self._runner, self._scheduler.finish([running.index(key)]))
        else:
            self._scheduler.drop_waiting(*key)
        self._active.discard(key)
        if self._scheduler.idle and self._runner is not None:
            self._shrink(self._runner)
