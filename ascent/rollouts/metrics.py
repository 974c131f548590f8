"""Metrics of sampled rollouts: rewards, lengths, reward failures, environments. Axes: B sequences, G groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ascent.maths.batch import PackedBatch
from ascent.maths.metrics import Accumulator, Mean, max_of, mean_of, single, std_of
from ascent.records import Rollout


def reward_metrics(batch: PackedBatch, components: Mapping[str, Tensor]) -> dict[str, Accumulator]:
    """Rewards and lengths of all rollouts of a step, before any filter."""
    segments, groups = batch["segments"], batch["groups"]
    all_B = torch.ones(segments.count, dtype=torch.bool)
    scored_B = ~torch.isnan(batch["rewards_B"])
    known_B = ~torch.isnan(batch["correct_B"])
    length_B = segments.sum(batch["loss_mask_T"]).double()
    # A group of one has no variance to be zero.
    several_G = groups.sum(all_B) > 1
    flat_G = groups.all_equal(batch["rewards_B"], scored_B) & several_G
    found: dict[str, Accumulator] = {
        "reward/mean": mean_of(batch["rewards_B"], scored_B),
        "reward/std": std_of(batch["rewards_B"], scored_B),
        "reward/correct": mean_of(batch["correct_B"], known_B),
        "reward/failure_frac": mean_of(~scored_B, all_B),
        "completion/length_mean": mean_of(length_B, all_B),
        "completion/length_max": max_of(length_B, all_B),
        "completion/truncated_frac": mean_of(batch["truncated_B"], all_B),
    }
    if bool(several_G.any()):
        found["reward/zero_std_frac"] = Mean(flat_G.sum(), several_G.sum())
    return found | {
        f"reward/{name}": mean_of(part_B, ~torch.isnan(part_B))
        for name, part_B in components.items()
    }


def episode_metrics(rollouts: Sequence[Rollout]) -> dict[str, Accumulator]:
    """Reward failures and what environments did; nothing where there were neither.

    `reward/failures/REWARD/WHY` and `env/ended/HOW` count rollouts, `env/EVENT` counts events, `env/turns` is a mean.
    """
    failures = Counter(
        f"reward/failures/{name}/{kind}"
        for each in rollouts
        for name, kind in each.failures.items()
    )
    found: dict[str, Accumulator] = {
        name: single(float(count)) for name, count in sorted(failures.items())
    }
    episodes = [(each, each.episode) for each in rollouts if each.episode is not None]
    if episodes:
        turns = sum(len(each.turns) for each, _ in episodes)
        found["env/turns"] = Mean(torch.tensor(float(turns)), torch.tensor(float(len(episodes))))
        events = Counter(f"env/ended/{episode.ended}" for _, episode in episodes)
        for _, episode in episodes:
            events.update({f"env/{name}": count for name, count in episode.counts.items()})
        found |= {name: single(float(count)) for name, count in sorted(events.items())}
    return found


def staleness_metrics(batch: PackedBatch, step: int) -> dict[str, Accumulator]:
    """How many steps ago each trained token was sampled."""
    lag_T = step - 1 - batch["versions_T"]
    return {
        "sampler/staleness": mean_of(lag_T, batch["loss_mask_T"]),
        "sampler/staleness_max": max_of(lag_T.double(), batch["loss_mask_T"]),
    }
