"""A task: problems from a seed, a verifier, and preferences of known strength.

An item depends on (task, split, seed, index) alone. The hash of a problem's key decides its split, so the splits are
disjoint for every seed and count.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ascent.records import Example, Message, Pair, Prompt, Ranking, StepExample, UnpairedExample
from ascent.tasks.keyed_random import KeyedRandom, stable_hash

Split = Literal["train", "heldout"]
SPLITS: tuple[Split, ...] = ("train", "heldout")

HELD_OUT_SHARE = 10  # one problem in this many is held out
MAX_TRIES = 1000  # only a task with hardly any problems reaches it
MAX_WORD = 12  # characters; a longer word counts as several


@dataclass(frozen=True)
class Problem:
    """A question with its reference answer. Problems with the same `key` are in the same split."""

    question: str
    answer: str
    key: str


class StepScore(NamedTuple):
    """The score of one step of an answer; the step ends before character `end` of the text."""

    end: int
    value: float


@dataclass(frozen=True)
class Task:
    """Pure functions: `attempt` writes an answer of mixed quality, `demonstrate` one for SFT (default: the reference).

    `parts` maps (reference answer, text) to named scores in [0, 1], among them `correct`, which is 0 or 1. `utility`
    holds the weights of the parts in the true utility, from which preferences are drawn. `steps` maps the same to the
    scores of the steps of an answer, at least one.
    """

    name: str
    summary: str
    draw: Callable[[KeyedRandom], Problem]
    parts: Callable[[str, str], dict[str, float]]
    attempt: Callable[[Problem, KeyedRandom], str]
    utility: Mapping[str, float]
    demonstrate: Callable[[Problem, KeyedRandom], str] = lambda problem, rng: problem.answer
    steps: Callable[[str, str], tuple[StepScore, ...]] | None = None

    def prompts(self, split: Split, count: int, seed: int = 0) -> tuple[Prompt, ...]:
        """Questions with their answers, for rollouts and evaluation."""
        return tuple(self._prompt(split, index, seed)[0] for index in _indices(count))

    def demonstrations(self, split: Split, count: int, seed: int = 0) -> tuple[Example, ...]:
        """Examples for SFT."""
        found = []
        for index in _indices(count):
            prompt, problem = self._prompt(split, index, seed)
            text = self.demonstrate(problem, self._rng("demonstrate", split, seed, index))
            found.append(Example(prompt.id, (*prompt.messages, *_reply(text))))
        return tuple(found)

    def rankings(
        self, split: Split, count: int, seed: int = 0, *, size: int = 4, strength: float = 4.0
    ) -> tuple[Ranking, ...]:
        """Distinct answers to one question, best first, drawn from Plackett-Luce with utilities times `strength`."""
        if size < 2:
            raise ValueError(f"size={size}, but a ranking compares at least 2 answers")
        return tuple(self._ranking(split, index, seed, size, strength) for index in _indices(count))

    def pairs(
        self, split: Split, count: int, seed: int = 0, *, strength: float = 4.0
    ) -> tuple[Pair, ...]:
        """Two answers; the first was preferred with probability sigmoid(strength * difference of utilities)."""
        found = self.rankings(split, count, seed, size=2, strength=strength)
        return tuple(
            Pair(ranking.prompt, ranking.answers[0], ranking.answers[1]) for ranking in found
        )

    def unpaired(
        self, split: Split, count: int, seed: int = 0, *, strength: float = 4.0
    ) -> tuple[UnpairedExample, ...]:
        """One answer, labeled good with probability sigmoid(strength * (utility - half of its maximum))."""
        _check_strength(strength)
        found = []
        for index in _indices(count):
            prompt, problem = self._prompt(split, index, seed)
            rng = self._rng("judged", split, seed, index)
            text = self.attempt(problem, rng)
            good = rng.uniform() < self.approval(prompt, text, strength=strength)
            found.append(UnpairedExample(prompt, _reply(text), good))
        return tuple(found)

    def stepwise(self, split: Split, count: int, seed: int = 0) -> tuple[StepExample, ...]:
        """One answer of mixed quality in steps with labels; where it ends too early, the last step is wrong."""
        found = []
        for index in _indices(count):
            prompt, problem = self._prompt(split, index, seed)
            text = self.attempt(problem, self._rng("stepwise", split, seed, index))
            labels = self.verify_steps(prompt, text)
            scores = [score for score in labels if score.end <= len(text)]
            starts = (0, *(score.end for score in scores))
            pieces = tuple(
                text[start : score.end].strip()
                for start, score in zip(starts, scores, strict=False)
            )
            # The last step includes the end of the answer.
            right = (
                *(score.value for score in scores[:-1]),
                min(score.value for score in labels[len(scores) - 1 :]),
            )
            found.append(StepExample(prompt, pieces, right))
        return tuple(found)

    def verify(self, prompt: Prompt, text: str) -> dict[str, float]:
        """Named scores in [0, 1] of an answer; `correct` is 0 or 1, the others are partial credit."""
        return self.parts(self._reference(prompt), text)

    def verify_steps(self, prompt: Prompt, text: str) -> tuple[StepScore, ...]:
        """The scores of an answer's steps; `rewards.steps.token_at` finds the sampled tokens that end them."""
        if self.steps is None:
            raise ValueError(
                f"task {self.name} scores no steps; use a task that does, such as running_sum"
            )
        return self.steps(self._reference(prompt), text)

    def true_utility(self, prompt: Prompt, text: str) -> float:
        """The utility from which preferences are drawn."""
        scores = self.verify(prompt, text)
        return sum(weight * scores[name] for name, weight in self.utility.items())

    def preference(self, prompt: Prompt, first: str, second: str, *, strength: float) -> float:
        """The true probability that the first answer is preferred (Bradley-Terry)."""
        _check_strength(strength)
        return _sigmoid(
            strength * (self.true_utility(prompt, first) - self.true_utility(prompt, second))
        )

    def approval(self, prompt: Prompt, text: str, *, strength: float) -> float:
        """The true probability of the label good."""
        middle = sum(self.utility.values()) / 2
        return _sigmoid(strength * (self.true_utility(prompt, text) - middle))

    def bayes_accuracy(self, pairs: Iterable[Pair], *, strength: float) -> float:
        """Accuracy of the optimal reward model on these pairs: mean of max(p, 1 - p). The rest is label noise."""
        probabilities = [
            self.preference(
                pair.prompt, pair.chosen[0].content, pair.rejected[0].content, strength=strength
            )
            for pair in pairs
        ]
        if not probabilities:
            raise ValueError("bayes_accuracy of no pairs; give at least one")
        return sum(max(p, 1 - p) for p in probabilities) / len(probabilities)

    def _reference(self, prompt: Prompt) -> str:
        if prompt.answer is None:
            raise ValueError(
                f"prompt {prompt.id!r} has no answer; {self.name} verifies against Prompt.answer"
            )
        return prompt.answer

    def _prompt(self, split: Split, index: int, seed: int) -> tuple[Prompt, Problem]:
        if split not in SPLITS:
            raise ValueError(f"split={split!r}, but it must be one of {', '.join(SPLITS)}")
        rng = self._rng("problem", split, seed, index)
        for _ in range(MAX_TRIES):
            problem = self.draw(rng)
            if split_of(f"{self.name}/{problem.key}") == split:
                return self._to_prompt(
                    problem, f"{self.name}/{split}/{seed}/{index}", split
                ), problem
        raise ValueError(
            f"task {self.name}: {MAX_TRIES} draws gave no {split} problem; widen the ranges of the task"
        )

    def _to_prompt(self, problem: Problem, name: str, split: Split) -> Prompt:
        return Prompt(
            name,
            (Message("user", problem.question),),
            problem.answer,
            {"task": self.name, "split": split},
        )

    def _ranking(self, split: Split, index: int, seed: int, size: int, strength: float) -> Ranking:
        _check_strength(strength)
        prompt, problem = self._prompt(split, index, seed)
        rng = self._rng(f"ranking{size}", split, seed, index)
        texts: list[str] = []
        for _ in range(MAX_TRIES):
            text = self.attempt(problem, rng)
            if text not in texts:
                texts.append(text)
            if len(texts) == size:
                break
        else:
            raise ValueError(
                f"task {self.name} has only {len(texts)} answers to {problem.question!r}; size={size}"
            )
        drawn = {text: strength * self.true_utility(prompt, text) + rng.gumbel() for text in texts}
        return Ranking(
            prompt, tuple(_reply(text) for text in sorted(texts, key=lambda text: -drawn[text]))
        )

    def _rng(self, use: str, split: Split, seed: int, index: int) -> KeyedRandom:
        return KeyedRandom(self.name, use, split, seed, index)


def split_of(key: str) -> Split:
    """The split of a problem, by its hash."""
    return "heldout" if stable_hash(f"split/{key}") % HELD_OUT_SHARE == 0 else "train"


def overlap(want: Sequence[str], got: Sequence[str]) -> float:
    """Share of common items of two multisets, of the larger one; 1 only for equal multisets."""
    return (Counter(want) & Counter(got)).total() / max(len(want), len(got), 1)


def word_count(text: str) -> int:
    """Words of a text; a word counts once for every MAX_WORD characters, so leaving out spaces does not help."""
    return sum(-(-len(word) // MAX_WORD) for word in text.split())


def position_accuracy(want: Sequence[str], got: Sequence[str]) -> float:
    """Share of positions with the right item, of the longer list; 1 only for equal lists."""
    return sum(a == b for a, b in zip(want, got, strict=False)) / max(len(want), len(got), 1)


def _indices(count: int) -> range:
    if count < 1:
        raise ValueError(f"count={count}, but it must be at least 1")
    return range(count)


def _check_strength(strength: float) -> None:
    if not (strength > 0 and math.isfinite(strength)):
        raise ValueError(
            f"strength={strength}, but it must be a finite number above 0; 4 is a clear preference"
        )


def _reply(text: str) -> tuple[Message, ...]:
    return (Message("assistant", text),)


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))
