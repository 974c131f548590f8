"""What a task family is: problems from a seed, a verifier, and preferences whose true strength is known.

Every item is a function of (task, split, seed, index) and of nothing else. A problem belongs to the held-out split when
the hash of its canonical form says so, so no seed, count or order can make the splits meet.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ascent.records import Example, Message, Pair, Prompt, Ranking, StepExample, UnpairedExample
from ascent.tasks.noise import Noise, hashed

Split = Literal["train", "heldout"]
SPLITS: tuple[Split, ...] = ("train", "heldout")

# One problem in this many is held out.
HELD_OUT_SHARE = 10
# Far above what the rarest split needs; only a family with hardly any problems gets here.
MOST_TRIES = 1000
# Longer than any word of the families ("everywhere." has 11 characters): what is longer is several written as one.
LONGEST_WORD = 12


@dataclass(frozen=True)
class Problem:
    """A question with its reference answer. `key` is equal for problems that teach each other's answer."""

    question: str
    answer: str
    key: str


class StepScore(NamedTuple):
    """The score of one step of an answer; the step ends before character `end` of the text."""

    end: int
    value: float


@dataclass(frozen=True)
class Task:
    """A family. The functions are pure; `attempt` writes an answer of mixed quality, `demonstrate` one to imitate.

    `parts` maps (reference answer, text) to named scores in [0, 1], among them `correct`, which is 0 or 1. `utility`
    is the truth behind preferences: a weighted sum of parts, so that whoever prefers by it can be beaten by nobody.
    `steps`, where a family has it, maps the same to the scores of an answer's steps, in their order, at least one.
    """

    name: str
    summary: str
    draw: Callable[[Noise], Problem]
    parts: Callable[[str, str], dict[str, float]]
    attempt: Callable[[Problem, Noise], str]
    demonstrate: Callable[[Problem, Noise], str]
    utility: Mapping[str, float]
    steps: Callable[[str, str], tuple[StepScore, ...]] | None = None

    def prompts(self, split: Split, count: int, seed: int = 0) -> tuple[Prompt, ...]:
        """Questions with their answers, for rollouts and evaluation."""
        return tuple(self._prompt(split, index, seed)[0] for index in _indices(count))

    def demonstrations(self, split: Split, count: int, seed: int = 0) -> tuple[Example, ...]:
        """Conversations to imitate."""
        found = []
        for index in _indices(count):
            prompt, problem = self._prompt(split, index, seed)
            text = self.demonstrate(problem, self._noise("demonstrate", split, seed, index))
            found.append(Example(prompt.id, (*prompt.messages, *_reply(text))))
        return tuple(found)

    def rankings(
        self, split: Split, count: int, seed: int = 0, *, size: int = 4, strength: float = 4.0
    ) -> tuple[Ranking, ...]:
        """Distinct answers to one question, best first, drawn from Plackett-Luce with utilities times `strength`."""
        if size < 2:
            raise ValueError(f"size={size}, but a ranking compares at least 2 answers")
        return tuple(self._ranking(split, index, seed, size, strength) for index in _indices(count))

    def pairs(self, split: Split, count: int, seed: int = 0, *, strength: float = 4.0) -> tuple[Pair, ...]:
        """Two answers; the first was preferred with probability sigmoid(strength * difference of utilities)."""
        found = self.rankings(split, count, seed, size=2, strength=strength)
        return tuple(Pair(ranking.prompt, ranking.answers[0], ranking.answers[1]) for ranking in found)

    def judged(self, split: Split, count: int, seed: int = 0, *, strength: float = 4.0) -> tuple[UnpairedExample, ...]:
        """One answer with a thumb, up with probability sigmoid(strength * (utility - the middle of its range))."""
        _positive(strength)
        found = []
        for index in _indices(count):
            prompt, problem = self._prompt(split, index, seed)
            noise = self._noise("judged", split, seed, index)
            text = self.attempt(problem, noise)
            good = noise.unit() < self.approval(prompt, text, strength=strength)
            found.append(UnpairedExample(prompt, _reply(text), good))
        return tuple(found)

    def stepwise(self, split: Split, count: int, seed: int = 0) -> tuple[StepExample, ...]:
        """One answer of mixed quality in steps, each judged right or wrong by the task itself; an end that comes too
        early makes the last one wrong."""
        found = []
        for index in _indices(count):
            prompt, problem = self._prompt(split, index, seed)
            text = self.attempt(problem, self._noise("stepwise", split, seed, index))
            judged = self.verify_steps(prompt, text)
            scores = [score for score in judged if score.end <= len(text)]
            starts = (0, *(score.end for score in scores))
            pieces = tuple(text[start : score.end].strip() for start, score in zip(starts, scores, strict=False))
            # The last step ends with the answer, so it is as wrong as that end is.
            right = (*(score.value for score in scores[:-1]), min(score.value for score in judged[len(scores) - 1 :]))
            found.append(StepExample(prompt, pieces, right))
        return tuple(found)

    def verify(self, prompt: Prompt, text: str) -> dict[str, float]:
        """Named scores in [0, 1] of an answer; `correct` is 0 or 1, the others are partial credit."""
        return self.parts(self._reference(prompt), text)

    def verify_steps(self, prompt: Prompt, text: str) -> tuple[StepScore, ...]:
        """The scores of an answer's steps; `rewards.steps.token_at` finds the sampled tokens that end them."""
        if self.steps is None:
            raise ValueError(f"task {self.name} scores no steps; use a family that does, such as running_sum")
        return self.steps(self._reference(prompt), text)

    def true_utility(self, prompt: Prompt, text: str) -> float:
        """What the preferences of this task are made from."""
        scores = self.verify(prompt, text)
        return sum(weight * scores[name] for name, weight in self.utility.items())

    def preference(self, prompt: Prompt, first: str, second: str, *, strength: float) -> float:
        """The true probability that the first answer is preferred (Bradley-Terry)."""
        _positive(strength)
        return _sigmoid(strength * (self.true_utility(prompt, first) - self.true_utility(prompt, second)))

    def approval(self, prompt: Prompt, text: str, *, strength: float) -> float:
        """The true probability of a thumb up."""
        middle = sum(self.utility.values()) / 2
        return _sigmoid(strength * (self.true_utility(prompt, text) - middle))

    def bayes_accuracy(self, pairs: Iterable[Pair], *, strength: float) -> float:
        """Expected accuracy of the best possible judge on these pairs' questions and answers: mean of max(p, 1 - p).

        What remains to 1 is noise of the labels; a reward model above this on fresh pairs has seen the labels.
        """
        chances = [
            self.preference(pair.prompt, pair.chosen[0].content, pair.rejected[0].content, strength=strength)
            for pair in pairs
        ]
        if not chances:
            raise ValueError("bayes_accuracy of no pairs; give at least one")
        return sum(max(chance, 1 - chance) for chance in chances) / len(chances)

    def _reference(self, prompt: Prompt) -> str:
        if prompt.answer is None:
            raise ValueError(f"prompt {prompt.id!r} has no answer; {self.name} verifies against Prompt.answer")
        return prompt.answer

    def _prompt(self, split: Split, index: int, seed: int) -> tuple[Prompt, Problem]:
        if split not in SPLITS:
            raise ValueError(f"split={split!r}, but it must be one of {', '.join(SPLITS)}")
        noise = self._noise("problem", split, seed, index)
        for _ in range(MOST_TRIES):
            problem = self.draw(noise)
            if split_of(f"{self.name}/{problem.key}") == split:
                return self._asked(problem, f"{self.name}/{split}/{seed}/{index}", split), problem
        raise ValueError(f"task {self.name}: {MOST_TRIES} draws gave no {split} problem; widen the family's ranges")

    def _asked(self, problem: Problem, name: str, split: Split) -> Prompt:
        return Prompt(name, (Message("user", problem.question),), problem.answer, {"task": self.name, "split": split})

    def _ranking(self, split: Split, index: int, seed: int, size: int, strength: float) -> Ranking:
        _positive(strength)
        prompt, problem = self._prompt(split, index, seed)
        noise = self._noise(f"ranking{size}", split, seed, index)
        texts: list[str] = []
        for _ in range(MOST_TRIES):
            text = self.attempt(problem, noise)
            if text not in texts:
                texts.append(text)
            if len(texts) == size:
                break
        else:
            raise ValueError(f"task {self.name} has only {len(texts)} answers to {problem.question!r}; size={size}")
        drawn = {text: strength * self.true_utility(prompt, text) + noise.gumbel() for text in texts}
        return Ranking(prompt, tuple(_reply(text) for text in sorted(texts, key=lambda text: -drawn[text])))

    def _noise(self, use: str, split: Split, seed: int, index: int) -> Noise:
        return Noise(self.name, use, split, seed, index)


def split_of(key: str) -> Split:
    """Which split a problem belongs to, by its hash alone."""
    return "heldout" if hashed(f"split/{key}") % HELD_OUT_SHARE == 0 else "train"


def overlap(want: Sequence[str], got: Sequence[str]) -> float:
    """Share of items that two bags have in common, of the larger one; 1 only for equal bags."""
    return (Counter(want) & Counter(got)).total() / max(len(want), len(got), 1)


def word_count(text: str) -> int:
    """Words of a text that may want to look brief: every LONGEST_WORD characters without a space between are one."""
    return sum(-(-len(word) // LONGEST_WORD) for word in text.split())


def in_place(want: Sequence[str], got: Sequence[str]) -> float:
    """Share of places that hold the right item, of the longer list; 1 only for equal lists."""
    return sum(a == b for a, b in zip(want, got, strict=False)) / max(len(want), len(got), 1)


def _indices(count: int) -> range:
    if count < 1:
        raise ValueError(f"count={count}, but at least 1 item must be asked for")
    return range(count)


def _positive(strength: float) -> None:
    if not (strength > 0 and math.isfinite(strength)):
        raise ValueError(f"strength={strength}, but it must be a finite number above 0; 4 is a clear preference")


def _reply(text: str) -> tuple[Message, ...]:
    return (Message("assistant", text),)


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))
