"""Prompts -> completions of the current policy, in the order of the prompts, whatever order they finish in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ascent.protocols import Sampler
from ascent.records import Completion, Prompt, Request, Rollout, Turn

GREEDY = -1  # the sample number of a greedy baseline


@dataclass(frozen=True)
class Asked:
    """A prompt and the tokens in which the policy reads it."""

    prompt: Prompt
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Settings:
    """How completions are drawn."""

    max_new_tokens: int
    seed: int
    temperature: float = 1.0
    top_p: float = 1.0


def collect(
    sampler: Sampler,
    asked: Sequence[Asked],
    samples: Sequence[int],
    settings: Settings,
    *,
    occasion: str,
    text: Callable[[Sequence[int]], str],
) -> list[Rollout]:
    """One rollout for every prompt and sample number. A number of GREEDY asks for the likeliest tokens.

    `occasion` (the step, the evaluation) is part of the noise's key: the same prompt gets other noise next time.
    """
    names = [f"{occasion}/{place}/{each.prompt.id}" for place, each in enumerate(asked)]
    requests = [
        Request(
            name, sample, each.tokens, settings.max_new_tokens, settings.seed, settings.temperature, settings.top_p,
            greedy=sample == GREEDY,
        )
        for name, each in zip(names, asked, strict=True)
        for sample in samples
    ]  # fmt: skip
    done: dict[tuple[str, int], Completion] = {}
    for completion in sampler.sample(requests):
        done[completion.prompt_id, completion.sample] = completion
    missing = [(r.prompt_id, r.sample) for r in requests if (r.prompt_id, r.sample) not in done]
    if missing:
        raise RuntimeError(f"the sampler lost {len(missing)} of {len(requests)} requests, first {missing[0]}")
    rollouts = []
    for name, each in zip(names, asked, strict=True):
        # Two occurrences of one prompt in a step are two groups.
        prompt = Prompt(name, each.prompt.messages, each.prompt.answer, each.prompt.info)
        for sample in samples:
            completion = done[name, sample]
            turn = Turn(each.tokens, completion, text(completion.tokens))
            rollouts.append(Rollout(prompt, sample, (turn,)))
    return rollouts
