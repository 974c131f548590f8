"""From the recipe's list of rewards to a function that gives rollouts their rewards."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from ascent.config import schema
from ascent.metrics import is_registered
from ascent.parallel.ranks import SINGLE, Ranks
from ascent.plan.resolve import Plan
from ascent.plan.unused_keys import OF_THE_TRAINER, REWARD_MODEL
from ascent.plugins import check_options
from ascent.protocols import Score
from ascent.records import Rollout
from ascent.rewards import Batch, Unscored, find
from ascent.rewards.calls import CallOptions
from ascent.rewards.combine import Combination, Gate, Term
from ascent.rewards.model_reward import ModelReward
from ascent.rewards.outcome import Tally
from ascent.rewards.registry import BUILT_IN, Reward, bind, check, signature_taken
from ascent.rewards.steps import Decode
from ascent.rollouts.score import ENV, RewardPipeline, Scorer
from ascent.setup.objects import is_object, label_of
from ascent.setup.reward_models import RewardModel
from ascent.setup.step_rewards import (
    PROCESS_REWARD_MODEL,
    STEPS,
    VERIFIER,
    StepVerifier,
    process_reward,
    task_of,
    verifies_steps,
)
from ascent.tasks import TASKS

TIMEOUT_SECONDS = 60.0
OF_STEPS = ("timeout", "on_error")  # beside a verifier of steps
OF_A_TERM = ("name", "weights", "gate", "clip", *OF_STEPS)  # beside a reward's own options


class Verifier(Batch):
    """What a built-in task itself says of an answer. Being right is what counts; the other parts are shown."""

    weights = {  # noqa: RUF012 - as declared by the base class
        name: 0.0 for task in TASKS.values() for name in task.utility if name != "correct"
    }

    def score(self, rollouts: Sequence[Rollout]) -> Sequence[Score | Unscored]:
        return [self._one(rollout) for rollout in rollouts]

    def _one(self, rollout: Rollout) -> Score | Unscored:
        task = task_of(rollout)
        if isinstance(task, Unscored):
            return task
        parts = task.verify(rollout.prompt, rollout.text)
        return {
            part: value
            for part, value in parts.items()
            if part == "correct" or part in self.weights
        }


class ModelScorer:
    """A reward model behind `protocols.Scorer`. With `together`, a step's rollouts go through it in packed batches."""

    def __init__(
        self, model: str, *, together: bool = False, trust_remote_code: bool = False
    ) -> None:
        found = RewardModel(model, trust_remote_code=trust_remote_code)
        self._scores = found.together if together else found

    def score(self, rollouts: Sequence[Rollout]) -> Sequence[float | None]:
        asked = [
            ([vars(each) for each in rollout.prompt.messages], rollout.text) for rollout in rollouts
        ]
        return self._scores(asked)


class EnvReward(Batch):
    """What the environment itself says of an episode."""

    def score(self, rollouts: Sequence[Rollout]) -> Sequence[Score | Unscored]:
        return [self._one(rollout) for rollout in rollouts]

    def _one(self, rollout: Rollout) -> Score | Unscored:
        if rollout.episode is None:
            return Unscored("no_env", "the recipe has no env")
        parts = rollout.episode.parts
        return (
            dict(parts)
            if parts
            else Unscored("no_verdict", "the environment gives none; use another reward")
        )


def names_of(plan: Plan) -> list[str]:
    """What the recipe's rewards are called, in their order."""
    return [name for each in _listed(plan) for name in _called(each, _scores_steps(plan, each))]


def rewards_for_workers(plan: Plan) -> dict[str, dict[str, Any]]:
    """The rewards that may run in other processes, by name, as a worker finds them."""
    return {
        _called(each, False)[0]: {"use": each.use, "options": _own_options(each)}
        for each in _listed(plan)
        if each.use not in OF_THE_TRAINER and each.use not in plan.objects
    }


def _own_options(each: schema.Reward) -> dict[str, Any]:
    return {key: value for key, value in each.options.items() if key not in OF_A_TERM}


def check_rewards(plan: Plan) -> None:
    """ValueError for a name or an option that is wrong; no reward is made."""
    for place, each in enumerate(_listed(plan)):
        if each.use not in OF_THE_TRAINER and each.use not in plan.objects:
            try:
                check(each.use, **_own_options(each))
            except ValueError as error:
                raise ValueError(f"rewards[{place}]: {error}") from error


def rewards_of(plan: Plan, text: Decode | None = None) -> RewardPipeline:
    """Without a list, the reward model alone.

    A row that learns from steps has the verifier score steps; what it says of the whole answer is shown beside them.
    Next to a process reward model, which gives the steps, the verifier judges the whole answer.
    """
    found: dict[str, Reward] = {}
    rules: dict[str, CallOptions] = {}
    terms: list[Term] = []
    notes: list[str] = []
    with ExitStack() as undo:  # a reward that is refused closes those made before it
        for place, each in enumerate(_listed(plan)):
            options = each.options
            own = {key: options.pop(key) for key in OF_A_TERM if key in options}
            stepwise = text is not None and _scores_steps(plan, each)
            try:  # what is wrong here is the value of a key, and the message begins with the key
                rule = CallOptions(own.get("timeout", TIMEOUT_SECONDS), own.get("on_error", "bugs"))
                _refuse_unfit(own)
                if stepwise:
                    _refuse_idle(own, plan.row.name)
            except ValueError as error:
                raise ValueError(f"rewards[{place}].{error}") from error
            try:
                names = _called(each, stepwise)
                twice = next((name for name in names if name in found), None)
                if twice is not None:
                    way = (
                        "use the verifier once, and other names beside it"
                        if stepwise
                        else "give one another `name`"
                    )
                    raise ValueError(f"two rewards are called {twice}; {way}")
                # reward/correct is the mean of a reward of that name, so the two are one metric.
                metric = next(
                    (n for n in names if n != "correct" and is_registered(f"reward/{n}")), None
                )
                if metric is not None:
                    raise ValueError(
                        f"a reward is called {metric}, but reward/{metric} is another metric (docs/metrics.md); give "
                        "it another `name`"
                    )
                reward = _reward(plan, each.use, options, text)
                if isinstance(reward, Batch):
                    undo.callback(reward.close)
                if text is not None and stepwise:
                    found |= {STEPS: StepVerifier(text), VERIFIER: reward}
                    terms += [Term(STEPS, each.weight), Term(VERIFIER, 0.0)]
                else:
                    found[names[0]] = reward
                    taken = signature_taken(reward)
                    if taken is not None and each.use not in BUILT_IN:
                        notes.append(f"reward {names[0]}: called with {taken}")
                    terms.append(_term(names[0], reward, each.weight, own))
                rules |= dict.fromkeys(names, rule)
            except ValueError as error:
                raise ValueError(f"rewards[{place}]: {error}") from error
        undo.pop_all()
    return RewardPipeline(found, rules, Combination(tuple(terms)), tuple(notes))


def _listed(plan: Plan) -> Sequence[schema.Reward]:
    return plan.config.rewards or [schema.Reward(use=REWARD_MODEL)]


def _scores_steps(plan: Plan, each: schema.Reward) -> bool:
    return each.use == VERIFIER and verifies_steps(plan.config, plan.row)


def _called(each: schema.Reward, stepwise: bool) -> tuple[str, ...]:
    if stepwise:
        return (STEPS, VERIFIER)
    own = label_of(each.use) if is_object(each.use) else each.use.rpartition(":")[2] or each.use
    return (each.options.get("name", own),)


def _refuse_unfit(own: Mapping[str, Any]) -> None:
    """Values of the keys beside a reward that no term could have."""
    if "name" in own and (
        not isinstance(own["name"], str) or not own["name"] or "/" in own["name"]
    ):
        raise ValueError(
            f"name={own['name']!r}, but a name is text, not empty, and holds no /, which splits off parts"
        )
    weights: Any = own.get("weights", {})
    gate: Any = own.get("gate")
    clip: Any = own.get("clip")
    _refuse_all_but_a_section("weights", weights)
    if not all(isinstance(part, str) and _is_finite(weight) for part, weight in weights.items()):
        raise ValueError(
            f"weights={weights!r}, but it gives names of parts finite numbers, as in {{correct: 0.5}}"
        )
    if "gate" in own:
        _refuse_all_but_a_section("gate", gate)
        if set(gate) != {"part", "at_least"}:
            raise ValueError(f"gate={gate!r}, but a gate is {{part: NAME, at_least: NUMBER}}")
        if not isinstance(gate["part"], str):
            raise ValueError(
                f"gate.part={gate['part']!r}, but it is the name of a reward or REWARD/PART"
            )
        if not _is_finite(gate["at_least"]):
            raise ValueError(
                f"gate.at_least={gate['at_least']!r}, but it is a finite number that the part must reach"
            )
    if "clip" in own:
        if not isinstance(clip, list | tuple) or len(clip) != 2 or not all(map(_is_number, clip)):
            raise ValueError(f"clip={clip!r}, but it is two numbers, as in [-1, 1]")
        if not clip[0] < clip[1]:
            raise ValueError(f"clip={clip!r}, but the lower bound must lie below the upper one")


def _refuse_idle(own: Mapping[str, Any], row: str) -> None:
    idle = next((key for key in own if key not in OF_STEPS), None)
    if idle is not None:
        raise ValueError(
            f"{idle}={own[idle]!r} has no effect: {row} learns from the verifier's steps, which are added up as they "
            f"are; beside them stand {', '.join(('weight', *OF_STEPS))}; remove it"
        )


def _refuse_all_but_a_section(key: str, value: Any) -> None:
    if not isinstance(value, Mapping):
        raise ValueError(f"{key}={value!r}, but it must be a section with keys of its own")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_finite(value: Any) -> bool:
    return _is_number(value) and math.isfinite(value)


def _term(name: str, reward: Reward, weight: float, own: Mapping[str, Any]) -> Term:
    term = Term.of(name, reward, weight=weight)
    return replace(
        term,
        part_weights={**term.part_weights, **own.get("weights", {})},
        gate=Gate(**own["gate"]) if "gate" in own else None,
        clip=tuple(own["clip"]) if "clip" in own else None,
    )


def _reward(plan: Plan, use: str, options: dict[str, Any], text: Decode | None) -> Reward:
    if use in (VERIFIER, ENV):
        check_options(f"reward {use}", Verifier, options)
        return Verifier() if use == VERIFIER else EnvReward()
    if use == REWARD_MODEL:
        check_options(f"reward {use}", Verifier, options)
        assert plan.config.model.reward_model is not None, (
            "resolve refuses a recipe without its reward model"
        )
        trusted = plan.config.model.trust_remote_code
        return ModelReward(
            scorer=ModelScorer(
                plan.config.model.reward_model, together=True, trust_remote_code=trusted
            )
        )
    if use == PROCESS_REWARD_MODEL:
        check_options(f"reward {use}", process_reward, options)
        assert text is not None, "whoever samples can decode what was sampled"
        return process_reward(plan.row, text, plan.config.model.trust_remote_code, **options)
    if use in plan.objects:
        return bind(label_of(use), plan.objects[use].value, options)
    return find(use, **options)


def scorer_of(
    plan: Plan, tally: Tally, text: Decode | None = None, *, ranks: Ranks = SINGLE
) -> Scorer:
    """Who scores rollouts, as the recipe says. Failures are counted in `tally` by name.

    `text` decodes sampled tokens; rewards at steps need it to know which token ends a step.
    """
    return Scorer(rewards_of(plan, text), tally, ranks)
