"""What a Tally counted, as one mapping, for tests."""

from __future__ import annotations

from ascent.rewards.outcome import Tally


def counters(tally: Tally) -> dict[str, int]:
    scored = {f"rewards/{name}/scored": count for name, count in sorted(tally.scored.items())}
    unscored = {
        f"rewards/{name}/unscored/{kind}": count
        for (name, kind), count in sorted(tally.unscored.items())
    }
    return {**scored, **unscored}
