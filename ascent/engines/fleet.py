"""A sampler over several servers, each with its own copy of the weights.

New weights are written to a folder once and pushed to every server. A completion counts only if the server had these
weights when it sent it. A request that fails, for whatever reason of the server's, is sampled again by a server that
has them; a server that failed gets the weights again before it gets requests. So no request is lost, and none is
answered twice. Servers may come and go: a new one gets the weights first, and what one that is gone was asked is
sampled again.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from dataclasses import dataclass, field
from pathlib import Path

from ascent.engines.remote import RemoteError, RemoteSampler
from ascent.engines.weight_updates import Pushed, ServedModel, WeightUpdates
from ascent.http_client import RequestGroup, ServerFailed
from ascent.open_files import allowed_sockets
from ascent.progress import WaitingNotes, phase
from ascent.protocols import Weights
from ascent.records import Completion, Request

MAX_FAILURES = 20  # of one request, before it is the request that is at fault
PATIENCE_SECONDS = 300.0  # without any server
PAUSE_SECONDS = 2.0  # before a server that failed is tried again
WAIT_SECONDS = 0.1
NOTE_SECONDS = 1.0  # between two looks at how long new weights take
SHOWN_SERVERS = 3  # in a note
REFRESH_SECONDS = 1.0  # between two looks at which servers there are, where they come and go
BASE = "base"  # beside the folders of versions


@dataclass(eq=False)
class FleetServer:
    """One server; `stamp` is set while it has the current weights. `ensure_running` starts one of ours that died."""

    sampler: RemoteSampler
    updates: WeightUpdates
    model: ServedModel
    ensure_running: Callable[[], None] = lambda: None
    stamp: str | None = None
    in_flight: int = 0
    busy: bool = False  # weights are on their way to it
    retry_at: float = 0.0
    error: str = "it has not been tried yet"
    requests: RequestGroup = field(default_factory=RequestGroup)  # in flight

    @property
    def url(self) -> str:
        return self.sampler.url


@dataclass(frozen=True)
class WeightFolders:
    """`write` writes the policy as it is now, as a Hugging Face folder, whole or not at all. With `write_base`, which
    writes their base once, the folders of versions are adapters."""

    folder: Path
    write: Callable[[Path], object]
    write_base: Callable[[Path], object] | None = None
    started_with: list[Path] = field(
        default_factory=list
    )  # folders that servers may start with at any time: they stay

    @property
    def base(self) -> Path:
        return self.folder / BASE

    def create(self, version: int) -> Path:
        """The folder of a version; those of other versions are deleted."""
        target = self.folder / str(version)
        if target.exists():
            shutil.rmtree(target)
        if self.write_base is not None and not self.base.exists():
            self.write_base(self.base)
        self.write(target)
        for other in self.folder.iterdir():
            if other not in (target, self.base, *self.started_with):
                shutil.rmtree(other, ignore_errors=True)
        return target

    def initial(self, version: int) -> Path:
        """What a server is started with."""
        return self.folder / str(version) if self.write_base is None else self.base

    def keep_initial(self, version: int) -> Path:
        """As `initial`, and it is not deleted with the next version."""
        self.started_with.append(self.initial(version))
        return self.started_with[-1]

    def delete(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


@dataclass(eq=False)
class ServerFleet:
    """Implements `protocols.Sampler`. `connect` gives the servers when they are first needed, `disconnect` ends those
    that were started for it. `refresh`, for servers that come and go, turns those of before into those of now. Without
    `weights` the servers keep the weights they have. `exact`: their log-probs are bit for bit those of the native
    engine in this process."""

    connect: Callable[[], Sequence[FleetServer]]
    weights: WeightFolders | None
    disconnect: Callable[[], None] = lambda: None
    exact: bool = False
    patience: float = PATIENCE_SECONDS
    refresh: Callable[[Sequence[FleetServer]], Sequence[FleetServer]] | None = None
    version: int = 0
    _refreshing: threading.Lock = field(default_factory=threading.Lock)
    _refresh_at: float = 0.0
    _servers: tuple[FleetServer, ...] = ()
    _current: Path | None = None  # the folder of the current weights
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _groups: list[RequestGroup] = field(default_factory=list)
    _without_any: WaitingNotes = field(default_factory=WaitingNotes)
    _without_some: WaitingNotes = field(default_factory=WaitingNotes)

    def sample(self, requests: Iterable[Request]) -> Iterator[Completion]:
        """Yield completions as they finish."""
        all_requests = list(requests)
        self._prepare()
        group = RequestGroup()
        self._groups.append(group)
        at_once = sum(each.sampler.at_once for each in self._servers)
        workers = allowed_sockets(max(min(at_once, len(all_requests)), 1))
        threads = ThreadPoolExecutor(workers, thread_name_prefix="fleet")
        try:
            for done in as_completed(
                [threads.submit(self._complete, each, group) for each in all_requests]
            ):
                yield done.result()
        finally:
            group.cancel()
            threads.shutdown(cancel_futures=True)
            self._groups.remove(group)

    def set_weights(self, version: int, tensors: Weights) -> None:
        """Write and push the policy's weights as they are now; `tensors` are the policy's own, under other names."""
        if self._groups:
            raise RuntimeError(
                "completions are in flight, so their tokens would mix two versions; collect them first"
            )
        if version != self.version or self._current is None:
            self.version, self._current = version, None
            self._prepare()

    def close(self) -> None:
        for group in list(self._groups):
            group.cancel()
        self.disconnect()
        if self.weights is not None:
            self.weights.delete()

    def _prepare(self) -> None:
        """Connect, and push the weights if the servers do not have them; one server that takes them is enough."""
        if self._current is None and self.weights is not None:
            self._current = self.weights.create(self.version)
            for each in self._servers:
                each.stamp, each.retry_at = None, 0.0
        if not self._servers:
            self._servers = tuple(self.connect())
        self._refresh()
        waiting = [each for each in self._servers if each.stamp is None]
        with (
            phase("sending weights", len(waiting), "servers") as sending,
            ThreadPoolExecutor(max(len(waiting), 1), thread_name_prefix="weights") as threads,
        ):
            pushes = [threads.submit(self._update, each) for each in waiting]
            while left := wait(pushes, NOTE_SECONDS).not_done:
                sending.done = len(pushes) - len(left)
                self._note_missing()
            for push in pushes:
                push.result()

    def _refresh(self) -> None:
        """See which servers there are. One thread does, while others go on."""
        if (
            self.refresh is None
            or time.monotonic() < self._refresh_at
            or not self._refreshing.acquire(blocking=False)
        ):
            return
        try:
            before = self._servers
            found = tuple(self.refresh(before))
            with self._changed:
                self._servers = found
                self._changed.notify_all()
            for each in before:
                if each not in found:
                    each.requests.cancel()  # a machine that is gone never answers, and never says so
        finally:
            self._refresh_at = time.monotonic() + REFRESH_SECONDS
            self._refreshing.release()

    def _complete(self, request: Request, group: RequestGroup) -> Completion:
        owner = f"request {request.prompt_id!r}/{request.sample}"
        failures: list[Exception] = []
        while len(failures) < MAX_FAILURES:
            server = self._acquire(owner, group)
            stamp, exchange = server.stamp, RequestGroup(parents=(group, server.requests))
            try:
                server.sampler.prepare([request], exchange)
                server.sampler.version = self.version
                completion, choice = server.sampler.complete(request, exchange)
                found = server.updates.stamp(choice)
                if found == stamp:
                    return completion
                failure: Exception = ValueError(
                    f"{owner}: {server.url} has other weights than it was given"
                )
            except (RemoteError, ServerFailed, ValueError) as error:
                refused = getattr(error, "kind", "") == "server_refused"
                if group.cancelled.is_set() or (refused and _has_weights(server, stamp)):
                    raise
                failure = error
            finally:
                self._release(server)
            failures.append(failure)
            self._mark_failed(server, stamp, failure)
        raise RemoteError(f"{owner}: it failed {len(failures)} times, at last {failures[-1]}")

    def _acquire(self, owner: str, group: RequestGroup) -> FleetServer:
        """A server with the current weights; whoever finds one that may be tried again gives it the weights."""
        until = time.monotonic() + self.patience
        while True:
            retry = None
            self._refresh()
            with self._changed:
                if group.cancelled.is_set():
                    raise RemoteError(f"{owner}: cancelled")
                ready = [each for each in self._servers if each.stamp is not None]
                self._note_missing()
                now = time.monotonic()
                for each in self._servers:
                    if each.stamp is None and not each.busy and each.retry_at <= now:
                        retry, each.busy = each, True
                        break
                free = [each for each in ready if each.in_flight < each.sampler.at_once]
                if retry is None and free:
                    server = min(free, key=lambda each: each.in_flight)
                    server.in_flight += 1
                    return server
                if ready:
                    until = now + self.patience
                elif now > until:
                    errors = "; ".join(f"{each.url}: {each.error}" for each in self._servers)
                    raise RemoteError(f"{owner}: no server for {self.patience:g} s ({errors})")
                if retry is None:
                    self._changed.wait(WAIT_SECONDS)
            if retry is not None:
                self._update(retry)

    def _note_missing(self) -> None:
        """Say which servers are waited for, and why."""
        missing = [each for each in self._servers if each.stamp is None]
        names = ", ".join(each.url for each in self._servers[:SHOWN_SERVERS])
        if len(missing) == len(self._servers):
            self._without_some.over()
            self._without_any.waiting(
                lambda since: (
                    f"no server to sample with for {since}: {_reasons(missing)}; the step waits, and the run "
                    f"ends after {self.patience:g} s without any"
                )
            )
            return
        self._without_any.over(f"sampling goes on with {names}")
        if missing:
            count = len(self._servers) - len(missing)
            self._without_some.waiting(
                lambda since: (
                    f"{len(missing)} of {len(self._servers)} servers missing for {since}: "
                    f"{_reasons(missing)}; {count} sample{'s' * (count == 1)} on"
                )
            )
        else:
            self._without_some.over(f"all {len(self._servers)} servers sample again")

    def _release(self, server: FleetServer) -> None:
        with self._changed:
            server.in_flight -= 1
            self._changed.notify_all()

    def _mark_failed(self, server: FleetServer, stamp: str | None, failure: Exception) -> None:
        with self._changed:
            if server.stamp == stamp:  # not since updated by another thread
                server.stamp, server.error = None, str(failure)
                server.retry_at = time.monotonic() + PAUSE_SECONDS

    def _update(self, server: FleetServer) -> None:
        """Push the current weights to one server."""
        pushed, error = None, ""
        try:
            server.ensure_running()
            if self._current is None:
                pushed = Pushed(server.updates.stamp(), server.sampler.model)
            elif not self._current.exists():
                raise RemoteError(
                    f"{self._current} was deleted while it was needed; leave it alone, and resume the run"
                )
            else:
                pushed = server.updates.push(self.version, self._current)
        except ServerFailed as failure:
            if failure.kind == "server_refused":  # such as other shapes: it would refuse them again
                raise RemoteError(f"{server.url} refuses the weights: {failure}") from None
            error = str(failure)
        finally:
            with self._changed:
                server.stamp, server.busy = None if pushed is None else pushed.stamp, False
                server.sampler.model = server.sampler.model if pushed is None else pushed.model
                server.error, server.retry_at = error, time.monotonic() + PAUSE_SECONDS
                self._changed.notify_all()


def _reasons(servers: Sequence[FleetServer]) -> str:
    """Why servers are missing, the first of them by name."""
    shown = [
        f"{each.url}: {each.error or 'it is being sent the weights'}"
        for each in servers[:SHOWN_SERVERS]
    ]
    more = [f"{len(servers) - SHOWN_SERVERS} more"] * (len(servers) > SHOWN_SERVERS)
    return "; ".join([*shown, *more]) or "none is listed yet, as the launcher's messages say"


def _has_weights(server: FleetServer, stamp: str | None) -> bool:
    """Whether it was the request that it refused: a server that was restarted may not know the weights' name."""
    try:
        return server.updates.stamp() == stamp
    except ServerFailed:
        return False
