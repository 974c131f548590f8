"""A file of verdicts in a few lines of words."""

from __future__ import annotations

from ascent.feedback.agreement import Agreed, Agreement


def lines_of(found: Agreement) -> list[str]:
    """Who said what how often, and how far that can be trusted."""
    told = [
        f"{name}: " + ", ".join(f"{count} {word}" for word, count in sorted(words.items()))
        for name, words in found.verdicts.items()
    ]
    if found.between is not None:
        told.append(f"agreement of {len(found.verdicts)} annotators: {_agreed(found.between)}")
    told += [f"{name} agrees with itself, asked the other way round: {_agreed(e)}" for name, e in found.itself.items()]
    for name, first in found.first_place.items():
        biased = not first.low <= 0.5 <= first.high
        told.append(
            f"{name} chose what was shown first in {first.value:.1%} of {first.of} choices (95% interval "
            f"{first.low:.1%} to {first.high:.1%}){': a bias of position' if biased else ''}"
        )
    return told


def _agreed(found: Agreed) -> str:
    beyond = "undefined, one label only" if found.beyond_chance is None else f"{found.beyond_chance:.3f}"
    return f"{found.share:.1%} of {found.units}, {found.measure} {beyond}"
