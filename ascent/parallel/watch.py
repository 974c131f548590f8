"""No rank waits for one that is gone: a thread in every rank watches the others through the group's key-value store.

Every second a rank writes a sign of life, with what it waits for. Rank r looks at the sign of rank r + 1 only, so the
traffic does not grow with the square of the ranks. The first failure is written down, with the rank that it happened
on; every rank that reads it ends. A run folder survives a kill at any instant, so ranks simply exit.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist

from ascent.progress import current

PERIOD, LOST_AFTER, GRACE = (
    1.0,
    15.0,
    3.0,
)  # seconds: between two signs, until a rank is lost, to end by oneself
LEAVE = (
    5.0  # seconds that rank 0, which may hold the store, waits for the others to read why all end
)
FAILURE = "failure"
EXIT_STATUS = 1


class RankFailed(RuntimeError):
    """Another rank failed, or is gone."""


class Watch:
    """`on_failure` is called with the message before a rank exits because of another one. `run` counts the runs of
    these processes."""

    def __init__(
        self, rank: int, count: int, host: str, port: int, *, timeout: float, run: int = 0
    ) -> None:
        self._rank, self._count, self._timeout = rank, count, timeout
        self.on_failure: Callable[[str], None] = lambda message: None
        self._launcher = os.getppid()
        store = dist.TCPStore(host, port, is_master=False, timeout=timedelta(seconds=LOST_AFTER))
        self._store = dist.PrefixStore(f"ascent/{run}", store)
        self._waits = 0  # how often this rank has waited for others
        self._for: str | None = None
        self._since = time.monotonic()
        self._signs: tuple[str, float] = (
            "",
            time.monotonic(),
        )  # the neighbor's last sign, and when it changed
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="watch of the ranks")
        self._thread.start()

    @contextmanager
    def noting(self, what: str) -> Iterator[None]:
        """Inside, this rank may wait for the others at `what`."""
        self._waits += 1
        self._since, self._for = time.monotonic(), what
        try:
            yield
        finally:
            self._for = None

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Inside, this rank does nothing but wait for the others: an error is that one of them is gone."""
        with self.noting(what):
            try:
                yield
            except RuntimeError as error:
                raise RankFailed(self.find_lost() or f"rank {self._rank}: {error}") from error

    def report(self, message: str) -> str:
        """Note why this rank fails; returns the first failure of all ranks, which may be another's."""
        try:
            found = self._store.compare_set(FAILURE, "", self._named(self._rank, message))
            return found.decode()
        except RuntimeError:  # the store is gone with rank 0
            return self._named(0, "is gone")

    def find_lost(self) -> str:
        """Whose failure made an exchange between ranks fail; a rank that was killed is known after a while."""
        deadline = time.monotonic() + LOST_AFTER + 2 * GRACE
        while time.monotonic() < deadline:
            try:
                if found := self._failure():
                    return found
            except RuntimeError:
                return self._named(0, "is gone")
            time.sleep(PERIOD / 2)
        return ""

    def leave(self) -> None:
        """Note that this rank is about to exit. Rank 0 waits for all others first: they read here why they end."""
        deadline = time.monotonic() + LEAVE
        try:
            self._store.set(f"left/{self._rank}", "")
            keys = [f"left/{rank}" for rank in range(self._count)]
            while self._rank == 0 and not self._store.check(keys) and time.monotonic() < deadline:
                time.sleep(PERIOD / 10)
        except RuntimeError:  # the store is gone
            return

    def close(self) -> None:
        self._closed.set()
        self._thread.join(2 * PERIOD)

    def _run(self) -> None:
        beats = 0
        try:
            while not self._closed.wait(PERIOD):
                beats += 1
                doing = current()
                sign = {
                    "beat": beats,
                    "waits": self._waits,
                    "for": self._for,
                    "doing": doing[0] if doing else "",
                }
                self._store.set(f"sign/{self._rank}", json.dumps(sign))
                failure = self._failure() or self._look()
                if os.getppid() != self._launcher and not failure:
                    failure = self._set(self._named(self._rank, "lost the process that started it"))
                if failure:
                    self._end(failure)
        except RuntimeError:  # the store is gone
            if not self._closed.is_set():
                self._end(self._named(0, "is gone"))

    def _look(self) -> str:
        """The failure that this rank sees: its neighbor is gone, or somebody does not arrive."""
        neighbor, now = (self._rank + 1) % self._count, time.monotonic()
        sign = self._sign(neighbor)
        if sign != self._signs[0]:
            self._signs = sign, now
        elif now - self._signs[1] > LOST_AFTER:
            return self._set(
                self._named(neighbor, f"is gone: no sign of life for {LOST_AFTER:.0f} s")
            )
        what = self._for
        if what is not None and now - self._since > self._timeout:
            missing = [line for rank in range(self._count) if (line := self._behind(rank))]
            who = (
                "; ".join(missing)
                or "all ranks arrived, but the exchange does not end: check the network"
            )
            return self._set(
                f"{self._timeout:.0f} s at {what}: {who}; ASCENT_RANK_TIMEOUT sets this limit"
            )
        return ""

    def _behind(self, rank: int) -> str:
        sign = json.loads(self._sign(rank) or "{}")
        if rank == self._rank or sign.get("waits", 0) >= self._waits:
            return ""
        return f"rank {rank} is missing (it is {sign.get('doing') or 'busy'})"

    def _sign(self, rank: int) -> str:
        key = f"sign/{rank}"
        return self._store.get(key).decode() if self._store.check([key]) else ""

    def _failure(self) -> str:
        return self._store.get(FAILURE).decode() if self._store.check([FAILURE]) else ""

    def _set(self, message: str) -> str:
        return self._store.compare_set(FAILURE, "", message).decode()

    def _named(self, rank: int, message: str) -> str:
        return (
            f"rank {rank} {message}" if message.startswith("is gone") else f"rank {rank}: {message}"
        )

    def _end(self, failure: str) -> None:
        """Exit, unless the main thread ends by itself: it may have failed for the same reason. One that waits for the
        others does not, apart from rank 0, which says why."""
        if (self._rank == 0 or self._for is None) and self._closed.wait(GRACE):
            return
        self.on_failure(failure)
        speaks = self._rank == (1 if failure.startswith("rank 0 is gone") else 0)
        if speaks:
            print(f"\nascent: {failure}; all ranks stop", file=sys.stderr, flush=True)
        self.leave()
        os._exit(EXIT_STATUS)
