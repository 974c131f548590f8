"""The native engine in a thread of its own, shared by many clients.

Clients submit jobs and read their outputs from any thread. New weights wait until the running requests are finished,
and later requests wait for the weights, so every completion is sampled by one version.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from ascent.engines.native.streaming import Key, StreamingEngine
from ascent.records import Completion, Request

T = TypeVar("T")
POLL_SECONDS = 0.5  # between two looks at whether the client is still there
STREAMED_STEPS = 4  # decode steps until requests may come and go: tokens of a stream's event


@dataclass(frozen=True)
class Output:
    """The tokens so far of request `index` of a job; `completion` is set with the last ones."""

    index: int
    tokens: Sequence[int]
    logprobs: Sequence[float]
    completion: Completion | None = None


class ClientGone(ConnectionError):
    """The client closed the connection before its job was done."""


class Job:
    """Requests of one client. With `partial`, outputs come while they are sampled."""

    def __init__(self, requests: Sequence[Request], *, partial: bool = False) -> None:
        self.requests, self.partial, self.cancelled = tuple(requests), partial, False
        self.outputs: queue.SimpleQueue[Output | Exception] = queue.SimpleQueue()


class EngineThread:
    """Owns the engine: nobody else may call it, nor run its model, between `start` and `close`."""

    def __init__(self, engine: StreamingEngine) -> None:
        self.engine = engine
        self._steps = engine.steps_per_sync
        self._changed = threading.Condition()
        self._commands: list[Callable[[], None]] = []
        self._stopping = False
        self._running: dict[Key, tuple[Job, int]] = {}
        self._held: list[
            tuple[Job, int]
        ] = []  # for new weights, or for a running request of the same key
        self._swaps: list[Callable[[], None]] = []
        self._thread = threading.Thread(target=self._loop, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join()
        self._fail_all(RuntimeError("the server is closing"))
        self.engine.close()

    def results(self, job: Job, is_gone: Callable[[], bool] = lambda: False) -> Iterator[Output]:
        """Submit a job; its outputs as they come. It is cancelled if the reader stops early or the client is gone."""
        self._do(lambda: self._submit(job))
        missing = len(job.requests)
        try:
            while missing:
                try:
                    output = job.outputs.get(timeout=POLL_SECONDS)
                except queue.Empty:
                    if is_gone():
                        raise ClientGone("the client has closed the connection") from None
                    continue
                if isinstance(output, Exception):
                    raise RuntimeError("the engine failed") from output
                missing -= output.completion is not None
                yield output
        finally:
            if missing and not self._stopping:
                self._do(lambda: self._cancel(job))

    def call(self, function: Callable[[], T]) -> T:
        """Run a function on the engine's thread, between two steps."""
        future: Future[T] = Future()
        self._do(lambda: _resolve(future, function))
        return future.result()

    def set_weights(self, version: int, write: Callable[[], None]) -> None:
        """Wait for the running requests, let `write` change the weights or the engine, and sample on as `version`."""
        future: Future[None] = Future()

        def swap() -> None:
            write()
            self.engine.set_weights(version, {})

        self._do(lambda: self._swaps.append(lambda: _resolve(future, swap)))
        future.result()

    def _do(self, command: Callable[[], None]) -> None:
        with self._changed:
            if self._stopping:
                raise RuntimeError("the server is closing")
            self._commands.append(command)
            self._changed.notify()

    def _submit(self, job: Job) -> None:
        self._held += [(job, index) for index in range(len(job.requests))]

    def _cancel(self, job: Job) -> None:
        job.cancelled = True
        for key in [key for key, (owner, _) in self._running.items() if owner is job]:
            self.engine.abort(key)
            del self._running[key]

    def _loop(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or self._commands or self._has_work())
                commands, self._commands = self._commands, []
                if self._stopping:
                    break
            try:
                for command in commands:
                    command()
                self._admit()
                if not self.engine.idle:
                    self._step()
            except (
                Exception
            ) as error:  # a bug, or no memory: these requests fail, later ones may succeed
                logging.getLogger(__name__).exception("the engine failed")
                self._fail_all(error)
                self.engine.close()
        for command in [*commands, *self._swaps]:  # somebody waits for each
            command()

    def _has_work(self) -> bool:
        return bool(self._held or self._swaps) or not self.engine.idle

    def _admit(self) -> None:
        if self._swaps and self.engine.idle:
            for swap in self._swaps:
                swap()
            self._swaps = []
        if self._swaps:
            return
        held, self._held = self._held, []
        for job, index in held:
            request = job.requests[index]
            key = request.prompt_id, request.sample
            if job.cancelled:
                continue
            if self.engine.is_active(key):
                self._held.append((job, index))
                continue
            try:
                self.engine.add(request)
            except Exception as error:  # other weights have come since it was checked, or there is no memory for it
                self._cancel(job)
                job.outputs.put(error)
            else:
                self._running[key] = job, index

    def _step(self) -> None:
        # A GPU waits for the host at every sync, so there it is only for streams that they are frequent.
        streamed = self.engine.model.device.type != "cuda" or any(
            job.partial for job, _ in self._running.values()
        )
        self.engine.steps_per_sync = min(STREAMED_STEPS, self._steps) if streamed else self._steps
        for each in self.engine.step():
            job, index = self._running.pop((each.prompt_id, each.sample))
            job.outputs.put(Output(index, each.tokens, each.logprobs, each))
        if any(job.partial for job, _ in self._running.values()):
            for key, tokens, logprobs in self.engine.partial_outputs():
                job, index = self._running[key]
                if job.partial:
                    job.outputs.put(Output(index, tokens, logprobs))

    def _fail_all(self, error: Exception) -> None:
        jobs = {id(job): job for job, _ in [*self._running.values(), *self._held]}
        self._running, self._held = {}, []
        for job in jobs.values():
            job.cancelled = True
            job.outputs.put(error)


def _resolve(future: Future[T], function: Callable[[], T]) -> None:
    try:
        future.set_result(function())
    except Exception as error:
        future.set_exception(error)
