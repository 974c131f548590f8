"""Do annotators agree, with each other and with themselves? Chance-corrected, from the file of verdicts alone.

Every row is taken apart into preferences between two answers, so that choices, rankings and ratings are compared in
one currency: the label of a unit (question, answer, answer) is `a` where the first of the two ids is better, `b`, `tie`
or `both_bad`. "All bad", of however many answers, is `both_bad` of any two of them. What was skipped is missing, not a
label.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple

from ascent.feedback.verdicts import CHOICES, numbers_in
from ascent.feedback.win_rate import Interval, wilson

Unit = tuple[str, str, str]
Row = Mapping[str, Any]


class Agreed(NamedTuple):
    """`share` of units with the same label, of `units`; `beyond_chance` is kappa or alpha, None where undefined."""

    measure: str
    share: float
    beyond_chance: float | None
    units: int


@dataclass(frozen=True)
class Agreement:
    """`itself`: of questions asked twice, those answered alike. `first_place`: choices for what was shown first."""

    verdicts: Mapping[str, Counter[str]]
    between: Agreed | None
    itself: Mapping[str, Agreed]
    first_place: Mapping[str, Interval]


def cohen(pairs: Sequence[tuple[Hashable, Hashable]]) -> float | None:
    """Cohen's kappa of two annotators: (agreed - expected) / (1 - expected); None where both used one label only.

    Of 50 pairs, 20 yes/yes, 5 yes/no, 10 no/yes, 15 no/no: agreed .7, expected .5 * .6 + .5 * .4 = .5, kappa .4.
    """
    if not pairs:
        return None
    count = len(pairs)
    agreed = sum(one == other for one, other in pairs) / count
    ones, others = Counter(one for one, _ in pairs), Counter(other for _, other in pairs)
    expected = sum(number * others[label] for label, number in ones.items()) / count**2
    return None if expected == 1 else (agreed - expected) / (1 - expected)


def unequal(one: Hashable, other: Hashable) -> float:
    """The distance of labels without order."""
    return float(one != other)


def squared(one: float, other: float) -> float:
    """The distance of numbers."""
    return (one - other) ** 2


def krippendorff(units: Sequence[Sequence[Any]], distance: Callable[[Any, Any], float] = unequal) -> float | None:
    """Krippendorff's alpha of any number of annotators, some of them absent: 1 - observed / expected disagreement.

    Units with one value are left out. For labels (0,0) (1,1) (0,1): of six values three are 0 and three are 1. Observed
    is 2/6 (the two ordered pairs of the third unit), expected 18/30, alpha 1 - (1/3) / (3/5) = 4/9. None where all
    values are the same.
    """
    paired = [unit for unit in units if len(unit) > 1]
    count = sum(map(len, paired))
    observed = sum(
        2 * sum(distance(one, other) for one, other in combinations(unit, 2)) / (len(unit) - 1) for unit in paired
    )
    values = Counter(value for unit in paired for value in unit)
    expected = sum(2 * values[one] * values[other] * distance(one, other) for one, other in combinations(values, 2))
    return None if expected == 0 else 1 - (observed / count) / (expected / (count * (count - 1)))


def labels_of(row: Row) -> dict[Unit, str]:
    """The preferences in one row, whatever its form."""
    shown, word = row["shown"], row["verdict"]
    if word == "skip":
        return {}
    units = [(row["id"], one, other) for one, other in combinations(sorted(shown), 2)]
    if word in CHOICES:
        best = shown[CHOICES.index(word)]
        return {unit: "a" if unit[1] == best else "b" for unit in units}
    numbers = numbers_in(row)
    if not numbers:
        return {unit: word for unit in units}
    sign = 1 if word == "ranked" else -1
    rank = {answer: sign * number for answer, number in zip(shown, numbers, strict=True)}
    return {unit: "tie" if rank[unit[1]] == rank[unit[2]] else "ab"[rank[unit[1]] > rank[unit[2]]] for unit in units}


def agreement(rows: Sequence[Row]) -> Agreement:
    """What a file of verdicts says of its annotators."""
    said: dict[tuple[str, int], dict[Unit, str]] = defaultdict(dict)
    for row in rows:
        said[row["annotator"], row.get("repeat", 0)] |= labels_of(row)
    names = list(dict.fromkeys(row["annotator"] for row in rows))
    itself = {name: _cohen(said[name, 0], said[name, 1]) for name in names if (name, 1) in said}
    return Agreement(
        verdicts={name: Counter(row["verdict"] for row in rows if row["annotator"] == name) for name in names},
        between=_between([said[name, 0] for name in names]),
        itself={name: each for name, each in itself.items() if each is not None},
        first_place={name: each for name in names if (each := _first_place(name, rows)) is not None},
    )


def _between(said: Sequence[Mapping[Unit, str]]) -> Agreed | None:
    if len(said) < 2:
        return None
    if len(said) == 2:
        return _cohen(*said)
    units = [[each[unit] for each in said if unit in each] for unit in dict.fromkeys(u for each in said for u in each)]
    pairs = [pair for unit in units for pair in combinations(unit, 2)]
    if not pairs:
        return None
    share = sum(one == other for one, other in pairs) / len(pairs)
    several = sum(len(unit) > 1 for unit in units)
    return Agreed("Krippendorff's alpha", share, krippendorff(units), several)


def _cohen(one: Mapping[Unit, str], other: Mapping[Unit, str]) -> Agreed | None:
    pairs = [(label, other[unit]) for unit, label in one.items() if unit in other]
    if not pairs:
        return None
    return Agreed("Cohen's kappa", sum(a == b for a, b in pairs) / len(pairs), cohen(pairs), len(pairs))


def _first_place(name: str, rows: Sequence[Row]) -> Interval | None:
    chosen = [row["verdict"] for row in rows if row["annotator"] == name and row["verdict"] in CHOICES]
    return wilson(chosen.count("first"), len(chosen)) if chosen else None
