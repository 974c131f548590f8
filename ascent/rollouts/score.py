"""Rollouts get their rewards while others are still being sampled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from contextlib import ExitStack
from dataclasses import dataclass, replace

from ascent.records import Prompt, Rollout
from ascent.rewards import Batch, Unscored
from ascent.rewards.calls import CallOptions, ScoringBatch
from ascent.rewards.combine import Combination
from ascent.rewards.outcome import RewardFailed, Tally, failed_outcome
from ascent.rewards.registry import Reward
from ascent.rollouts.generate import RolloutStream

ENV = "env"  # what the environment itself says


@dataclass(frozen=True)
class RewardPipeline:
    """Every reward by name, the rules for calling each, and how they add up."""

    rewards: Mapping[str, Reward]
    rules: Mapping[str, CallOptions]
    combination: Combination

    def close(self) -> None:
        """Give back what rewards hold (processes, connections): of all of them, whichever fails."""
        with ExitStack() as held:
            for reward in self.rewards.values():
                if isinstance(reward, Batch):
                    held.callback(reward.close)


class Scorer:
    """Rollouts in, the same rollouts with rewards out, in the order of their places; each is scored as it arrives."""

    def __init__(self, made: RewardPipeline, tally: Tally) -> None:
        self._made, self._tally = made, tally
        self._strict = {name for name, rule in made.rules.items() if rule.on_error != "never"}

    def __call__(self, rollouts: RolloutStream) -> list[Rollout]:
        found = score(self._made, rollouts, self._tally)
        refuse_mostly_unscored(found, self._strict)
        return found

    def problem(self, prompt: Prompt) -> str | None:
        """Why no answer to a prompt could be scored; a reward with `on_error: never` may have nothing to say."""
        for name, reward in self._made.rewards.items():
            if isinstance(reward, Batch) and name in self._strict:
                try:
                    reward.check(prompt)
                except Unscored as unscored:
                    return f"reward {name}: {unscored}"
        return None

    def close(self) -> None:
        self._made.close()


def score(made: RewardPipeline, rollouts: RolloutStream, tally: Tally) -> list[Rollout]:
    """Rewards at work while others are still being sampled. Where the environment failed there is nothing to judge."""
    found: dict[int, Rollout] = {}
    scoring = ScoringBatch(made.rewards, made.rules, len(rollouts))
    try:
        for place, rollout in rollouts.as_completed():
            if rollout.episode is not None and rollout.episode.failed:
                found[place] = replace(rollout, failures={ENV: rollout.episode.ended})
                scoring.skip(place)
            else:
                found[place] = rollout
                scoring.add(place, rollout)
        outcomes = scoring.finish(tally)
    finally:
        scoring.stop()
    scored = [
        made.combination.apply(found[place], said) if said else found[place] for place, said in enumerate(outcomes)
    ]
    for rollout in scored:
        if rollout.episode is not None and rollout.episode.failed:
            tally.add(ENV, rollout, failed_outcome(rollout.episode.ended, rollout.episode.detail), "never")
    return scored


def refuse_mostly_unscored(rollouts: Sequence[Rollout], strict: Set[str]) -> None:
    """More than half of a batch unscored is a broken reward or environment, not bad luck (docs/decisions/0007).

    What a reward outside `strict` could not say counts for nothing here.
    """
    reasons: Counter[str] = Counter()
    unscored = 0
    for each in [each for each in rollouts if not each.scored]:
        broken = each.episode is not None and each.episode.failed
        why = [(name, kind) for name, kind in each.failures.items() if broken or name.partition("/")[0] in strict]
        unscored += bool(why)
        reasons.update(f"{name}: {kind}" for name, kind in why)
    if 2 * unscored > len(rollouts):
        told = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())
        raise RewardFailed(
            f"{unscored} of {len(rollouts)} rollouts could not be scored ({told}); mend what failed, or say "
            "`on_error: never` beside the reward to go on with whatever is scored"
        )
