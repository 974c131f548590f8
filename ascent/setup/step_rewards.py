"""Rewards for the steps of answers, in a recipe: what a task's verifier says of them, and a process reward model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

from ascent.algorithms import Row
from ascent.config.schema import Config
from ascent.protocols import Score
from ascent.records import Prompt, Rollout, StepReward
from ascent.rewards import Batch, Unscored
from ascent.rewards.steps import AGGREGATES, Decode, ProcessReward, tokens_at
from ascent.setup.policy import load_frozen
from ascent.setup.reward_models import ProcessRewardModel
from ascent.tasks import find_task
from ascent.tasks.reasoning import Reasoning
from ascent.tasks.task import Task

VERIFIER = "verifier"  # the verifier of the built-in task that a prompt comes from
STEPS = "steps"  # what it says of steps, for rows that learn from those
PROCESS_REWARD_MODEL = "process_reward_model"


def verifies_steps(config: Config, row: Row) -> bool:
    """Whether a verifier judges steps: where the row learns from those, and no process reward model gives them."""
    return "step_rewards" in row.needs and PROCESS_REWARD_MODEL not in [
        each.use for each in config.rewards
    ]


def scores_steps(task: Task | Reasoning) -> TypeGuard[Task]:
    return isinstance(task, Task) and task.steps is not None


def refuse_stepless(config: Config, row: Row, prompts: Sequence[Prompt]) -> None:
    """A row that learns from steps, and a verifier whose task scores none: known before anything is sampled."""
    if not verifies_steps(config, row) or VERIFIER not in [each.use for each in config.rewards]:
        return
    names = {each.info.get("task") for each in prompts}
    without = sorted(
        name for name in names if name is not None and not scores_steps(find_task(name))
    )
    if without:
        raise ValueError(
            f"{row.name} learns from a reward at every step, and the verifier of {without[0]} scores no steps; use "
            "data of a task that does, such as running_sum, or a process_reward_model"
        )


def task_of(rollout: Rollout) -> Task | Reasoning | Unscored:
    """The built-in task that a rollout's prompt comes from."""
    name = rollout.prompt.info.get("task")
    if name is None:
        return Unscored("no_task", f"prompt {rollout.prompt.id!r} comes from no built-in task")
    return find_task(name)


class StepVerifier(Batch):
    """What a built-in task says of every step of an answer, at the token that ends the step."""

    def __init__(self, decode: Decode) -> None:
        self._decode = decode

    def score(self, rollouts: Sequence[Rollout]) -> Sequence[Score | Unscored]:
        return [self._one(rollout) for rollout in rollouts]

    def _one(self, rollout: Rollout) -> Score | Unscored:
        task = task_of(rollout)
        if isinstance(task, Unscored):
            return task
        if not scores_steps(task):
            return Unscored("no_steps", f"task {task.name} scores no steps")
        tokens = rollout.turns[-1].completion.tokens
        before = rollout.length - len(tokens)
        judged = task.verify_steps(rollout.prompt, rollout.text)
        places = tokens_at((end for end, _ in judged), rollout.text, tokens, self._decode)
        return [StepReward(before + places[end], value) for end, value in judged]


def process_reward(
    row: Row,
    decode: Decode,
    trust_remote_code: bool = False,
    /,
    *,
    model: str,
    aggregate: str | None = None,
) -> ProcessReward:
    """A process reward model as the row can use it: at the ends of steps, or as one number for an answer.

    Refused before the model is loaded: a row that would not see steps, or would miss them.
    """
    names = ", ".join(AGGREGATES)
    if not isinstance(model, str) or not model:
        raise ValueError(
            f"model={model!r}, but it names the process reward model: a run, a folder or a hub name"
        )
    if aggregate is not None and aggregate not in [*AGGREGATES]:
        raise ValueError(f"aggregate={aggregate!r}, but it must be one of {names}")
    if aggregate is None and not row.places_rewards:
        raise ValueError(
            f"{row.name} learns from one number for an answer, and a process reward model scores every step; say how "
            f"they become one (aggregate: {names}), or use an algorithm that rewards steps, such as grpo_process or ppo"
        )
    if aggregate is not None and "step_rewards" in row.needs:
        raise ValueError(
            f"aggregate={aggregate} makes one number of an answer's steps, but {row.name} learns from the steps; "
            "remove it, or use an algorithm that takes one number, such as grpo"
        )
    judge = load_frozen(model, head="scalar", trust_remote_code=trust_remote_code)
    return ProcessReward(ProcessRewardModel(model, loaded=judge), decode, aggregate)
