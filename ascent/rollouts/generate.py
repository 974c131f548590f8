"""Prompts -> rollouts of the current policy, in one turn or in several, as they come or in the order of the prompts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ascent.protocols import Sampler
from ascent.records import Prompt, Request, Rollout, Turn
from ascent.rollouts.multi_turn import EnvEpisode, EnvSession, run_episodes

GREEDY = -1  # the sample number of a greedy baseline

Placed = Iterator[tuple[int, Rollout]]


@dataclass(frozen=True)
class RenderedPrompt:
    """A prompt and the tokens in which the policy reads it; `made_from` is the prompt that its environment got.

    `optimum` is the optimal value of the prompt, where it was estimated.
    """

    prompt: Prompt
    tokens: tuple[int, ...]
    made_from: Prompt | None = None
    optimum: float | None = None


@dataclass(frozen=True)
class SamplingParams:
    """How completions are drawn, and what they talk to, if anything; `max_new_tokens` is the budget of a turn."""

    max_new_tokens: int
    seed: int
    temperature: float = 1.0
    top_p: float = 1.0
    talk: EnvSession | None = None


class RolloutStream:
    """Rollouts on their way, which can be gone through once: in the order of the prompts, or as they come.

    Sampling goes on while whoever goes through them asks for the next.
    """

    def __init__(self, coming: Placed, count: int) -> None:
        self._coming, self._count = coming, count
        self.sampled_at: float | None = None  # when the last of them was sampled, on the clock of time.perf_counter

    def __len__(self) -> int:
        return self._count

    def as_they_come(self) -> Placed:
        """Each with its place among all, from 0."""
        seen = 0
        for place, rollout in self._coming:
            seen += 1
            yield place, rollout
        self.sampled_at = time.perf_counter()
        if seen != self._count:
            raise RuntimeError(f"the sampler lost {self._count - seen} of {self._count} requests")

    def __iter__(self) -> Iterator[Rollout]:
        early: dict[int, Rollout] = {}
        turn = 0
        for place, rollout in self.as_they_come():
            early[place] = rollout
            while turn in early:
                yield early.pop(turn)
                turn += 1


def generate(
    sampler: Sampler,
    asked: Sequence[RenderedPrompt],
    samples: Sequence[int],
    settings: SamplingParams,
    *,
    occasion: str,
    text: Callable[[Sequence[int]], str],
) -> list[Rollout]:
    """The same as `ask`, waited for."""
    return list(generate_stream(sampler, asked, samples, settings, occasion=occasion, text=text))


def as_rollouts(rollouts: Sequence[Rollout]) -> RolloutStream:
    """Rollouts that are all there."""
    return RolloutStream(iter(enumerate(rollouts)), len(rollouts))


def generate_stream(
    sampler: Sampler,
    asked: Sequence[RenderedPrompt],
    samples: Sequence[int],
    settings: SamplingParams,
    *,
    occasion: str,
    text: Callable[[Sequence[int]], str],
) -> RolloutStream:
    """One rollout for every prompt and sample number. A number of GREEDY asks for the likeliest tokens.

    `occasion` (the step, the evaluation) is part of the noise's key: the same prompt gets other noise next time.
    """
    begun: list[EnvEpisode] = []
    for place, each in enumerate(asked):
        name = f"{occasion}/{place}/{each.prompt.id}"
        # Two occurrences of one prompt in a step are two groups.
        prompt = Prompt(name, each.prompt.messages, each.prompt.answer, each.prompt.info)
        for sample in samples:
            request = Request(
                name, sample, each.tokens, settings.max_new_tokens, settings.seed, settings.temperature, settings.top_p,
                greedy=sample == GREEDY,
            )  # fmt: skip
            begun.append(EnvEpisode(len(begun), request, prompt, each.made_from or each.prompt))
    talk = settings.talk
    coming = _alone(sampler, begun, text) if talk is None else run_episodes(sampler, begun, talk, text)
    return RolloutStream(coming, len(begun))


def _alone(sampler: Sampler, begun: Sequence[EnvEpisode], text: Callable[[Sequence[int]], str]) -> Placed:
    """Nobody to talk to: one turn each."""
    known = {each.key: each for each in begun}
    for completion in sampler.sample([each.request for each in begun]):
        each = known[completion.prompt_id, completion.sample]
        turn = Turn(each.request.tokens, completion, text(completion.tokens))
        yield each.place, Rollout(each.prompt, completion.sample, (turn,))
