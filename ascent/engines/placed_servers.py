"""Servers that a launcher places and replaces while the run goes on; which there are is in the run folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ascent.engines.fleet import FleetServer
from ascent.engines.remote import RemoteError
from ascent.http_client import ServerFailed
from ascent.progress import WaitingNotes
from ascent.runs.sampler_files import SamplerFiles, WantedServers

POLL_SECONDS = 0.5
START_SECONDS = 1800.0  # until the first server answers: a cluster may have to wait for machines


@dataclass
class PlacedFleet:
    """What `ServerFleet` needs of them. `member` checks a server; ServerFailed if it does not answer."""

    files: SamplerFiles
    wanted: Callable[[], WantedServers]
    member: Callable[[str], FleetServer]
    patience: float = START_SECONDS
    _asked: bool = field(default=False, init=False)
    _errors: dict[str, str] = field(
        default_factory=dict, init=False
    )  # of listed servers that do not answer

    def connect(self) -> Sequence[FleetServer]:
        """Ask for servers, and wait for the first."""
        if not self._asked:
            self.files.want(self.wanted())
            self._asked = True
        until, notes = time.monotonic() + self.patience, WaitingNotes()
        while not (found := self.refresh(())):
            notes.waiting(
                lambda since: f"waiting for the first sampler for {since}: {self._reason()}"
            )
            if time.monotonic() > until:
                raise RemoteError(
                    f"no sampler answered in {self.patience:g} s; look at the launcher's messages"
                )
            time.sleep(POLL_SECONDS)
        notes.over("the first sampler answers")
        return found

    def refresh(self, servers: Sequence[FleetServer]) -> Sequence[FleetServer]:
        """The servers of now. One that does not answer yet is tried again next time."""
        placed = self.files.placed()
        if placed.error:
            raise RemoteError(placed.error)
        known = {each.url: each for each in servers}
        self._errors = {url: error for url, error in self._errors.items() if url in placed.urls}
        found = [known.get(url) or self._connect(url) for url in placed.urls]
        return [each for each in found if each is not None]

    def _connect(self, url: str) -> FleetServer | None:
        try:
            found = self.member(url)
        except ServerFailed as failure:
            self._errors[url] = str(failure)
            return None
        self._errors.pop(url, None)
        return found

    def _reason(self) -> str:
        errors = "; ".join(f"{url}: {error}" for url, error in self._errors.items())
        return errors or f"the launcher lists none yet; the run ends after {self.patience:g} s"
