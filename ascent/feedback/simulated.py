"""Verdicts from scores, with stated noise: a simulated annotator where scores are the truth, a judge elsewhere.

P(first shown is preferred) = e + (1 - 2 e) sigmoid(strength (u_first - u_second) + bias). `e` (noise) is the share of
choices that slip, `strength` the sharpness of Bradley-Terry, `bias` a liking for the first place in log-odds. Without a
strength the better score wins. Scores no further apart than `tie` are a tie. The draw is a function of (seed,
annotator, question, repeat) and of nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from ascent.feedback.comparisons import Form, ShownComparison
from ascent.feedback.verdicts import Verdict, order_of
from ascent.tasks.noise import Noise


@dataclass(frozen=True)
class Manner:
    """How scores become verdicts; the defaults add no noise."""

    noise: float = 0.0
    strength: float = math.inf
    bias: float = 0.0
    tie: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.noise <= 0.5:
            raise ValueError(f"noise={self.noise}, but it is the share of choices that slip: 0 to 0.5, a coin")
        if not self.strength > 0:
            raise ValueError(f"strength={self.strength}, but it must be above 0; 4 is a clear preference")
        if not (self.tie >= 0 and math.isfinite(self.tie) and math.isfinite(self.bias)):
            raise ValueError(f"tie={self.tie}, bias={self.bias}: both must be finite, and a tie at least 0")
        if self.bias and math.isinf(self.strength):
            raise ValueError(f"bias={self.bias} is a log-odds beside strength * difference; give a strength too")


def manner_from(options: Mapping[str, str], owner: str) -> Manner:
    """From the words after the ? of a judge's name: noise=0.1&strength=4."""
    known = [field.name for field in fields(Manner)]
    unknown = next((name for name in options if name not in known), None)
    if unknown is not None:
        raise ValueError(f"{owner} has no option {unknown}; it has {', '.join(known)}")
    try:
        return Manner(**{name: float(value) for name, value in options.items()})
    except ValueError as error:
        raise ValueError(f"{owner}: {error}") from None


def preference(scores: Sequence[float], manner: Manner) -> float:
    """The probability that the first of two is chosen, where they are no tie."""
    gap = scores[0] - scores[1]
    sharp = math.copysign(math.inf, gap) if math.isinf(manner.strength) else manner.strength * gap + manner.bias
    # Written so that no exponential overflows.
    clean = 1 / (1 + math.exp(-sharp)) if sharp >= 0 else math.exp(sharp) / (1 + math.exp(sharp))
    return manner.noise + (1 - 2 * manner.noise) * clean


def verdict(
    shown: ShownComparison, scores: Sequence[float], form: Form, manner: Manner, *, seed: int, annotator: str
) -> Verdict:
    """What an annotator with these scores says. Rankings are Plackett-Luce draws; noise swaps neighbours of them."""
    noise = Noise("feedback/verdict", seed, annotator, shown.question.id, shown.repeat)
    if form == "ratings":
        return Verdict("rated", tuple(scores))
    if form == "pairs":
        if abs(scores[0] - scores[1]) <= manner.tie:
            return Verdict("tie")
        return Verdict("first" if noise.unit() < preference(scores, manner) else "second")
    if math.isinf(manner.strength) and manner.noise == 0:
        return Verdict("ranked", order_of(scores, high_is_good=True))
    drawn = [score if math.isinf(manner.strength) else manner.strength * score + noise.gumbel() for score in scores]
    order = sorted(range(len(scores)), key=lambda place: -drawn[place])
    for place in range(len(order) - 1):
        if noise.unit() < manner.noise:
            order[place], order[place + 1] = order[place + 1], order[place]
    return Verdict("ranked", tuple(float(1 + order.index(place)) for place in range(len(scores))))
