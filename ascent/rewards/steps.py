"""Step rewards: from characters of a text to sampled tokens, and from steps to one number. No torch.

A step's reward is at the sampled token that writes the step's last character, separator included. Where one token ends
several steps, it gets the lowest of their scores: two rewards at one token would count as a better step.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from ascent.protocols import Score
from ascent.records import Message, Rollout, StepReward
from ascent.rewards.outcome import Unscored
from ascent.rewards.registry import Batch

Decode = Callable[[Sequence[int]], str]
OVERLAP = 8  # tokens of context for the decoder; a partial character has at most 3


class StepScore(NamedTuple):
    """The score of one step, which ends before character `end`; the last step's end is behind the text."""

    end: int
    value: float


class Answer(NamedTuple):
    """A message of the policy and the conversation before it."""

    messages: tuple[Message, ...]
    text: str


# Scores the steps of every answer, at least one each; created in `setup`.
StepScorer = Callable[[Sequence[Answer]], Sequence[Sequence[StepScore] | Unscored]]

# One number from the scores of an answer's steps, as in best-of-n with process reward models.
AGGREGATES: Mapping[str, Callable[[Sequence[float]], float]] = {
    "min": min,
    "product": math.prod,
    "mean": statistics.fmean,
    "last": lambda scores: scores[-1],
}


def token_at(end: int, text: str, tokens: Sequence[int], decode: Decode) -> int:
    """The token that writes character `end - 1` of the text; the last one for an end behind the text.

    It is the first token after which the decoded prefix agrees with the text up to `end`: partial characters, and
    spaces that a decoder drops or adds, agree only once they are complete. Found by bisection, since every longer
    prefix agrees too.
    """
    if end > len(text):
        return len(tokens) - 1
    low, high = 0, len(tokens)
    while high - low > 1:
        middle = (low + high) // 2
        if decode(tokens[:middle])[:end] == text[:end]:
            high = middle
        else:
            low = middle
    return high - 1


def tokens_at(
    ends: Iterable[int], text: str, tokens: Sequence[int], decode: Decode
) -> dict[int, int]:
    """`token_at` of many ends, in time linear in the tokens: each search starts at the end before it.

    `tokens[:base]` write `text[:known]`, and `tokens[start:base]` write `head`; so the text after `known` equals the
    decoded text after `head`. Where it does not, `token_at` decodes the whole prefix.
    """
    found: dict[int, int] = {}
    start, base, known, head = 0, 0, 0, ""
    for end in sorted(set(ends)):
        if end > len(text) or end <= known:
            found[end] = len(tokens) - 1 if end > len(text) else base - 1
            continue
        target = head + text[known:end]
        low, high = base, min(base + 1, len(tokens))
        while high < len(tokens) and not decode(tokens[start:high]).startswith(target):
            low, high = high, min(2 * high - base, len(tokens))
        if not decode(tokens[start:high]).startswith(target):
            found[end] = token_at(end, text, tokens, decode)
            continue
        while high - low > 1:
            middle = (low + high) // 2
            written = decode(tokens[start:middle]).startswith(target)
            low, high = (low, middle) if written else (middle, high)
        found[end] = high - 1
        for stable in range(high, max(base, high - OVERLAP), -1):
            more = decode(tokens[start:stable])[len(head) :]
            if text.startswith(more, known):  # no partial character at its end
                base, known, start, head = stable, known + len(more), stable, ""
                while not head and start:
                    start = max(0, 2 * start - base - OVERLAP)
                    head = decode(tokens[start:base])
                break
    return found


def scores_by_token(
    scores: Iterable[tuple[int, float]], text: str, tokens: Sequence[int], decode: Decode
) -> dict[int, float]:
    """Scores of steps, as (end, value), by the index of their token."""
    scored = list(scores)
    places = tokens_at((end for end, _ in scored), text, tokens, decode)
    found: dict[int, float] = {}
    for end, value in scored:
        found[places[end]] = min(value, found.get(places[end], value))
    return found


def answers_of(rollout: Rollout) -> list[Answer]:
    """Every turn of the policy, with the conversation before it."""
    messages, found = rollout.prompt.messages, []
    for index, turn in enumerate(rollout.turns):
        if index:
            messages = (*messages, Message(turn.reply_role, turn.reply))
        found.append(Answer(messages, turn.text))
        messages = (*messages, Message("assistant", turn.text))
    return found


class ProcessReward(Batch):
    """A process reward model's scores: a reward at the end of every step, or one number for the whole rollout."""

    def __init__(self, scorer: StepScorer, decode: Decode, aggregate: str | None = None) -> None:
        self._scorer, self._decode = scorer, decode
        self._aggregate = None if aggregate is None else AGGREGATES[aggregate]

    def score(self, rollouts: Sequence[Rollout]) -> Sequence[Score | Unscored]:
        answers = [answers_of(rollout) for rollout in rollouts]
        found = iter(self._scorer([each for turns in answers for each in turns]))
        return [self._one(rollout, [next(found) for _ in rollout.turns]) for rollout in rollouts]

    def _one(
        self, rollout: Rollout, turns: Sequence[Sequence[StepScore] | Unscored]
    ) -> Score | Unscored:
        scores: list[float] = []
        steps: list[StepReward] = []
        before = 0
        for turn, scored in zip(rollout.turns, turns, strict=True):
            if isinstance(scored, Unscored):
                return scored
            tokens = turn.completion.tokens
            if not tokens:
                return Unscored("aborted", "sampling was aborted before the first token")
            scores += [each.value for each in scored]
            if self._aggregate is None:
                by_token = scores_by_token(scored, turn.text, tokens, self._decode)
                steps += [
                    StepReward(before + token, value) for token, value in sorted(by_token.items())
                ]
            before += len(tokens)
        return steps if self._aggregate is None else self._aggregate(scores)
