"""What a policy said, as lines of the run folder: the samples of a step, the answers to held-out prompts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from ascent.records import Rollout
from ascent.rewards.outcome import Tally
from ascent.rollouts.batch import correctness

DIGITS = 4  # of log-probs and advantages


class Pieces:
    """Token ids as the texts they stand for, special ones included; each is decoded once."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer, self._known = tokenizer, dict[int, str]()
        # Some tokenizers drop a space at the start of a text, so every token is decoded behind another one.
        self._before = list(tokenizer.encode("a", add_special_tokens=False))[-1:]
        self._start = len(tokenizer.decode(self._before))

    def __call__(self, tokens: Sequence[int]) -> list[str]:
        return [self._one(token) for token in tokens]

    def _one(self, token: int) -> str:
        if token not in self._known:
            self._known[token] = str(self._tokenizer.decode([*self._before, token]))[self._start :]
        return self._known[token]


class Complaints:
    """Why rewards could not score something, each reason once, with its first case."""

    def __init__(self, tally: Tally) -> None:
        self._tally, self._told = tally, set[tuple[str, str]]()

    def __call__(self) -> list[str]:
        new = sorted(self._tally.examples.keys() - self._told)
        self._told.update(new)
        return [f"reward {name}: unscored ({kind}), first: {self._tally.examples[name, kind]}" for name, kind in new]


def samples(
    rollouts: Sequence[Rollout], advantages: Sequence[Sequence[float] | None], pieces: Pieces
) -> Iterator[dict[str, Any]]:
    """Rollouts as lines of samples.jsonl, made one by one.

    `tokens` are texts. `advantages` is one number where it is the same for every token, and null where nothing was
    learnt from the sample (its group was dropped, it was masked or could not be scored).
    """
    for rollout, own in zip(rollouts, advantages, strict=True):
        sampled = [turn.completion for turn in rollout.turns]
        episode = {"ended": rollout.episode.ended} if rollout.episode else {}
        failures = {"failures": dict(rollout.failures)} if rollout.failures else {}
        yield {
            "id": rollout.prompt.id, "sample": rollout.sample, "prompt": rollout.prompt.messages[-1].content,
            "completion": rollout.text, "reward": _short(rollout.reward),
            "parts": {name: _short(value) for name, value in rollout.parts.items()},
            **failures, "stop": sampled[-1].stop, **episode, "advantages": _one_or_all(own),
            "tokens": [piece for each in sampled for piece in pieces(each.tokens)],
            "logprobs": [_short(each) for completion in sampled for each in completion.logprobs],
        }  # fmt: skip


def answers(rollouts: Sequence[Rollout]) -> Iterator[dict[str, Any]]:
    """Greedy answers as lines of answers.jsonl; `place` says which prompt, in every evaluation alike."""
    for place, rollout in enumerate(rollouts):
        right = correctness(rollout)
        yield {
            "place": place, "prompt": rollout.prompt.messages[-1].content, "completion": rollout.text,
            "correct": None if math.isnan(right) else _short(right), "reward": _short(rollout.reward),
            "parts": {name: _short(value) for name, value in rollout.parts.items()},
            "stop": rollout.turns[-1].completion.stop,
        }  # fmt: skip


def _one_or_all(advantages: Sequence[float] | None) -> float | list[float | None] | None:
    if advantages is None or not advantages:
        return None
    if len(set(advantages)) == 1:
        return _short(advantages[0])
    return [_short(each) for each in advantages]


def _short(number: float | None) -> float | None:
    return None if number is None else round(number, DIGITS)
