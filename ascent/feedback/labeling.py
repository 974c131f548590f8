"""Several annotators judge the same comparisons at the same time: assignment, order, undo.

A share of the comparisons, `overlap`, is judged by every annotator, for agreement. Each of the others is judged by one
annotator, whoever is free: while it is open on somebody's page, nobody else gets it. A skipped one is passed on. If
two annotators judge one nevertheless, because the server was restarted or the first took too long, both verdicts are
written, and only the one that came first is trained on.

The next comparison of an annotator and its order follow from the verdicts in the file. A restarted server, a reloaded
page and a second tab therefore show the same one. The order is balanced: of every K comparisons of K answers, each
position (first, second, ...) shows each answer once.
"""

from __future__ import annotations

import math
import threading
import time
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from hashlib import blake2b
from typing import Any, NamedTuple

from ascent.feedback.comparisons import FORMS, GAP, Comparison, Form, ShownComparison
from ascent.feedback.preference_log import PreferenceLog
from ascent.feedback.verdicts import (
    CHOICES,
    NO_PREFERENCE,
    SECOND,
    SET_ASIDE,
    Verdict,
    numbers_in,
    ranks_of,
    row_key,
    texts_in,
    verdict_row,
)
from ascent.tasks.keyed_random import KeyedRandom

Row = Mapping[str, Any]
LEASE = 600.0  # seconds for which an open comparison is kept for its annotator
LONGEST_NAME, LONGEST_COMMENT = 64, 10_000


class StaleQuestion(ValueError):
    """The verdict is about a comparison that its annotator has judged meanwhile, in another tab."""


@dataclass(frozen=True)
class LabelingPlan:
    """`annotators`: the names that may judge; empty means anyone. `scale`: ratings are 1 to this."""

    form: Form = "pairs"
    overlap: float = 0.2
    repeat: float = 0.1
    scale: int = 5
    annotators: tuple[str, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        if self.form not in FORMS:
            raise ValueError(f"form={self.form!r}, but it must be one of {', '.join(FORMS)}")
        for name in ("overlap", "repeat"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(
                    f"{name}={getattr(self, name)}, but it is a share of the comparisons: 0 to 1"
                )
        if not 2 <= self.scale <= 9:
            raise ValueError(f"scale={self.scale}, but ratings are one key each: use 2 to 9")
        for name in self.annotators:
            check_name(name)
        same = [
            name for name, count in Counter(map(str.casefold, self.annotators)).items() if count > 1
        ]
        if same:
            raise ValueError(
                f"the annotator {same[0]!r} is named twice; names are compared without regard to case"
            )


class Progress(NamedTuple):
    """`done`: the annotator's verdicts. `left`: what is left for this annotator. `verdicts`: of all annotators."""

    done: int
    left: int
    verdicts: int
    annotators: int


def check_name(name: str) -> str:
    """An annotator's name as it is written into the file."""
    name = unicodedata.normalize("NFC", " ".join(name.split()))
    if not name or len(name) > LONGEST_NAME or not name.isprintable():
        raise ValueError(
            f"the name {name[:LONGEST_NAME]!r}: give 1 to {LONGEST_NAME} printable characters"
        )
    return name


def make_verdict(
    plan: LabelingPlan, answers: int, word: str, numbers: Sequence[float], comment: str = ""
) -> Verdict:
    """The verdict that a page sent; ValueError where it does not fit the question."""
    words = {"pairs": CHOICES, "rankings": ("ranked",), "ratings": ("rated",)}[plan.form]
    allowed = [*words, *(each for each in NO_PREFERENCE if each != "tie" or plan.form == "pairs")]
    if word not in allowed:
        raise ValueError(f"the verdict {word!r:.40} is none of {', '.join(allowed)}")
    wanted = answers if word in ("ranked", "rated") else 0
    low, high = 1, plan.scale if word == "rated" else answers
    if len(numbers) != wanted or not all(low <= each <= high for each in numbers):
        raise ValueError(
            f"{word} needs {wanted} numbers from {low} to {high}, but got {list(numbers)!r:.80}"
        )
    if len(comment) > LONGEST_COMMENT:
        raise ValueError(
            f"the comment has {len(comment)} characters; shorten it to {LONGEST_COMMENT}"
        )
    given = tuple(map(float, numbers))
    comment = (
        comment.strip().encode("utf-8", "replace").decode()
    )  # half of a surrogate pair cannot be written
    return Verdict(
        word, ranks_of(given, high_is_good=False) if word == "ranked" else given, comment
    )


class LabelingSession:
    """The comparisons, the file of verdicts, and what is open on which annotator's page. Safe to call from threads."""

    def __init__(
        self,
        log: PreferenceLog,
        questions: Sequence[Comparison],
        plan: LabelingPlan,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.log, self.questions, self.plan = log, questions, plan
        self._numbers = {each.id: number for number, each in enumerate(questions)}
        self._shared = [
            is_shared(number, plan.overlap, plan.seed) for number in range(len(questions))
        ]
        self._clock, self._lock = clock, threading.RLock()
        self._open: dict[
            str, tuple[tuple[str, int], float]
        ] = {}  # annotator -> key of the comparison, until when
        self._refuse_other_questions()

    def annotator(self, name: str) -> str:
        """The name as it is in the file: case and spaces do not make another annotator."""
        name = check_name(name)
        known = {each.casefold(): each for each in (*self.plan.annotators, *self.annotators())}
        if self.plan.annotators and name.casefold() not in map(str.casefold, self.plan.annotators):
            raise ValueError(
                f"{name!r} is none of the annotators: {', '.join(self.plan.annotators)}"
            )
        return known.get(name.casefold(), name)

    def annotators(self) -> list[str]:
        """Everybody who has judged, in the order of their first verdicts."""
        return list(dict.fromkeys(row["annotator"] for row in self.log.rows))

    def next(self, annotator: str) -> ShownComparison | None:
        """What the annotator is asked now, and keeps until it is judged; None where nothing is left for now."""
        with self._lock:
            key = next(self._available(annotator), None)
            if key is None:
                self._open.pop(annotator, None)
                return None
            self._open[annotator] = key, self._clock() + LEASE
            return self._show(annotator, key)

    def ticket(self, annotator: str, shown: ShownComparison) -> str:
        """Names a comparison and its order, and hides the ids of its answers, which name their models."""
        seen = f"{annotator}/{shown.question.id}/{shown.repeat}/{shown.order}"
        return f"{self._numbers[shown.question.id]}.{shown.repeat}.{blake2b(seen.encode(), digest_size=8).hexdigest()}"

    def judge(
        self,
        annotator: str,
        ticket: str,
        word: str,
        numbers: Sequence[float] = (),
        comment: str = "",
    ) -> None:
        """Write a verdict; it is on disk when this returns. The same verdict sent again is written once.

        The page sends it again when it got no reply: the server may have been killed after the write.
        """
        with self._lock:
            key = self._parse(ticket)
            count = len(self.questions[self._numbers[key[0]]].answers)
            verdict = make_verdict(self.plan, count, word, numbers, comment)
            own = {row_key(row): row for row in self.log.rows if row["annotator"] == annotator}
            if key in own:
                same_order = ticket == self.ticket(annotator, self._shown_in(own[key]))
                if same_order and verdict == _verdict_in(own[key]):
                    return
                raise StaleQuestion(
                    "you have judged this question already, in another tab or before; your verdict stays"
                )
            if key[1] and (key[0], 0) not in own:
                raise StaleQuestion("your first verdict on this question was taken back")
            shown = self._show(annotator, key)
            if ticket != self.ticket(annotator, shown):
                raise StaleQuestion(
                    "your verdicts have changed in another tab, and with them the order of the answers"
                )
            now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            second = not self._shared[self._numbers[key[0]]] and key[0] in self._judged_questions()
            row = verdict_row(
                shown, verdict, form=self.plan.form, annotator=annotator, time=now, second=second
            )
            self.log.append(row)
            self._open.pop(annotator, None)

    def undo(self, annotator: str, done: int) -> Verdict:
        """Take back the last of the annotator's `done` verdicts; its comparison is the next one.

        With another number of verdicts the page is out of date, or it asks a second time because it got no reply.
        """
        with self._lock:
            if done != len(self._rows_of(annotator)):
                raise StaleQuestion("your verdicts have changed meanwhile; nothing was taken back")
            row = self.log.undo_of(annotator)
            if row is None:
                raise ValueError("you have no verdict that could be taken back")
            self._open[annotator] = row_key(row), self._clock() + LEASE
            return _verdict_in(row)

    def progress(self, annotator: str) -> Progress:
        with self._lock:
            available = list(self._available(annotator, also_open=True))
            again = sum(
                not repeat and self._is_repeated(annotator, name) for name, repeat in available
            )
            everybody = {*self.annotators(), annotator}
            return Progress(
                len(self._rows_of(annotator)),
                len(available) + again,
                len(self.log.rows),
                len(everybody),
            )

    def _available(self, annotator: str, *, also_open: bool = False) -> Iterator[tuple[str, int]]:
        """Keys of what the annotator can be asked, the next one first; `also_open`: what others have open too."""
        own = self._rows_of(annotator)
        judged = {row_key(row) for row in own}
        opened = self._open.get(annotator)
        first = opened[0] if opened and opened[0] not in judged else None
        if first is not None:
            yield first
        again = [
            (index, (row["id"], 1))
            for index, row in enumerate(own)
            if self._asks_again(annotator, row)
        ]
        waiting = [(index, key) for index, key in again if key not in judged and key != first]
        yield from (key for index, key in waiting if len(own) - index > GAP)
        taken = self._judged_questions()
        if not also_open:
            now = self._clock()
            taken |= {
                key[0]
                for name, (key, until) in self._open.items()
                if name != annotator and until > now
            }
        for number, question in enumerate(self.questions):
            key = question.id, 0
            if (
                key not in judged
                and key != first
                and (self._shared[number] or question.id not in taken)
            ):
                yield key
        yield from (key for index, key in waiting if len(own) - index <= GAP)

    def _judged_questions(self) -> set[str]:
        """The ids of what somebody has judged."""
        return {
            row["id"]
            for row in self.log.rows
            if row["verdict"] != "skip" and row.get(SET_ASIDE) != SECOND
        }

    def _asks_again(self, annotator: str, row: Row) -> bool:
        return (
            not row.get("repeat")
            and row["verdict"] != "skip"
            and self._is_repeated(annotator, row["id"])
        )

    def _is_repeated(self, annotator: str, name: str) -> bool:
        return (
            KeyedRandom("feedback/again", self.plan.seed, annotator, name).uniform()
            < self.plan.repeat
        )

    def _show(self, annotator: str, key: tuple[str, int]) -> ShownComparison:
        question = self.questions[self._numbers[key[0]]]
        own = self._rows_of(annotator)
        if key[1]:
            first = next(row for row in own if row_key(row) == (key[0], 0))
            return ShownComparison(question, self._shown_in(first).order[::-1], 1)
        count = len(question.answers)
        before = sum(len(row["shown"]) == count and not row.get("repeat") for row in own)
        return ShownComparison(
            question, balanced_order(count, before, "feedback/label", self.plan.seed, annotator)
        )

    def _shown_in(self, row: Row) -> ShownComparison:
        question = self.questions[self._numbers[row["id"]]]
        ids = [answer.id for answer in question.answers]
        return ShownComparison(
            question, tuple(ids.index(each) for each in row["shown"]), row.get("repeat", 0)
        )

    def _parse(self, ticket: str) -> tuple[str, int]:
        number, _, rest = ticket.partition(".")
        repeat = rest.partition(".")[0]
        if not number.isdecimal() or int(number) >= len(self.questions) or repeat not in ("0", "1"):
            raise StaleQuestion("this question is not among those that are asked now")
        return self.questions[int(number)].id, int(repeat)

    def _rows_of(self, annotator: str) -> list[Row]:
        return [row for row in self.log.rows if row["annotator"] == annotator]

    def _refuse_other_questions(self) -> None:
        texts = {each.id: sorted(answer.text for answer in each.answers) for each in self.questions}
        for row in self.log.rows:
            if row.get("form") != self.plan.form:
                problem = f"of the form {row.get('form')}"
            elif row["id"] not in texts:
                problem = "on other questions"
            elif sorted(texts_in(row)) != texts[row["id"]]:
                problem = "on other answers"
            else:
                continue
            raise ValueError(
                f"{self.log.path} holds verdicts {problem} ({row['id']}); give the same arguments as before, or "
                "another --out"
            )


def _verdict_in(row: Row) -> Verdict:
    return Verdict(row["verdict"], tuple(numbers_in(row)), row.get("comment", ""))


def is_shared(number: int, share: float, seed: int) -> bool:
    """Whether every annotator judges comparison `number`: a random one of each 1 / share, also if more follow."""
    if share == 0:
        return False
    exact = Fraction(str(share))
    block = int(number * exact)
    low, high = (math.ceil(each / exact) for each in (block, block + 1))
    return number == KeyedRandom("feedback/overlap", seed, block).integer(low, high - 1)


def balanced_order(count: int, number: int, *key: str | int) -> tuple[int, ...]:
    """The order of `count` answers in an annotator's comparison `number`, of those with as many answers.

    Each block of `count` comparisons uses the `count` rotations of one random order, in random order.
    """
    rng = KeyedRandom(*key, count, number // count)
    base = sorted(range(count), key=lambda _: rng.bits())
    start = sorted(range(count), key=lambda _: rng.bits())[number % count]
    return tuple(base[start:] + base[:start])
