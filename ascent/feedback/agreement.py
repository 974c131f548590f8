"""Agreement of annotators with each other and with themselves, corrected for chance, from a file of verdicts.

Choices, rankings and ratings are split into pairwise preferences. The label of a unit (comparison, answer, answer) is
`a` where the first of the two ids is better, `b`, `tie` or `both_bad`. "All bad" is `both_bad` for every pair of
answers. A skipped comparison has no label.
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


class AgreementScore(NamedTuple):
    """`share` of the `units` with equal labels; `chance_corrected` is kappa or alpha, None where undefined."""

    measure: str
    share: float
    chance_corrected: float | None
    units: int


@dataclass(frozen=True)
class Agreement:
    """`self_agreement`: on repeated comparisons. `position_bias`: share of choices for the answer shown first."""

    verdicts: Mapping[str, Counter[str]]
    between: AgreementScore | None
    self_agreement: Mapping[str, AgreementScore]
    position_bias: Mapping[str, Interval]


def cohen(pairs: Sequence[tuple[Hashable, Hashable]]) -> float | None:
    """Cohen's kappa of two annotators: (observed - expected) / (1 - expected); None where both use one label only.

    Of 50 pairs, 20 yes/yes, 5 yes/no, 10 no/yes, 15 no/no: observed .7, expected .5 * .6 + .5 * .4 = .5, kappa .4.
    """
    if not pairs:
        return None
    count = len(pairs)
    observed = sum(one == other for one, other in pairs) / count
    ones, others = Counter(one for one, _ in pairs), Counter(other for _, other in pairs)
    expected = sum(number * others[label] for label, number in ones.items()) / count**2
    return None if expected == 1 else (observed - expected) / (1 - expected)


def unequal(one: Hashable, other: Hashable) -> float:
    """Distance of nominal labels."""
    return float(one != other)


def squared(one: float, other: float) -> float:
    """Distance of numbers."""
    return (one - other) ** 2


def krippendorff(
    units: Sequence[Sequence[Any]], distance: Callable[[Any, Any], float] = unequal
) -> float | None:
    """Krippendorff's alpha of any number of annotators, some of them absent: 1 - observed / expected disagreement.

    Units with one value are left out. For labels (0,0) (1,1) (0,1): of six values three are 0 and three are 1. Observed
    is 2/6 (the two ordered pairs of the third unit), expected 18/30, alpha 1 - (1/3) / (3/5) = 4/9. None where all
    values are the same.
    """
    paired = [unit for unit in units if len(unit) > 1]
    count = sum(map(len, paired))
    observed = sum(
        2 * sum(distance(one, other) for one, other in combinations(unit, 2)) / (len(unit) - 1)
        for unit in paired
    )
    values = Counter(value for unit in paired for value in unit)
    expected = sum(
        2 * values[one] * values[other] * distance(one, other)
        for one, other in combinations(values, 2)
    )
    return None if expected == 0 else 1 - (observed / count) / (expected / (count * (count - 1)))


def preference_labels(row: Row) -> dict[Unit, str]:
    """The pairwise preferences of one row."""
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
    return {
        unit: "tie" if rank[unit[1]] == rank[unit[2]] else "ab"[rank[unit[1]] > rank[unit[2]]]
        for unit in units
    }


def agreement(rows: Sequence[Row]) -> Agreement:
    """The agreement of the annotators of a file of verdicts."""
    labels: dict[tuple[str, int], dict[Unit, str]] = defaultdict(dict)
    for row in rows:
        labels[row["annotator"], row.get("repeat", 0)] |= preference_labels(row)
    names = list(dict.fromkeys(row["annotator"] for row in rows))
    repeated = {
        name: _cohen(labels[name, 0], labels[name, 1]) for name in names if (name, 1) in labels
    }
    return Agreement(
        verdicts={
            name: Counter(row["verdict"] for row in rows if row["annotator"] == name)
            for name in names
        },
        between=_between([labels[name, 0] for name in names]),
        self_agreement={name: each for name, each in repeated.items() if each is not None},
        position_bias={
            name: each for name in names if (each := _position_bias(name, rows)) is not None
        },
    )


def _between(labels: Sequence[Mapping[Unit, str]]) -> AgreementScore | None:
    if len(labels) < 2:
        return None
    if len(labels) == 2:
        return _cohen(*labels)
    every = dict.fromkeys(unit for each in labels for unit in each)
    units = [[each[unit] for each in labels if unit in each] for unit in every]
    pairs = [pair for unit in units for pair in combinations(unit, 2)]
    if not pairs:
        return None
    share = sum(one == other for one, other in pairs) / len(pairs)
    several = sum(len(unit) > 1 for unit in units)
    return AgreementScore("Krippendorff's alpha", share, krippendorff(units), several)


def _cohen(one: Mapping[Unit, str], other: Mapping[Unit, str]) -> AgreementScore | None:
    pairs = [(label, other[unit]) for unit, label in one.items() if unit in other]
    if not pairs:
        return None
    return AgreementScore(
        "Cohen's kappa", sum(a == b for a, b in pairs) / len(pairs), cohen(pairs), len(pairs)
    )


def _position_bias(name: str, rows: Sequence[Row]) -> Interval | None:
    chosen = [
        row["verdict"] for row in rows if row["annotator"] == name and row["verdict"] in CHOICES
    ]
    return wilson(chosen.count("first"), len(chosen)) if chosen else None


def agreement_lines(found: Agreement) -> list[str]:
    """The agreement as text: counts of verdicts, agreement, position bias."""
    lines = [
        f"{name}: " + ", ".join(f"{count} {word}" for word, count in sorted(counts.items()))
        for name, counts in found.verdicts.items()
    ]
    if found.between is not None:
        lines.append(f"agreement of {len(found.verdicts)} annotators: {_format(found.between)}")
    lines += [
        f"{name} agrees with itself in the other order: {_format(e)}"
        for name, e in found.self_agreement.items()
    ]
    for name, first in found.position_bias.items():
        biased = not first.low <= 0.5 <= first.high
        lines.append(
            f"{name} chose what was shown first in {first.value:.1%} of {first.of} choices (95% interval "
            f"{first.low:.1%} to {first.high:.1%}){': a position bias' if biased else ''}"
        )
    return lines


def _format(found: AgreementScore) -> str:
    corrected = (
        "undefined, one label only"
        if found.chance_corrected is None
        else f"{found.chance_corrected:.3f}"
    )
    return f"{found.share:.1%} of {found.units}, {found.measure} {corrected}"
