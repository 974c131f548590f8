"""Rewards of a run whose launcher places reward workers: these call them, instead of the trainer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

from ascent.parallel.ranks import Ranks
from ascent.plan.resolve import Plan
from ascent.rewards.placed import RewardWorkers, place
from ascent.rollouts.score import Scorer
from ascent.runs.reward_worker_files import RewardLaunch, RewardWorkerFiles
from ascent.setup.rewards import rewards_for_workers


def use_reward_workers(plan: Plan, score: Scorer, folder: Path, ranks: Ranks) -> Callable[[], None]:
    """Have the launcher's workers call the rewards that may run elsewhere; returns what ends it. Every rank calls its
    own. Without a launcher that places workers nothing changes."""
    launch = RewardLaunch.of_environment()
    if launch is None:
        return lambda: None
    files, wanted = RewardWorkerFiles(folder, launch.name), rewards_for_workers(plan)

    def placed() -> tuple[tuple[str, ...], str]:
        found = files.placed()
        return found.urls, found.error

    workers = RewardWorkers(
        placed, partial(files.want, wanted, rank=ranks.rank), key=launch.key, count=launch.count
    )
    score.pipeline = replace(
        score.pipeline,
        rewards=place(dict(score.pipeline.rewards), list(wanted), workers),
        notes=(*score.pipeline.notes, f"{launch.count} reward workers call {', '.join(wanted)}"),
    )
    exits = ExitStack()
    if ranks.is_first:
        exits.callback(files.delete)
    exits.callback(workers.close)
    return exits.close
