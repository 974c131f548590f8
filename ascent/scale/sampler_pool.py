"""As many samplers as a run should have: dead ones are replaced, and the number may change."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from ascent.runs.sampler_files import PlacedServers
from ascent.scale.processes import Status

MAX_FAILURES = 5  # samplers in a row that never answered
PAUSE_SECONDS = 2.0  # after a failure, times the failures in a row


class PlacedSampler(Protocol):
    """A sampler somewhere. Neither method waits for it."""

    def status(self) -> Status: ...

    def close(self) -> None: ...


@dataclass
class Member:
    number: int
    sampler: PlacedSampler
    answered: bool = False
    status: Status = field(default_factory=Status)


class SamplerPool:
    """`start` places a sampler, by its number; numbers are not used again."""

    def __init__(self, start: Callable[[int], PlacedSampler], say: Callable[[str], None]) -> None:
        self._start, self._say = start, say
        self._members: list[Member] = []
        self._started, self._failures, self._start_at, self._error = 0, 0, 0.0, ""

    def update(self, count: int) -> PlacedServers:
        """Look after the samplers once; returns those that answer."""
        for each in list(self._members):
            each.status = each.sampler.status()
            if each.status.ended is not None:
                self._replace(each)
            elif each.status.url is not None and not each.answered:
                each.answered, self._failures = True, 0
                self._say(f"sampler {each.number} on {each.status.node} answers")
        for each in self._members[count:]:
            self._say(f"sampler {each.number} is ended: {count} are wanted")
            self._remove(each)
        while len(self._members) < count and time.monotonic() >= self._start_at and self._failures < MAX_FAILURES:
            self._started += 1
            self._members.append(Member(self._started, self._start(self._started)))
        urls = tuple(each.status.url for each in self._members if each.status.url is not None)
        return PlacedServers(urls, "" if urls else self._error)

    def _replace(self, member: Member) -> None:
        node = f" on {member.status.node}" if member.status.node else ""
        reason = f"sampler {member.number}{node} failed: {member.status.ended}"
        self._remove(member)
        if not member.answered:
            self._failures += 1
            self._start_at = time.monotonic() + PAUSE_SECONDS * self._failures
        if self._failures == MAX_FAILURES:
            self._error = f"{MAX_FAILURES} samplers in a row did not start; the last: {reason}"
        else:
            self._say(f"{reason}; another is started")

    def _remove(self, member: Member) -> None:
        self._members.remove(member)
        member.sampler.close()

    def close(self) -> None:
        for each in list(self._members):
            self._remove(each)
