"""The native engine with requests that are interrupted and continued, so that new weights come between two tokens.

The KV cache of a continued request is computed again, with the new weights. Every token's log-prob is then that of the
version which is recorded with it, as a training forward gives it, and an interrupted request is a few lists, which a
checkpoint can hold.
"""

from __future__ import annotations

from ascent.engines.native.engine import NativeEngine
from ascent.engines.native.scheduler import Sequence
from ascent.records import Completion


class InterruptibleEngine(NativeEngine):
    def interrupt(self) -> list[Completion]:
        """End all requests; what each has so far, with stop "abort". `add` goes on from there."""
        running, waiting = self._scheduler.running, self._scheduler.waiting
        for row, sequence in enumerate(running):
            self._outputs.save(row, sequence)
        found = [_partial(each) for each in (*running, *waiting)]
        self._abort_all()
        return found


def _partial(sequence: Sequence) -> Completion:
    request = sequence.request
    return Completion(
        prompt_id=request.prompt_id,
        sample=request.sample,
        tokens=tuple(sequence.output_tokens),
        logprobs=tuple(sequence.logprobs),
        versions=tuple(sequence.versions),
        stop="abort",
        log_mass=tuple(sequence.log_mass) if request.truncates else None,
    )
