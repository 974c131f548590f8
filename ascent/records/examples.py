"""Training examples from files: conversations, pairs, rankings, unpaired answers, step labels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from ascent.records.checks import distinct_answers, not_empty
from ascent.records.rollouts import Message, Prompt


@dataclass(frozen=True)
class Example:
    """A conversation for supervised fine-tuning."""

    id: str
    messages: tuple[Message, ...]

    def __post_init__(self) -> None:
        if not any(message.role == "assistant" for message in self.messages):
            raise ValueError(
                f"Example {self.id!r} has no assistant message, so nothing to learn; drop it or add one"
            )


@dataclass(frozen=True)
class Pair:
    """Two answers to one prompt, the first preferred; `margin` says by how much, where that was recorded."""

    prompt: Prompt
    chosen: tuple[Message, ...]
    rejected: tuple[Message, ...]
    margin: float | None = None

    def __post_init__(self) -> None:
        distinct_answers(f"Pair {self.prompt.id!r}", (self.chosen, self.rejected))
        if self.margin is not None and not math.isfinite(self.margin):
            raise ValueError(
                f"Pair {self.prompt.id!r}: margin={self.margin}, but it must be finite; use None if unknown"
            )


@dataclass(frozen=True)
class Ranking:
    """Several answers to one prompt, best first. Answers with equal `ranks` are tied; by default none are."""

    prompt: Prompt
    answers: tuple[tuple[Message, ...], ...]
    ranks: tuple[int, ...] = ()  # one per answer: 0 for the best, then each 0 or 1 more

    def __post_init__(self) -> None:
        if len(self.answers) < 2:
            raise ValueError(
                f"Ranking {self.prompt.id!r} has {len(self.answers)} answer(s); a ranking needs at least 2"
            )
        distinct_answers(f"Ranking {self.prompt.id!r}", self.answers)
        ranks = self.ranks or tuple(range(len(self.answers)))
        steps = {after - before for before, after in pairwise((0, *ranks))}
        if (
            len(ranks) != len(self.answers)
            or not steps <= {0, 1}
            or ranks[0] != 0
            or ranks[-1] == 0
        ):
            raise ValueError(
                f"Ranking {self.prompt.id!r}: ranks={ranks}, but {len(self.answers)} answers, best first, need as many "
                "ranks that begin at 0, never skip one, and are not all equal"
            )
        object.__setattr__(self, "ranks", ranks)


@dataclass(frozen=True)
class UnpairedExample:
    """One answer labeled good or bad: preference data without pairs."""

    prompt: Prompt
    answer: tuple[Message, ...]
    good: bool

    def __post_init__(self) -> None:
        distinct_answers(f"UnpairedExample {self.prompt.id!r}", (self.answer,))


@dataclass(frozen=True)
class StepExample:
    """One answer in steps, each with the probability that it is right: 1 or 0 where that is known, None where not.

    A step is text that ends with a separator (`data.step_separator`); the last one ends with the answer.
    """

    prompt: Prompt
    steps: tuple[str, ...]
    right: tuple[float | None, ...]

    def __post_init__(self) -> None:
        owner = f"StepExample {self.prompt.id!r}"
        not_empty(f"{owner}.steps", self.steps, "give at least one step")
        if len(self.right) != len(self.steps):
            raise ValueError(
                f"{owner} has {len(self.steps)} steps but {len(self.right)} labels; give one for each"
            )
        bad = next(
            (value for value in self.right if value is not None and not 0 <= value <= 1), None
        )
        if bad is not None:
            raise ValueError(
                f"{owner}: a step is labeled {bad}, but it must lie between 0 (wrong) and 1 (right)"
            )
        if all(value is None for value in self.right):
            raise ValueError(
                f"{owner}: no step is labeled, so there is nothing to learn; drop the record"
            )
