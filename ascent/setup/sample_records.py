"""Rollouts and evaluation answers as JSON records of the run folder (samples.jsonl, answers.jsonl)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from transformers import PreTrainedTokenizerBase

from ascent.records import Prompt, Rollout, Turn
from ascent.rewards.outcome import Tally
from ascent.rollouts.batch import correctness
from ascent.rollouts.token_stats import TokenStats

DIGITS = 4  # of log-probs and advantages
EMPTY: Mapping[int, TokenStats] = MappingProxyType({})


class TokenTexts:
    """Decodes token ids one by one, special tokens included, and caches the texts."""

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


class NewFailures:
    """Reward failures that were not reported yet: one line for each reason, with its first case."""

    def __init__(self, tally: Tally) -> None:
        self._tally, self._reported = tally, set[tuple[str, str]]()

    def __call__(self) -> list[str]:
        new = sorted(self._tally.examples.keys() - self._reported)
        self._reported.update(new)
        return [
            f"reward {name}: unscored ({kind}), first: {self._tally.examples[name, kind]}"
            for name, kind in new
        ]


def samples(
    rollouts: Sequence[Rollout],
    advantages: Sequence[Sequence[float] | None],
    token_texts: TokenTexts,
    token_stats: Mapping[int, TokenStats] = EMPTY,
) -> Iterator[dict[str, Any]]:
    """Records of samples.jsonl, one per rollout.

    `tokens` are texts. `advantages` is one number where all tokens have the same, and null where the sample was not
    trained on (its group was dropped, it was masked, or it could not be scored). `messages` are all messages of a
    prompt that has more than the one in `prompt`. `turns` says, for rollouts with an environment, how many of the
    tokens each turn has, and the message before it. The last fields are `token_stats`.
    """
    for index, (rollout, own) in enumerate(zip(rollouts, advantages, strict=True)):
        stats = token_stats[index]._asdict() if index in token_stats else {}
        sampled = [turn.completion for turn in rollout.turns]
        episode = {"ended": rollout.episode.ended} if rollout.episode else {}
        failures = {"failures": dict(rollout.failures)} if rollout.failures else {}
        yield {
            "id": rollout.prompt.id,
            "sample": rollout.sample,
            "prompt": rollout.prompt.messages[-1].content,
            "completion": rollout.text,
            "reward": _short(rollout.reward),
            "correct": _correct(rollout),
            "parts": {name: _short(value) for name, value in rollout.parts.items()},
            **failures,
            "stop": sampled[-1].stop,
            **episode,
            "advantages": _one_or_all(own),
            "tokens": [piece for each in sampled for piece in token_texts(each.tokens)],
            "logprobs": [_short(each) for completion in sampled for each in completion.logprobs],
            **_all_messages(rollout.prompt),
            **({"turns": [_turn(turn) for turn in rollout.turns]} if rollout.episode else {}),
            **{name: [_short(each) for each in values] for name, values in stats.items()},
        }


def answers(rollouts: Sequence[Rollout]) -> Iterator[dict[str, Any]]:
    """Records of answers.jsonl, one per greedy answer; `place` is the index of the prompt in every evaluation."""
    for place, rollout in enumerate(rollouts):
        yield {
            "place": place,
            "prompt": rollout.prompt.messages[-1].content,
            "completion": rollout.text,
            "correct": _correct(rollout),
            "reward": _short(rollout.reward),
            "parts": {name: _short(value) for name, value in rollout.parts.items()},
            "stop": rollout.turns[-1].completion.stop,
        }


def _correct(rollout: Rollout) -> float | None:
    right = correctness(rollout)
    return None if math.isnan(right) else _short(right)


def _turn(turn: Turn) -> dict[str, Any]:
    reply = {"role": turn.reply_role, "reply": turn.reply} if turn.reply else {}
    return {**reply, "tokens": len(turn.completion.tokens)}


def _all_messages(prompt: Prompt) -> dict[str, Any]:
    """All messages of a prompt that has more than the one in `prompt`."""
    if len(prompt.messages) == 1:
        return {}
    return {"messages": [{"role": each.role, "content": each.content} for each in prompt.messages]}


def _one_or_all(advantages: Sequence[float] | None) -> float | list[float | None] | None:
    if advantages is None or not advantages:
        return None
    if len(set(advantages)) == 1:
        return _short(advantages[0])
    return [_short(each) for each in advantages]


def _short(number: float | None) -> float | None:
    return None if number is None else round(number, DIGITS)
