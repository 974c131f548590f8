"""What there is to say about a step's rollouts besides rewards: who could not score them and why, how episodes went."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch

from ascent.maths.metrics import Accumulator, Mean
from ascent.records import Rollout


def episode_metrics(rollouts: Sequence[Rollout]) -> dict[str, Accumulator]:
    """Counts over the step, by name; nothing where there were no failures and no environment.

    `reward/failures/REWARD/WHY` counts rollouts, `env/ended/HOW` too; `env/turns` is a mean; `env/EVENT` counts events.
    """
    failures = Counter(f"reward/failures/{name}/{kind}" for each in rollouts for name, kind in each.failures.items())
    found: dict[str, Accumulator] = {name: _count(count) for name, count in sorted(failures.items())}
    episodes = [(each, each.episode) for each in rollouts if each.episode is not None]
    if episodes:
        turns = sum(len(each.turns) for each, _ in episodes)
        found["env/turns"] = Mean(torch.tensor(float(turns)), torch.tensor(float(len(episodes))))
        events = Counter(f"env/ended/{episode.ended}" for _, episode in episodes)
        for _, episode in episodes:
            events.update({f"env/{name}": count for name, count in episode.counts.items()})
        found |= {name: _count(count) for name, count in sorted(events.items())}
    return found


def _count(number: int) -> Accumulator:
    return Mean(torch.tensor(float(number)), torch.ones(()))
