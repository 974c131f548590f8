"""Verdicts from scores: a simulated annotator with known noise.

P(first is preferred) = e + (1 - 2 e) sigmoid(strength (u_first - u_second) + bias). `e` (noise) is the share of flipped
choices, `strength` the scale of Bradley-Terry, `bias` a position bias in log-odds. Without a strength the higher score
wins. Scores within `tie` are a tie. The draw depends on (seed, annotator, comparison, repeat) alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from ascent.feedback.comparisons import Form, ShownComparison
from ascent.feedback.verdicts import Verdict, ranks_of
from ascent.tasks.keyed_random import KeyedRandom


@dataclass(frozen=True)
class SimulatedAnnotator:
    """How scores become verdicts; the defaults are noiseless."""

    noise: float = 0.0
    strength: float = math.inf
    bias: float = 0.0
    tie: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.noise <= 0.5:
            raise ValueError(
                f"noise={self.noise}, but it is the share of flipped choices: 0 to 0.5"
            )
        if not self.strength > 0:
            raise ValueError(
                f"strength={self.strength}, but it must be above 0; 4 is a clear preference"
            )
        if not (self.tie >= 0 and math.isfinite(self.tie) and math.isfinite(self.bias)):
            raise ValueError(
                f"tie={self.tie}, bias={self.bias}: both must be finite, and a tie at least 0"
            )
        if self.bias and math.isinf(self.strength):
            raise ValueError(
                f"bias={self.bias} is a log-odds beside strength * difference; give a strength too"
            )


def annotator_from_options(options: Mapping[str, str], owner: str) -> SimulatedAnnotator:
    """From the query of a judge's name: noise=0.1&strength=4."""
    known = [field.name for field in fields(SimulatedAnnotator)]
    unknown = next((name for name in options if name not in known), None)
    if unknown is not None:
        raise ValueError(f"{owner} has no option {unknown}; it has {', '.join(known)}")
    try:
        return SimulatedAnnotator(**{name: float(value) for name, value in options.items()})
    except ValueError as error:
        raise ValueError(f"{owner}: {error}") from None


def preference(scores: Sequence[float], model: SimulatedAnnotator) -> float:
    """The probability that the first of two is chosen, if they are not a tie."""
    gap = scores[0] - scores[1]
    sharp = (
        math.copysign(math.inf, gap)
        if math.isinf(model.strength)
        else model.strength * gap + model.bias
    )
    clean = 1 / (1 + math.exp(-sharp)) if sharp >= 0 else math.exp(sharp) / (1 + math.exp(sharp))
    return model.noise + (1 - 2 * model.noise) * clean


def verdict(
    shown: ShownComparison,
    scores: Sequence[float],
    form: Form,
    model: SimulatedAnnotator,
    *,
    seed: int,
    annotator: str,
) -> Verdict:
    """The verdict for these scores. Rankings are Plackett-Luce draws in which noise swaps neighbors."""
    rng = KeyedRandom("feedback/verdict", seed, annotator, shown.question.id, shown.repeat)
    if form == "ratings":
        return Verdict("rated", tuple(scores))
    if form == "pairs":
        if abs(scores[0] - scores[1]) <= model.tie:
            return Verdict("tie")
        return Verdict("first" if rng.uniform() < preference(scores, model) else "second")
    if math.isinf(model.strength) and model.noise == 0:
        return Verdict("ranked", ranks_of(scores, high_is_good=True))
    drawn = [
        score if math.isinf(model.strength) else model.strength * score + rng.gumbel()
        for score in scores
    ]
    order = sorted(range(len(scores)), key=lambda index: -drawn[index])
    for index in range(len(order) - 1):
        if rng.uniform() < model.noise:
            order[index], order[index + 1] = order[index + 1], order[index]
    return Verdict("ranked", tuple(float(1 + order.index(index)) for index in range(len(scores))))
