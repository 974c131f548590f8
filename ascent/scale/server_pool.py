"""As many servers of one kind as a run should have: dead ones are replaced, and the number may change."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from ascent.progress import WaitingNotes
from ascent.runs.sampler_files import PlacedServers
from ascent.scale.processes import Status

MAX_FAILURES = 5  # servers in a row that never answered
PAUSE_SECONDS = 2.0  # after a failure, times the failures in a row


class PlacedServer(Protocol):
    """A server somewhere. Neither method waits for it."""

    def status(self) -> Status: ...

    def close(self) -> None: ...


@dataclass
class Member:
    number: int
    server: PlacedServer
    answered: bool = False
    status: Status = field(default_factory=Status)


class ServerPool:
    """`start` places a server, by its number; numbers are not used again. `kind` is what one is called, `room` says
    what one asks for, what there is, and what to do if that is too little."""

    def __init__(
        self,
        kind: str,
        start: Callable[[int], PlacedServer],
        say: Callable[[str], None],
        room: Callable[[], str],
    ) -> None:
        self._kind, self._start, self._say, self._room = kind, start, say, room
        self._notes = WaitingNotes(say)
        self._members: list[Member] = []
        self._started, self._failures, self._start_at, self._error = 0, 0, 0.0, ""

    def update(self, count: int) -> PlacedServers:
        """Look after the servers once; returns those that answer."""
        for each in list(self._members):
            each.status = each.server.status()
            if each.status.ended is not None:
                self._replace(each)
            elif each.status.url is not None and not each.answered:
                each.answered, self._failures = True, 0
                self._say(f"{self._kind} {each.number} on {each.status.node} answers")
        for each in self._members[count:]:
            self._say(f"{self._kind} {each.number} is ended: {count} are wanted")
            self._remove(each)
        while (
            len(self._members) < count
            and time.monotonic() >= self._start_at
            and self._failures < MAX_FAILURES
        ):
            self._started += 1
            self._members.append(Member(self._started, self._start(self._started)))
        self._note_unplaced()
        urls = tuple(each.status.url for each in self._members if each.status.url is not None)
        return PlacedServers(urls, "" if urls else self._error)

    def _note_unplaced(self) -> None:
        """Say which servers have no node yet, and why that may be."""
        unplaced = ", ".join(str(each.number) for each in self._members if not each.status.node)
        if unplaced:
            self._notes.waiting(
                lambda since: f"no room for {self._kind} {unplaced} for {since}; {self._room()}"
            )
        else:
            self._notes.over(f"every {self._kind} has a node")

    def _replace(self, member: Member) -> None:
        node = f" on {member.status.node}" if member.status.node else ""
        reason = f"{self._kind} {member.number}{node} failed: {member.status.ended}"
        self._remove(member)
        if not member.answered:
            self._failures += 1
            self._start_at = time.monotonic() + PAUSE_SECONDS * self._failures
        if self._failures == MAX_FAILURES:
            self._error = f"{MAX_FAILURES} {self._kind}s in a row did not start; the last: {reason}"
        else:
            self._say(f"{reason}; another is started")

    def _remove(self, member: Member) -> None:
        self._members.remove(member)
        member.server.close()

    def close(self) -> None:
        for each in list(self._members):
            self._remove(each)
