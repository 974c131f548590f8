"""From the recipe's list of rewards to a function that gives rollouts their rewards."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ascent.build.effects import REWARD_MODEL
from ascent.build.plan import Plan
from ascent.build.serving import RewardModel
from ascent.protocols import Score
from ascent.records import Rollout
from ascent.rewards import Batch, Unscored, find
from ascent.rewards.calls import score_all
from ascent.rewards.combine import Combination, Term
from ascent.rewards.outcome import Tally
from ascent.rewards.registry import Reward
from ascent.rewards.scored import Scored
from ascent.tasks import TASKS, find_task

VERIFIER = "verifier"  # the verifier of the built-in task that a prompt comes from
TIMEOUT_SECONDS = 60.0


class Verifier(Batch):
    """What a built-in task itself says of an answer. Being right is what counts; the other parts are shown."""

    weights = {  # noqa: RUF012 - as declared by the base class
        name: 0.0 for task in TASKS.values() for name in task.utility if name != "correct"
    }

    def score(self, rollouts: Sequence[Rollout]) -> Sequence[Score | Unscored]:
        return [self._one(rollout) for rollout in rollouts]

    def _one(self, rollout: Rollout) -> Score | Unscored:
        name = rollout.prompt.info.get("task")
        if name is None:
            return Unscored("no_task", f"prompt {rollout.prompt.id!r} comes from no built-in task")
        parts = find_task(name).verify(rollout.prompt, rollout.text)
        return {part: value for part, value in parts.items() if part == "correct" or part in self.weights}


class ModelScorer:
    """A reward model behind `protocols.Scorer`."""

    def __init__(self, model: str) -> None:
        self._model = RewardModel(model)

    def score(self, rollouts: Sequence[Rollout]) -> Sequence[float | None]:
        asked = [
            ([{"role": each.role, "content": each.content} for each in rollout.prompt.messages], rollout.text)
            for rollout in rollouts
        ]
        return self._model(asked)


def rewards_of(plan: Plan) -> tuple[dict[str, Reward], Combination]:
    """Every reward by name, and how they add up. Without a list, the reward model alone."""
    config = plan.config
    found: dict[str, Reward] = {}
    terms = []
    for use, weight in [(each.use, each.weight) for each in config.rewards] or [(REWARD_MODEL, 1.0)]:
        reward = _reward(use, config.model.reward_model)
        name = use.rpartition(":")[2] or use
        found[name] = reward
        terms.append(Term.of(name, reward, weight=weight))
    return found, Combination(tuple(terms))


def _reward(use: str, reward_model: str | None) -> Reward:
    if use == VERIFIER:
        return Verifier()
    if use == REWARD_MODEL:
        assert reward_model is not None, "resolve refuses a recipe without its reward model"
        return Scored(scorer=ModelScorer(reward_model))
    return find(use)


def scorer_of(plan: Plan, tally: Tally) -> Callable[[Sequence[Rollout]], list[Rollout]]:
    """Rollouts in, the same rollouts with rewards out; failures are counted in `tally` by name."""
    rewards, combination = rewards_of(plan)

    def scored(rollouts: Sequence[Rollout]) -> list[Rollout]:
        outcomes = score_all(rewards, rollouts, timeout=TIMEOUT_SECONDS, tally=tally)
        return [combination.apply(rollout, each) for rollout, each in zip(rollouts, outcomes, strict=True)]

    return scored
