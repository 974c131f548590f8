"""What an annotator is asked: answers to one prompt, in an order that a seed shuffles, some of them twice.

Everything is a function of (seed, question, annotator), so that a session that was interrupted goes on with the same
questions in the same order, and two annotators do not share a favourite side.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal, TypeVar, get_args

from ascent.records import Prompt
from ascent.tasks.noise import Noise

T = TypeVar("T")
Form = Literal["pairs", "rankings", "ratings"]
FORMS: tuple[Form, ...] = get_args(Form)
MOST_ANSWERS = 9  # one key each
# A question that is asked again comes this many questions later, so that nobody remembers what they said.
GAP = 10


@dataclass(frozen=True)
class Answer:
    """What one model said; `id` is its model's place in the list of models and its sample number: 0.3."""

    id: str
    model: str
    text: str
    tokens: int


@dataclass(frozen=True)
class Comparison:
    """Different answers to one prompt, in the order of their ids."""

    id: str
    prompt: Prompt
    answers: tuple[Answer, ...]


@dataclass(frozen=True)
class ShownComparison:
    """A question as one annotator sees it: `order` holds places in its answers. `repeat` is 1 the second time."""

    question: Comparison
    order: tuple[int, ...]
    repeat: int = 0

    @property
    def key(self) -> tuple[str, int]:
        return self.question.id, self.repeat

    @property
    def answers(self) -> tuple[Answer, ...]:
        return tuple(self.question.answers[place] for place in self.order)


def make_comparisons(
    prompts: Sequence[Prompt], answers: Mapping[str, Sequence[Answer]], form: Form, *, seed: int, per_prompt: int = 1
) -> tuple[list[Comparison], Counter[str]]:
    """The questions, and why prompts gave none. Answers that are blank or said before carry no preference.

    Pairs are drawn by the seed, `per_prompt` of them: of answers of different models where there are several models,
    of one model's otherwise. Rankings and ratings ask about all answers at once.
    """
    if form not in FORMS:
        raise ValueError(f"form={form!r}, but it must be one of {', '.join(FORMS)}")
    if per_prompt < 1:
        raise ValueError(f"per_prompt={per_prompt}, but at least 1 question must be asked about a prompt")
    found: list[Comparison] = []
    left: Counter[str] = Counter()
    for prompt in prompts:
        usable = _different(answers[prompt.id], left)
        if len(usable) < 2:
            left["prompts whose answers are all alike"] += 1
            continue
        if form != "pairs":
            found.append(_question(prompt, usable[:MOST_ANSWERS]))
            left["answers beyond nine"] += len(usable[MOST_ANSWERS:])
            continue
        pairs = list(combinations(usable, 2))
        across = [pair for pair in pairs if pair[0].model != pair[1].model]
        drawn = _shuffled(across or pairs, Noise("feedback/pairs", seed, prompt.id))
        found += [_question(prompt, pair) for pair in drawn[:per_prompt]]
    return found, +left


def shown_to(
    annotator: str, questions: Sequence[Comparison], *, seed: int, repeat: float = 0.0
) -> list[ShownComparison]:
    """Every question in this annotator's order; a share of them once more, later, the other way round."""
    if not 0 <= repeat <= 1:
        raise ValueError(f"repeat={repeat}, but it is the share of questions that are asked twice: 0 to 1")
    found: list[ShownComparison] = []
    waiting: list[tuple[int, ShownComparison]] = []
    for number, question in enumerate(questions):
        noise = Noise("feedback/order", seed, annotator, question.id)
        order = tuple(_shuffled(range(len(question.answers)), noise))
        while waiting and waiting[0][0] <= number:
            found.append(waiting.pop(0)[1])
        found.append(ShownComparison(question, order))
        if noise.unit() < repeat:
            waiting.append((number + GAP, ShownComparison(question, order[::-1], 1)))
    return found + [each for _, each in waiting]


def _different(answers: Sequence[Answer], left: Counter[str]) -> list[Answer]:
    found: dict[str, Answer] = {}
    for answer in answers:
        text = answer.text.strip()
        if not text:
            left["empty answers"] += 1
        elif text in found:
            left["answers that were said before"] += 1
        else:
            found[text] = answer
    return list(found.values())


def _question(prompt: Prompt, answers: Sequence[Answer]) -> Comparison:
    return Comparison(f"{prompt.id}#{'-'.join(each.id for each in answers)}", prompt, tuple(answers))


def _shuffled(items: Sequence[T], noise: Noise) -> list[T]:
    drawn = [(noise.bits(), place) for place in range(len(items))]
    return [items[place] for _, place in sorted(drawn)]
