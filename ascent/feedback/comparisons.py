"""Comparisons for annotators: answers to one prompt in a shuffled order, some comparisons repeated.

The order depends on (seed, comparison, annotator) alone, so an interrupted session continues with the same comparisons.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal, TypeVar, get_args

from ascent.records import Prompt
from ascent.tasks.keyed_random import KeyedRandom

T = TypeVar("T")
Form = Literal["pairs", "rankings", "ratings"]
FORMS: tuple[Form, ...] = get_args(Form)
MAX_ANSWERS = 9  # one key each
GAP = 10  # comparisons before a repeated one, so that the annotator does not remember it


@dataclass(frozen=True)
class Answer:
    """One completion; `id` is the index of its model and its sample number: 0.3."""

    id: str
    model: str
    text: str
    tokens: int


@dataclass(frozen=True)
class Comparison:
    """Distinct answers to one prompt, in the order of their ids."""

    id: str
    prompt: Prompt
    answers: tuple[Answer, ...]


@dataclass(frozen=True)
class ShownComparison:
    """A comparison as shown to one annotator: `order` holds indices of its answers; `repeat` is 1 the second time."""

    question: Comparison
    order: tuple[int, ...]
    repeat: int = 0

    @property
    def key(self) -> tuple[str, int]:
        return self.question.id, self.repeat

    @property
    def answers(self) -> tuple[Answer, ...]:
        return tuple(self.question.answers[index] for index in self.order)


def make_comparisons(
    prompts: Sequence[Prompt],
    answers: Mapping[str, Sequence[Answer]],
    form: Form,
    *,
    seed: int,
    per_prompt: int = 1,
) -> tuple[list[Comparison], Counter[str]]:
    """The comparisons, and counts of what was left out: blank and duplicate answers carry no preference.

    `per_prompt` random pairs per prompt, of different models where there are several. Rankings and ratings compare all
    answers at once.
    """
    if form not in FORMS:
        raise ValueError(f"form={form!r}, but it must be one of {', '.join(FORMS)}")
    if per_prompt < 1:
        raise ValueError(f"per_prompt={per_prompt}, but at least 1 comparison per prompt is needed")
    found: list[Comparison] = []
    skipped: Counter[str] = Counter()
    for prompt in prompts:
        usable = _distinct(answers[prompt.id], skipped)
        if len(usable) < 2:
            skipped["prompts whose answers are all equal"] += 1
            continue
        if form != "pairs":
            found.append(_make_comparison(prompt, usable[:MAX_ANSWERS]))
            skipped["answers beyond nine"] += len(usable[MAX_ANSWERS:])
            continue
        pairs = list(combinations(usable, 2))
        mixed = [pair for pair in pairs if pair[0].model != pair[1].model]
        drawn = _shuffle(mixed or pairs, KeyedRandom("feedback/pairs", seed, prompt.id))
        found += [_make_comparison(prompt, pair) for pair in drawn[:per_prompt]]
    return found, +skipped


def order_for_annotator(
    annotator: str, questions: Sequence[Comparison], *, seed: int, repeat: float = 0.0
) -> list[ShownComparison]:
    """Every comparison in this annotator's order; a share of them again, later, in the other order."""
    if not 0 <= repeat <= 1:
        raise ValueError(f"repeat={repeat}, but it is a share of the comparisons: 0 to 1")
    found: list[ShownComparison] = []
    waiting: list[tuple[int, ShownComparison]] = []
    for number, question in enumerate(questions):
        rng = KeyedRandom("feedback/order", seed, annotator, question.id)
        order = tuple(_shuffle(range(len(question.answers)), rng))
        while waiting and waiting[0][0] <= number:
            found.append(waiting.pop(0)[1])
        found.append(ShownComparison(question, order))
        if rng.uniform() < repeat:
            waiting.append((number + GAP, ShownComparison(question, order[::-1], 1)))
    return found + [each for _, each in waiting]


def _distinct(answers: Sequence[Answer], skipped: Counter[str]) -> list[Answer]:
    found: dict[str, Answer] = {}
    for answer in answers:
        text = answer.text.strip()
        if not text:
            skipped["empty answers"] += 1
        elif text in found:
            skipped["duplicate answers"] += 1
        else:
            found[text] = answer
    return list(found.values())


def _make_comparison(prompt: Prompt, answers: Sequence[Answer]) -> Comparison:
    return Comparison(
        f"{prompt.id}#{'-'.join(each.id for each in answers)}", prompt, tuple(answers)
    )


def _shuffle(items: Sequence[T], rng: KeyedRandom) -> list[T]:
    keys = [(rng.bits(), index) for index in range(len(items))]
    return [items[index] for _, index in sorted(keys)]
