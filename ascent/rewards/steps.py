"""Rewards at the ends of steps: from characters of a text to sampled tokens, and from steps to one number. No torch.

A step's reward stands at the sampled token that writes the step's last character, its separator's included, whatever
else that token writes. Where one token ends several steps the lowest of their scores stands there: they cannot be told
apart by credit, and two rewards at one token would count as a better step than there is.
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
OVERLAP = 8  # tokens from which a decoder knows what the text goes on from; half a character has at most 3


class StepScore(NamedTuple):
    """Of one step of an answer; it ends before character `end` of the text, the last one behind the text."""

    end: int
    value: float


class Answer(NamedTuple):
    """What was said before, and what the policy said to it."""

    asked: tuple[Message, ...]
    text: str


# Who judges steps, made and handed in by `build`: the steps of every answer, at least one each.
StepScorer = Callable[[Sequence[Answer]], Sequence[Sequence[StepScore] | Unscored]]

# How the scores of an answer's steps become one number, as best-of-n does it with process reward models.
AGGREGATES: Mapping[str, Callable[[Sequence[float]], float]] = {
    "min": min,
    "product": math.prod,
    "mean": statistics.fmean,
    "last": lambda scores: scores[-1],
}


def token_at(end: int, text: str, tokens: Sequence[int], decode: Decode) -> int:
    """The token that writes character `end` - 1 of the text; the last one for an end behind the text.

    It is the first after which the decoded beginning agrees with the text as far as `end`: bytes that are half a
    character, and spaces that a decoder drops or adds, agree only once they are settled. Found by halving, since every
    later beginning agrees too.
    """
    if end > len(text):
        return len(tokens) - 1
    without, with_it = 0, len(tokens)
    while with_it - without > 1:
        middle = (without + with_it) // 2
        if decode(tokens[:middle])[:end] == text[:end]:
            with_it = middle
        else:
            without = middle
    return with_it - 1


def tokens_at(ends: Iterable[int], text: str, tokens: Sequence[int], decode: Decode) -> dict[int, int]:
    """`token_at` of many ends, in time linear in the tokens: an end is looked for behind the one before it.

    `tokens[:base]` write `text[:known]`, and `tokens[start:base]` write `head`; so what the text goes on with behind
    `known` is what they go on with behind `head`. Where they do not, `token_at` looks at the whole.
    """
    found: dict[int, int] = {}
    start, base, known, head = 0, 0, 0, ""
    for end in sorted(set(ends)):
        if end > len(text) or end <= known:
            found[end] = len(tokens) - 1 if end > len(text) else base - 1
            continue
        wanted = head + text[known:end]
        without, with_it = base, min(base + 1, len(tokens))
        while with_it < len(tokens) and not decode(tokens[start:with_it]).startswith(wanted):
            without, with_it = with_it, min(2 * with_it - base, len(tokens))
        if not decode(tokens[start:with_it]).startswith(wanted):
            found[end] = token_at(end, text, tokens, decode)
            continue
        while with_it - without > 1:
            middle = (without + with_it) // 2
            written = decode(tokens[start:middle]).startswith(wanted)
            without, with_it = (without, middle) if written else (middle, with_it)
        found[end] = with_it - 1
        for settled in range(with_it, max(base, with_it - OVERLAP), -1):
            more = decode(tokens[start:settled])[len(head) :]
            if text.startswith(more, known):  # no half character at its end
                base, known, start, head = settled, known + len(more), settled, ""
                while not head and start:
                    start = max(0, 2 * start - base - OVERLAP)
                    head = decode(tokens[start:base])
                break
    return found


def at_tokens(
    scores: Iterable[tuple[int, float]], text: str, tokens: Sequence[int], decode: Decode
) -> dict[int, float]:
    """Scores of steps, as (end, value), by the sampled token at which each stands."""
    judged = list(scores)
    places = tokens_at((end for end, _ in judged), text, tokens, decode)
    found: dict[int, float] = {}
    for end, value in judged:
        found[places[end]] = min(value, found.get(places[end], value))
    return found


def said(rollout: Rollout) -> list[Answer]:
    """Every turn of the policy with all that came before it."""
    asked, found = rollout.prompt.messages, []
    for place, turn in enumerate(rollout.turns):
        if place:
            asked = (*asked, Message(turn.heard_from, turn.heard))
        found.append(Answer(asked, turn.text))
        asked = (*asked, Message("assistant", turn.text))
    return found


class StepScored(Batch):
    """A process reward model's scores: a reward at the end of every step, or one number for the whole rollout."""

    def __init__(self, scorer: StepScorer, decode: Decode, aggregate: str | None = None) -> None:
        self._scorer, self._decode = scorer, decode
        self._aggregate = None if aggregate is None else AGGREGATES[aggregate]

    def score(self, rollouts: Sequence[Rollout]) -> Sequence[Score | Unscored]:
        answers = [said(rollout) for rollout in rollouts]
        found = iter(self._scorer([each for turns in answers for each in turns]))
        return [self._one(rollout, [next(found) for _ in rollout.turns]) for rollout in rollouts]

    def _one(self, rollout: Rollout, turns: Sequence[Sequence[StepScore] | Unscored]) -> Score | Unscored:
        scores: list[float] = []
        steps: list[StepReward] = []
        before = 0
        for turn, judged in zip(rollout.turns, turns, strict=True):
            if isinstance(judged, Unscored):
                return judged
            tokens = turn.completion.tokens
            if not tokens:
                return Unscored("aborted", "sampling was aborted before the first token")
            scores += [each.value for each in judged]
            if self._aggregate is None:
                placed = at_tokens(judged, turn.text, tokens, self._decode)
                steps += [StepReward(before + token, value) for token, value in sorted(placed.items())]
            before += len(tokens)
        return steps if self._aggregate is None else self._aggregate(scores)
