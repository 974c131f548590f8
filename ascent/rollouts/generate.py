"""Prompts -> rollouts of the current policy, with one turn or with an environment."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from ascent.parallel.ranks import SINGLE, Ranks
from ascent.progress import phase
from ascent.protocols import Sampler
from ascent.records import Prompt, Request, Rollout, Turn
from ascent.rollouts.multi_turn import EnvEpisode, EnvSession, run_episodes

GREEDY = -1  # the sample number of a greedy completion

Decode = Callable[[Sequence[int]], str]
IndexedRollouts = Iterator[tuple[int, Rollout]]


@dataclass(frozen=True)
class RenderedPrompt:
    """A prompt and its tokens. `env_prompt` is the prompt its environment was made from, if another one.

    `optimal_value` is the estimated optimal value of the prompt.
    """

    prompt: Prompt
    tokens: tuple[int, ...]
    env_prompt: Prompt | None = None
    optimal_value: float | None = None


@dataclass(frozen=True)
class SamplingParams:
    """How completions are sampled. `max_new_tokens` limits a turn; `env` is what multi-turn rollouts interact with."""

    max_new_tokens: int
    seed: int
    temperature: float = 1.0
    top_p: float = 1.0
    env: EnvSession | None = None


class RolloutStream:
    """Rollouts that are still being sampled. It can be iterated once, in order or as they complete."""

    def __init__(self, completed: IndexedRollouts, count: int) -> None:
        self._completed, self._count = completed, count
        self.sampled_at: float | None = (
            None  # when sampling ended, on the clock of time.perf_counter
        )

    def __len__(self) -> int:
        return self._count

    def as_completed(self) -> IndexedRollouts:
        """Each rollout with its index."""
        with phase("sampling", self._count, "rollouts") as sampling:
            for index, rollout in self._completed:
                sampling.done += 1
                yield index, rollout
        self.sampled_at = time.perf_counter()
        if sampling.done != self._count:
            raise RuntimeError(
                f"the sampler lost {self._count - sampling.done} of {self._count} requests"
            )

    def __iter__(self) -> Iterator[Rollout]:
        early: dict[int, Rollout] = {}
        following = 0
        for index, rollout in self.as_completed():
            early[index] = rollout
            while following in early:
                yield early.pop(following)
                following += 1


def stream_of(rollouts: Sequence[Rollout]) -> RolloutStream:
    """A stream of finished rollouts."""
    return RolloutStream(iter(enumerate(rollouts)), len(rollouts))


def generate(
    sampler: Sampler,
    prompts: Sequence[RenderedPrompt],
    samples: Sequence[int],
    params: SamplingParams,
    *,
    noise_key: str,
    decode: Decode,
) -> list[Rollout]:
    """`generate_stream`, finished."""
    return list(
        generate_stream(sampler, prompts, samples, params, noise_key=noise_key, decode=decode)
    )


def generate_stream(
    sampler: Sampler,
    prompts: Sequence[RenderedPrompt],
    samples: Sequence[int],
    params: SamplingParams,
    *,
    noise_key: str,
    decode: Decode,
    ranks: Ranks = SINGLE,
) -> RolloutStream:
    """One rollout for every prompt and sample number; the number GREEDY samples greedily.

    `noise_key` names the step or the evaluation, so that a prompt gets other noise each time. Of several ranks each
    samples its part of the prompts, with the noise that one process would use.
    """
    episodes: list[EnvEpisode] = []
    for index, each in ranks.part(list(enumerate(prompts))):
        # The index keeps two occurrences of one prompt in a step apart: they are two groups.
        name = f"{noise_key}/{index}/{each.prompt.id}"
        prompt = named_prompt(each, name)
        for sample in samples:
            request = request_for(each, name, sample, params)
            episodes.append(
                EnvEpisode(len(episodes), request, prompt, each.env_prompt or each.prompt)
            )
    run = (
        _run_single_turn(sampler, episodes, decode)
        if params.env is None
        else run_episodes(sampler, episodes, params.env, decode)
    )
    return RolloutStream(run, len(episodes))


def named_prompt(each: RenderedPrompt, name: str) -> Prompt:
    """The prompt of a group of this name."""
    return replace(each.prompt, id=name)


def request_for(each: RenderedPrompt, name: str, sample: int, params: SamplingParams) -> Request:
    return Request(
        name,
        sample,
        each.tokens,
        params.max_new_tokens,
        params.seed,
        params.temperature,
        params.top_p,
        greedy=sample == GREEDY,
    )


def _run_single_turn(
    sampler: Sampler, episodes: Sequence[EnvEpisode], decode: Decode
) -> IndexedRollouts:
    by_key = {each.key: each for each in episodes}
    for completion in sampler.sample([each.request for each in episodes]):
        each = by_key[completion.prompt_id, completion.sample]
        turn = Turn(each.request.tokens, completion, decode(completion.tokens))
        yield each.index, Rollout(each.prompt, completion.sample, (turn,))
