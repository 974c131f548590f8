"""Multi-turn rollouts: policy and environment alternate until one of them or a limit ends the episode.

Nothing is tokenized twice. A turn is the tokens read since the last turn and the tokens sampled; the next request is
all of them, so the engine prefills the whole transcript again. Environments reply in threads while other episodes are
decoded. The noise of a turn is keyed by (seed, prompt, sample, turn), so the order of replies does not matter.
"""

from __future__ import annotations

import queue
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

from ascent.protocols import Env, Sampler
from ascent.records import (
    Completion,
    Ended,
    Episode,
    Message,
    Prompt,
    Reply,
    Request,
    Rollout,
    Turn,
)
from ascent.sandbox.timeouts import BackgroundCall, error_summary

REPLY_TOKENS = 128  # allowed per reply where env.max_tokens is 0
Key = tuple[str, int]  # prompt id and sample number of a request


@dataclass(frozen=True)
class Limits:
    """Limits of an episode: turns of the policy, tokens after the prompt, seconds to wait for a reply.

    `max_tokens` of 0 allows every turn its own limit and REPLY_TOKENS more.
    """

    max_turns: int = 8
    max_tokens: int = 0
    reply_timeout: float = 600.0

    def __post_init__(self) -> None:
        if self.max_turns < 1:
            raise ValueError(f"env.max_turns={self.max_turns}, but an episode has at least 1 turn")
        if self.max_tokens < 0:
            raise ValueError(
                f"env.max_tokens={self.max_tokens}, but it counts tokens; 0 leaves room for every turn"
            )
        if not self.reply_timeout > 0:
            raise ValueError(
                f"env.reply_timeout={self.reply_timeout}, but a reply needs some seconds"
            )

    def room(self, max_new_tokens: int) -> int:
        """Tokens that an episode may have after its prompt."""
        return self.max_tokens or self.max_turns * (max_new_tokens + REPLY_TOKENS)


@dataclass(frozen=True)
class EnvSession:
    """Environments of multi-turn rollouts: how to make one, how to tokenize a reply, and the limits.

    `escape` removes control tokens from a reply. `context` is the model's context length, where it is known.
    """

    make: Callable[[Prompt], Env]
    between_turns: Callable[[Sequence[Message]], tuple[int, ...]]
    escape: Callable[[str], str]
    limits: Limits
    close: Callable[[], None] = lambda: None
    context: int | None = None

    def room(self, first: Request) -> int:
        """Tokens that an episode may have after the prompt of its first request."""
        room = self.limits.room(first.max_new_tokens)
        return room if self.context is None else min(room, self.context - len(first.tokens))


@dataclass
class EnvEpisode:
    """A running episode. `request` is that of its first turn; `env_prompt` is what its environment is made from."""

    index: int
    request: Request
    prompt: Prompt
    env_prompt: Prompt
    env: Env = field(init=False)
    turns: list[Turn] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    reply: str = ""
    unread_tokens: tuple[int, ...] = ()
    used_tokens: int = 0
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
class ContinuousSampler(Protocol):
    """A sampler that accepts requests while it runs (continuous batching)."""

    def add(self, request: Request) -> None: ...

    def step(self) -> list[Completion]: ...

    def close(self) -> None: ...


class RoundSampler:
    """Any other sampler: one turn of every episode, then every reply."""

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler
        self._requests: list[Request] = []

    def add(self, request: Request) -> None:
        self._requests.append(request)

    def step(self) -> Iterator[Completion]:
        requests, self._requests = self._requests, []
        yield from self.sampler.sample(requests)

    def close(self) -> None:
        self._requests = []


class PendingReplies:
    """Environments that are computing a reply, each in a thread, with a timeout."""

    def __init__(self, reply_timeout: float) -> None:
        self.reply_timeout = reply_timeout
        self._boxes: dict[Key, tuple[BackgroundCall, float]] = {}
        self._ready: queue.SimpleQueue[Key] = queue.SimpleQueue()

    def __len__(self) -> int:
        return len(self._boxes)

    def start(self, key: Key, env: Env, text: str) -> None:
        box = BackgroundCall(lambda: env.reply(text), name="env", done=lambda: self._ready.put(key))
        self._boxes[key] = box, time.monotonic() + self.reply_timeout

    def wait(self, at_least: int) -> Iterator[tuple[Key, Reply | BaseException]]:
        """Replies that are ready; waits for `at_least` of them."""
        found = 0
        while self._boxes:
            try:
                key = self._ready.get(timeout=self._next_deadline() if found < at_least else 0)
            except queue.Empty:
                for key in [
                    key for key, (_, until) in self._boxes.items() if until <= time.monotonic()
                ]:
                    del self._boxes[key]
                    found += 1
                    yield (
                        key,
                        TimeoutError(
                            f"the environment did not reply within {self.reply_timeout:g} s"
                        ),
                    )
                if found >= at_least:
                    return
                continue
            if key not in self._boxes:
                continue  # it came after its timeout
            box, _ = self._boxes.pop(key)
            found += 1
            yield key, box.error or _checked(box.value)

    def _next_deadline(self) -> float:
        return max(min(until for _, until in self._boxes.values()) - time.monotonic(), 0.0)


def _checked(reply: object) -> Reply | BaseException:
    if isinstance(reply, Reply):
        return reply
    return TypeError(
        f"the environment replied with a {type(reply).__name__}; a reply is an ascent.records.Reply"
    )


def run_episodes(
    sampler: Sampler,
    episodes: Iterable[EnvEpisode],
    session: EnvSession,
    decode: Callable[[Sequence[int]], str],
) -> Iterator[tuple[int, Rollout]]:
    """Every episode's index and rollout, as they end."""
    sampling: dict[Key, EnvEpisode] = {}
    waiting: dict[Key, EnvEpisode] = {}  # for a reply
    continuous = isinstance(sampler, ContinuousSampler)
    engine: ContinuousSampler | RoundSampler = (
        sampler if isinstance(sampler, ContinuousSampler) else RoundSampler(sampler)
    )
    replies = PendingReplies(session.limits.reply_timeout)
    try:
        for each in episodes:
            _open(each, session)
            sampling[each.key] = each
            engine.add(each.request)
        while sampling or waiting:
            # A round needs every reply. Continuous batching waits for one reply, and only if nothing can be decoded.
            for key, reply in replies.wait(int(not sampling) if continuous else len(waiting)):
                each = waiting.pop(key)
                ended = _add_reply(each, reply, session)
                if ended is None:
                    request = _next_request(each, session)
                    sampling[request.prompt_id, request.sample] = each
                    engine.add(request)
                else:
                    yield each.index, ended
            for completion in engine.step() if sampling else ():
                each = sampling.pop((completion.prompt_id, completion.sample))
                _add_turn(each, completion, decode)
                waiting[each.key] = each
                replies.start(each.key, each.env, each.turns[-1].text)
    finally:
        if sampling:  # an error, or the consumer stopped
            engine.close()


def _open(each: EnvEpisode, session: EnvSession) -> None:
    each.env = session.make(each.env_prompt)
    first = each.env.first()
    if first.messages != each.prompt.messages:
        raise ValueError(
            f"the environment began prompt {each.env_prompt.id!r} in two ways; first() must depend on the prompt alone"
        )
    each.messages = list(first.messages)
    each.unread_tokens = each.request.tokens


def _add_turn(
    each: EnvEpisode, completion: Completion, decode: Callable[[Sequence[int]], str]
) -> None:
    """Add the policy's turn, with its tokens as sampled."""
    each.completion = completion
    text = decode(completion.tokens)
    each.turns.append(
        Turn(each.unread_tokens, completion, text, each.reply, each.messages[-1].role)
    )
    each.used_tokens += len(completion.tokens)
    each.messages.append(Message("assistant", text))


def _add_reply(
    each: EnvEpisode, reply: Reply | BaseException, session: EnvSession
) -> Rollout | None:
    """Add the environment's turn; returns the rollout if it was the last one."""
    if isinstance(reply, BaseException):
        return each.rollout(
            "timeout" if isinstance(reply, TimeoutError) else "raised", error_summary(reply)
        )
    each.parts = dict(reply.parts) or each.parts
    each.counts.update(reply.counts)
    if each.completion.truncated:
        own = len(each.completion.tokens) == each.request.max_new_tokens
        return each.rollout("cut" if own else "tokens")
    if reply.message is None:
        return each.rollout("over")
    if len(each.turns) == session.limits.max_turns:
        return each.rollout("turns")
    message = replace(reply.message, content=session.escape(reply.message.content))
    each.messages.append(message)
    each.reply, each.unread_tokens = message.content, session.between_turns(each.messages)
    each.used_tokens += len(each.unread_tokens)
    if each.used_tokens >= session.room(each.request):
        return each.rollout("tokens")  # without room to answer the reply
    return None


def _next_request(each: EnvEpisode, session: EnvSession) -> Request:
    """All tokens so far, in the order in which they were read and sampled."""
    first = each.request
    tokens = [token for turn in each.turns for token in (*turn.observed, *turn.completion.tokens)]
    left = session.room(first) - each.used_tokens
    return replace(
        first,
        prompt_id=f"{first.prompt_id}/turn {len(each.turns)}",
        tokens=(*tokens, *each.unread_tokens),
        max_new_tokens=min(first.max_new_tokens, left),
        min_new_tokens=min(first.min_new_tokens, left),
    )
