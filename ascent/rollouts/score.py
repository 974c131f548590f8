"""Scores rollouts while others are still being sampled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from contextlib import ExitStack
from dataclasses import dataclass, replace

from ascent.parallel.ranks import SINGLE, Ranks
from ascent.progress import phase
from ascent.records import Prompt, Rollout
from ascent.rewards import Batch, Unscored
from ascent.rewards.calls import CallOptions, ScoringBatch
from ascent.rewards.combine import Combination
from ascent.rewards.outcome import RewardFailed, Tally, failed_outcome
from ascent.rewards.registry import Reward
from ascent.rollouts.generate import RolloutStream

ENV = "env"  # the reward that environments give


@dataclass(frozen=True)
class RewardPipeline:
    """The rewards by name, how to call each, and how they are combined."""

    rewards: Mapping[str, Reward]
    rules: Mapping[str, CallOptions]
    combination: Combination
    notes: tuple[str, ...] = ()

    def close(self) -> None:
        """Close every reward, even if one fails."""
        with ExitStack() as stack:
            for reward in self.rewards.values():
                if isinstance(reward, Batch):
                    stack.callback(reward.close)


class Scorer:
    """Adds rewards to rollouts, each as it completes; returns them in order, those of all ranks."""

    def __init__(self, pipeline: RewardPipeline, tally: Tally, ranks: Ranks = SINGLE) -> None:
        self.pipeline, self._tally, self._ranks = pipeline, tally, ranks
        self._strict = {name for name, rule in pipeline.rules.items() if rule.on_error != "never"}

    def __call__(self, rollouts: RolloutStream) -> list[Rollout]:
        own = score(self.pipeline, rollouts, self._tally), self._tally.examples
        scored, examples = zip(*self._ranks.gather(own, "the scored rollouts"), strict=True)
        found = [rollout for part in scored for rollout in part]
        self._tally.merge(examples)
        check_scored_fraction(found, self._strict, self._tally.examples)
        return found

    @property
    def notes(self) -> tuple[str, ...]:
        """How functions are called."""
        return self.pipeline.notes

    def problem(self, prompt: Prompt) -> str | None:
        """Why completions of a prompt cannot be scored, or None. Rewards with `on_error: never` are not asked."""
        for name, reward in self.pipeline.rewards.items():
            if isinstance(reward, Batch) and name in self._strict:
                try:
                    reward.check(prompt)
                except Unscored as unscored:
                    return f"reward {name}: {unscored}"
        return None

    def refuse_unscorable(self, name: str, prompts: Sequence[Prompt]) -> None:
        """ValueError if no prompt of a dataset can be scored, for one reason: given once and not for every row."""
        first = self.problem(prompts[0]) if len(prompts) > 1 else None
        if first is not None and all(self.problem(each) == first for each in prompts[1:]):
            raise ValueError(f"{name}: none of {len(prompts)} prompts can be scored: {first}")

    def close(self) -> None:
        self.pipeline.close()


def score(pipeline: RewardPipeline, rollouts: RolloutStream, tally: Tally) -> list[Rollout]:
    """Score rollouts as they complete. Rollouts whose environment failed stay unscored."""
    found: dict[int, Rollout] = {}
    scoring = ScoringBatch(pipeline.rewards, pipeline.rules, len(rollouts))
    try:
        for index, rollout in rollouts.as_completed():
            if rollout.episode is not None and rollout.episode.failed:
                found[index] = replace(rollout, failures={ENV: rollout.episode.ended})
                scoring.skip(index)
            else:
                found[index] = rollout
                scoring.add(index, rollout)
        with phase("scoring", len(rollouts), "rollouts", count=scoring.num_scored):
            outcomes = scoring.finish(tally)
    finally:
        scoring.stop()
    scored = [
        pipeline.combination.apply(found[index], own) if own else found[index]
        for index, own in enumerate(outcomes)
    ]
    for rollout in scored:
        if rollout.episode is not None and rollout.episode.failed:
            tally.add(
                ENV, rollout, failed_outcome(rollout.episode.ended, rollout.episode.detail), "never"
            )
    return scored


def check_scored_fraction(
    rollouts: Sequence[Rollout], strict: Set[str], examples: Mapping[tuple[str, str], str]
) -> None:
    """RewardFailed if more than half of a batch is unscored (docs/decisions/0007). Only `strict` rewards count.

    `examples` are the first failures, by reward and kind.
    """
    reasons: Counter[str] = Counter()
    unscored = 0
    for each in [each for each in rollouts if not each.scored]:
        broken = each.episode is not None and each.episode.failed
        why = [
            (name, kind)
            for name, kind in each.failures.items()
            if broken or name.partition("/")[0] in strict
        ]
        unscored += bool(why)
        reasons.update(f"{name}: {kind}" for name, kind in why)
    if 2 * unscored > len(rollouts):
        counts = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())
        name, _, kind = reasons.most_common(1)[0][0].partition(": ")
        first = examples.get((name, kind))
        raise RewardFailed(
            f"{unscored} of {len(rollouts)} rollouts could not be scored ({counts}); "
            + (f"the first was {first}; " if first else "")
            + "fix what failed, or set `on_error: never` for the reward to go on with what is scored"
        )
