"""From the recipe's list of rewards to a function that gives rollouts their rewards."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from ascent.config import schema
from ascent.plan.resolve import Plan
from ascent.plan.unused_keys import REWARD_MODEL
from ascent.plugins import check_options
from ascent.protocols import Score
from ascent.records import Prompt, Rollout
from ascent.rewards import Batch, Unscored, find
from ascent.rewards.calls import Rule, Scoring
from ascent.rewards.combine import Combination, Gate, Term
from ascent.rewards.outcome import RewardFailed, Tally, failed
from ascent.rewards.registry import Reward
from ascent.rewards.scored import Scored
from ascent.rewards.steps import Decode
from ascent.rollouts.generate import Arriving
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

ENV = "env"  # what the environment itself says
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
        return {part: value for part, value in parts.items() if part == "correct" or part in self.weights}


class ModelScorer:
    """A reward model behind `protocols.Scorer`. With `together`, a step's rollouts go through it in packed batches."""

    def __init__(self, model: str, *, together: bool = False, trust_remote_code: bool = False) -> None:
        found = RewardModel(model, trust_remote_code=trust_remote_code)
        self._scores = found.together if together else found

    def score(self, rollouts: Sequence[Rollout]) -> Sequence[float | None]:
        asked = [
            ([{"role": each.role, "content": each.content} for each in rollout.prompt.messages], rollout.text)
            for rollout in rollouts
        ]
        return self._scores(asked)


class OfEnv(Batch):
    """What the environment itself says of an episode."""

    def score(self, rollouts: Sequence[Rollout]) -> Sequence[Score | Unscored]:
        return [self._one(rollout) for rollout in rollouts]

    def _one(self, rollout: Rollout) -> Score | Unscored:
        if rollout.episode is None:
            return Unscored("no_env", "the recipe has no env")
        parts = rollout.episode.parts
        return dict(parts) if parts else Unscored("no_verdict", "the environment gives none; use another reward")


@dataclass(frozen=True)
class Rewarding:
    """Every reward by name, the rules for calling each, and how they add up."""

    rewards: Mapping[str, Reward]
    rules: Mapping[str, Rule]
    combination: Combination

    def close(self) -> None:
        """Give back what rewards hold (processes, connections): of all of them, whichever fails."""
        with ExitStack() as held:
            for reward in self.rewards.values():
                if isinstance(reward, Batch):
                    held.callback(reward.close)


def names_of(plan: Plan) -> list[str]:
    """What the recipe's rewards are called, in their order."""
    return [name for each in _listed(plan) for name in _called(each, _scores_steps(plan, each))]


def rewards_of(plan: Plan, text: Decode | None = None) -> Rewarding:
    """Without a list, the reward model alone.

    A row that learns from steps has the verifier score steps; what it says of the whole answer is shown beside them.
    Next to a process reward model, which gives the steps, the verifier judges the whole answer.
    """
    found: dict[str, Reward] = {}
    rules: dict[str, Rule] = {}
    terms: list[Term] = []
    with ExitStack() as undo:  # a reward that is refused closes those made before it
        for place, each in enumerate(_listed(plan)):
            options = each.options
            own = {key: options.pop(key) for key in OF_A_TERM if key in options}
            stepwise = text is not None and _scores_steps(plan, each)
            try:  # what is wrong here is the value of a key, and the message begins with the key
                rule = Rule(own.get("timeout", TIMEOUT_SECONDS), own.get("on_error", "bugs"))
                _refuse_unfit(own)
                if stepwise:
                    _refuse_idle(own, plan.row.name)
            except ValueError as error:
                raise ValueError(f"rewards[{place}].{error}") from error
            try:
                names = _called(each, stepwise)
                twice = next((name for name in names if name in found), None)
                if twice is not None:
                    way = "use the verifier once, and other names beside it" if stepwise else "give one another `name`"
                    raise ValueError(f"two rewards are called {twice}; {way}")
                reward = _reward(plan, each.use, options, text)
                if isinstance(reward, Batch):
                    undo.callback(reward.close)
                if text is not None and stepwise:
                    found |= {STEPS: StepVerifier(text), VERIFIER: reward}
                    terms += [Term(STEPS, each.weight), Term(VERIFIER, 0.0)]
                else:
                    found[names[0]] = reward
                    terms.append(_term(names[0], reward, each.weight, own))
                rules |= dict.fromkeys(names, rule)
            except ValueError as error:
                raise ValueError(f"rewards[{place}]: {error}") from error
        undo.pop_all()
    return Rewarding(found, rules, Combination(tuple(terms)))


def _listed(plan: Plan) -> Sequence[schema.Reward]:
    return plan.config.rewards or [schema.Reward(use=REWARD_MODEL)]


def _scores_steps(plan: Plan, each: schema.Reward) -> bool:
    return each.use == VERIFIER and verifies_steps(plan.config, plan.row)


def _called(each: schema.Reward, stepwise: bool) -> tuple[str, ...]:
    return (STEPS, VERIFIER) if stepwise else (each.options.get("name", each.use.rpartition(":")[2] or each.use),)


def _refuse_unfit(own: Mapping[str, Any]) -> None:
    """Values of the keys beside a reward that no term could have."""
    if "name" in own and (not isinstance(own["name"], str) or not own["name"] or "/" in own["name"]):
        raise ValueError(f"name={own['name']!r}, but a name is text, not empty, and holds no /, which splits off parts")
    weights: Any = own.get("weights", {})
    gate: Any = own.get("gate")
    clip: Any = own.get("clip")
    _refuse_all_but_a_section("weights", weights)
    if not all(isinstance(part, str) and _is_finite(weight) for part, weight in weights.items()):
        raise ValueError(f"weights={weights!r}, but it gives names of parts finite numbers, as in {{correct: 0.5}}")
    if "gate" in own:
        _refuse_all_but_a_section("gate", gate)
        if set(gate) != {"part", "at_least"}:
            raise ValueError(f"gate={gate!r}, but a gate is {{part: NAME, at_least: NUMBER}}")
        if not isinstance(gate["part"], str):
            raise ValueError(f"gate.part={gate['part']!r}, but it is the name of a reward or REWARD/PART")
        if not _is_finite(gate["at_least"]):
            raise ValueError(f"gate.at_least={gate['at_least']!r}, but it is a finite number that the part must reach")
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
        return Verifier() if use == VERIFIER else OfEnv()
    if use == REWARD_MODEL:
        check_options(f"reward {use}", Verifier, options)
        assert plan.config.model.reward_model is not None, "resolve refuses a recipe without its reward model"
        trusted = plan.config.model.trust_remote_code
        return Scored(scorer=ModelScorer(plan.config.model.reward_model, together=True, trust_remote_code=trusted))
    if use == PROCESS_REWARD_MODEL:
        check_options(f"reward {use}", process_reward, options)
        assert text is not None, "whoever samples can decode what was sampled"
        return process_reward(plan.row, text, plan.config.model.trust_remote_code, **options)
    return find(use, **options)


class Scorer:
    """Rollouts in, the same rollouts with rewards out, in the order of their places; each is scored as it arrives."""

    def __init__(self, made: Rewarding, tally: Tally) -> None:
        self._made, self._tally = made, tally
        self._strict = {name for name, rule in made.rules.items() if rule.on_error != "never"}

    def __call__(self, rollouts: Arriving) -> list[Rollout]:
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


def scorer_of(plan: Plan, tally: Tally, text: Decode | None = None) -> Scorer:
    """Who scores rollouts, as the recipe says. Failures are counted in `tally` by name.

    `text` decodes sampled tokens; rewards at steps need it to know which token ends a step.
    """
    return Scorer(rewards_of(plan, text), tally)


def score(made: Rewarding, rollouts: Arriving, tally: Tally) -> list[Rollout]:
    """Rewards at work while others are still being sampled. Where the environment failed there is nothing to judge."""
    found: dict[int, Rollout] = {}
    scoring = Scoring(made.rewards, made.rules, len(rollouts))
    try:
        for place, rollout in rollouts.as_they_come():
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
            tally.add(ENV, rollout, failed(rollout.episode.ended, rollout.episode.detail), "never")
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
