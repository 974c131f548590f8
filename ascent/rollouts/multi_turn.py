"""Rollouts of several turns: the policy speaks, its environment replies, until one of them ends it or a limit does.

Nothing is tokenized twice. A turn is the tokens that were read since the last one and the tokens that were sampled; the
next request is all of them, so the engine prefills the whole transcript again. Replies are waited for in threads, and
whoever needs no reply is decoded meanwhile. The noise of a turn is keyed by its number besides (seed, prompt, sample),
so nothing depends on who replied first.
"""

from __future__ import annotations

import queue
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

from ascent.protocols import Env, Sampler
from ascent.records import Completion, Ended, Episode, Message, Prompt, Reply, Request, Rollout, Turn
from ascent.sandbox.timeouts import Box, shown

READ = 128  # tokens to read after a turn, where nobody says how many there may be
Key = tuple[str, int]  # the name and the sample number of a request


@dataclass(frozen=True)
class Limits:
    """Of an episode: `max_turns` of the policy, `max_tokens` sampled or read after the prompt (0: every turn's budget
    and READ more for each), `reply_timeout` seconds for a reply before the environment counts as hung."""

    max_turns: int = 8
    max_tokens: int = 0
    reply_timeout: float = 600.0

    def __post_init__(self) -> None:
        if self.max_turns < 1:
            raise ValueError(f"env.max_turns={self.max_turns}, but an episode has at least 1 turn")
        if self.max_tokens < 0:
            raise ValueError(f"env.max_tokens={self.max_tokens}, but it counts tokens; 0 leaves room for every turn")
        if not self.reply_timeout > 0:
            raise ValueError(f"env.reply_timeout={self.reply_timeout}, but a reply needs some seconds")

    def room(self, max_new_tokens: int) -> int:
        """Tokens that an episode may have after its prompt."""
        return self.max_tokens or self.max_turns * (max_new_tokens + READ)


@dataclass(frozen=True)
class EnvSession:
    """What rollouts talk to: an environment for each, how its words become tokens, and when to stop: `context` is how
    many tokens the model holds, where that is known."""

    make: Callable[[Prompt], Env]
    between: Callable[[Sequence[Message]], tuple[int, ...]]
    harmless: Callable[[str], str]
    limits: Limits
    close: Callable[[], None] = lambda: None
    context: int | None = None

    def room(self, first: Request) -> int:
        """Tokens that an episode may have after the prompt of its first request."""
        most = self.limits.room(first.max_new_tokens)
        return most if self.context is None else min(most, self.context - len(first.tokens))


@dataclass
class EnvEpisode:
    """One episode under way. `request` asks for its first turn; `made_from` is what its environment was made from."""

    place: int
    request: Request
    prompt: Prompt
    made_from: Prompt
    env: Env = field(init=False)
    turns: list[Turn] = field(default_factory=list)
    said: list[Message] = field(default_factory=list)
    heard: str = ""
    unread: tuple[int, ...] = ()
    used: int = 0
    completion: Completion = field(init=False)
    parts: Mapping[str, float | None] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def key(self) -> Key:
        return self.request.prompt_id, self.request.sample

    def rollout(self, ended: Ended, detail: str = "") -> Rollout:
        episode = Episode(ended, self.parts, dict(self.counts), detail)
        return Rollout(self.prompt, self.request.sample, tuple(self.turns), episode=episode)


@runtime_checkable
class Stepwise(Protocol):
    """A sampler that takes requests while it runs."""

    def add(self, request: Request) -> None: ...

    def step(self) -> list[Completion]: ...

    def close(self) -> None: ...


class Rounds:
    """Any other sampler: a round for everybody's turn, then replies for everybody."""

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler
        self._asked: list[Request] = []

    def add(self, request: Request) -> None:
        self._asked.append(request)

    def step(self) -> Iterator[Completion]:
        asked, self._asked = self._asked, []
        yield from self.sampler.sample(asked)

    def close(self) -> None:
        self._asked = []


class Replies:
    """Environments at work, each in a thread. Their time runs from the moment they are asked."""

    def __init__(self, reply_timeout: float) -> None:
        self.reply_timeout = reply_timeout
        self._boxes: dict[Key, tuple[Box, float]] = {}
        self._ready: queue.SimpleQueue[Key] = queue.SimpleQueue()

    def __len__(self) -> int:
        return len(self._boxes)

    def ask(self, key: Key, env: Env, text: str) -> None:
        box = Box(lambda: env.reply(text), name="env", done=lambda: self._ready.put(key))
        self._boxes[key] = box, time.monotonic() + self.reply_timeout

    def come(self, least: int) -> Iterator[tuple[Key, Reply | BaseException]]:
        """Those that are there; waits until at least so many are."""
        found = 0
        while self._boxes:
            try:
                key = self._ready.get(timeout=self._next_deadline() if found < least else 0)
            except queue.Empty:
                late = [key for key, (_, until) in self._boxes.items() if until <= time.monotonic()]
                for key in late:
                    del self._boxes[key]
                    found += 1
                    yield key, TimeoutError(f"the environment did not reply within {self.reply_timeout:g} s")
                if found >= least:
                    return
                continue
            if key not in self._boxes:
                continue  # it came after it was given up
            box, _ = self._boxes.pop(key)
            found += 1
            yield key, box.error or _checked(box.value)

    def _next_deadline(self) -> float:
        return max(min(until for _, until in self._boxes.values()) - time.monotonic(), 0.0)


def _checked(reply: object) -> Reply | BaseException:
    if isinstance(reply, Reply):
        return reply
    return TypeError(f"the environment replied with a {type(reply).__name__}; a reply is an ascent.records.Reply")


def run_episodes(
    sampler: Sampler, begun: Iterable[EnvEpisode], talk: EnvSession, text: Callable[[Sequence[int]], str]
) -> Iterator[tuple[int, Rollout]]:
    """Every episode's place and rollout, as they end."""
    flying: dict[Key, EnvEpisode] = {}  # those for whom a turn is being sampled
    waiting: dict[Key, EnvEpisode] = {}  # those who wait for a reply
    stepwise = isinstance(sampler, Stepwise)
    line: Stepwise | Rounds = sampler if isinstance(sampler, Stepwise) else Rounds(sampler)
    replies = Replies(talk.limits.reply_timeout)
    try:
        for each in begun:
            _open(each, talk)
            flying[each.key] = each
            line.add(each.request)
        while flying or waiting:
            # Nobody to decode, or nobody to be decoded alone: then wait, for the first reply or for all of them.
            for key, reply in replies.come(len(waiting) if not stepwise else int(not flying)):
                each = waiting.pop(key)
                ended = _answered(each, reply, talk)
                if ended is None:
                    request = _next_request(each, talk)
                    flying[request.prompt_id, request.sample] = each
                    line.add(request)
                else:
                    yield each.place, ended
            for completion in line.step() if flying else ():
                each = flying.pop((completion.prompt_id, completion.sample))
                _spoke(each, completion, text)
                waiting[each.key] = each
                replies.ask(each.key, each.env, each.turns[-1].text)
    finally:
        if flying:  # an error, or nobody listens any more
            line.close()


def _open(each: EnvEpisode, talk: EnvSession) -> None:
    each.env = talk.make(each.made_from)
    first = each.env.first()
    if first.messages != each.prompt.messages:
        raise ValueError(
            f"the environment began prompt {each.made_from.id!r} in two ways; first() must depend on the prompt alone"
        )
    each.said = list(first.messages)
    each.unread = each.request.tokens


def _spoke(each: EnvEpisode, completion: Completion, text: Callable[[Sequence[int]], str]) -> None:
    """The policy's turn: kept as sampled."""
    each.completion = completion
    each.turns.append(Turn(each.unread, completion, text(completion.tokens), each.heard, each.said[-1].role))
    each.used += len(completion.tokens)
    each.said.append(Message("assistant", each.turns[-1].text))


def _answered(each: EnvEpisode, reply: Reply | BaseException, talk: EnvSession) -> Rollout | None:
    """The environment's turn; the rollout where it was the last one."""
    if isinstance(reply, BaseException):
        return each.rollout("timeout" if isinstance(reply, TimeoutError) else "raised", shown(reply))
    each.parts = dict(reply.parts) or each.parts
    each.counts.update(reply.counts)
    if each.completion.truncated:
        own = len(each.completion.tokens) == each.request.max_new_tokens
        return each.rollout("cut" if own else "tokens")
    if reply.message is None:
        return each.rollout("over")
    if len(each.turns) == talk.limits.max_turns:
        return each.rollout("turns")
    message = replace(reply.message, content=talk.harmless(reply.message.content))
    each.said.append(message)
    each.heard, each.unread = message.content, talk.between(each.said)
    each.used += len(each.unread)
    if each.used >= talk.room(each.request):
        return each.rollout("tokens")  # with the reply unread
    return None


def _next_request(each: EnvEpisode, talk: EnvSession) -> Request:
    """All tokens so far, in the order in which they were read and sampled; the turn's number keys its noise."""
    first = each.request
    tokens = [token for turn in each.turns for token in (*turn.observed, *turn.completion.tokens)]
    left = talk.room(first) - each.used
    return replace(
        first,
        prompt_id=f"{first.prompt_id}/turn {len(each.turns)}",
        tokens=(*tokens, *each.unread),
        max_new_tokens=min(first.max_new_tokens, left),
        min_new_tokens=min(first.min_new_tokens, left),
    )
