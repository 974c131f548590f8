"""Combine outcomes into a rollout's reward: clip, gate, weight, add, clip the total. Parts keep their names.

Worked example: mathematics 1 (weight 1), format 1 (weight .2, gated on mathematics >= 1), length -.5 (weight .1):
1 + .2 - .05 = 1.15. With mathematics 0 the gate closes: 0 + 0 - .05 = -.05.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ascent.records import Rollout, StepReward
from ascent.rewards.outcome import Outcome
from ascent.rewards.registry import Batch, Reward


@dataclass(frozen=True)
class Gate:
    """The term counts only where another part is at least a value, so an easy reward cannot replace a hard one (the
    conditioning of GDPO)."""

    part: str
    at_least: float


@dataclass(frozen=True)
class Term:
    """One reward in the total. `part_weights` (`other_weight` for parts not listed) multiply `weight`; a part with
    weight 0 is only reported."""

    name: str
    weight: float = 1.0
    part_weights: Mapping[str, float] = field(default_factory=dict)
    gate: Gate | None = None
    clip: tuple[float, float] | None = None
    other_weight: float = 1.0

    def __post_init__(self) -> None:
        if not self.name or "/" in self.name:
            raise ValueError(
                f"a reward named {self.name!r}; names are not empty and hold no /, which splits off parts"
            )
        for weight in (self.weight, *self.part_weights.values()):
            if not math.isfinite(weight):
                raise ValueError(f"reward {self.name}: weight {weight}, but it must be finite")
        _check_clip(f"reward {self.name}", self.clip)

    @classmethod
    def of(cls, name: str, reward: Reward, *, weight: float = 1.0) -> Term:
        """A term with the reward's default weights."""
        if not isinstance(reward, Batch):
            return cls(name, weight)
        return cls(name, weight, reward.weights, other_weight=reward.other_weight)

    def weight_of(self, part: str) -> float:
        return self.weight * self.part_weights.get(part, self.other_weight)

    def full_name(self, part: str) -> str:
        return f"{self.name}/{part}" if part else self.name


@dataclass(frozen=True)
class Combination:
    """All terms, in order, and bounds on their sum."""

    terms: tuple[Term, ...]
    clip: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        names = [term.name for term in self.terms]
        duplicate = next((name for name in names if names.count(name) > 1), None)
        if duplicate is not None:
            raise ValueError(
                f"two rewards are named {duplicate}; parts need distinct names, so rename one"
            )
        for term in self.terms:
            if term.gate is not None and term.gate.part.partition("/")[0] not in names:
                raise ValueError(
                    f"reward {term.name} is gated on {term.gate.part}, but the rewards are {', '.join(names)}"
                )
            if term.gate is not None and term.gate.part.partition("/")[0] == term.name:
                raise ValueError(
                    f"reward {term.name} is gated on a part of itself; gate it on another reward"
                )
        _check_clip("the total", self.clip)

    def apply(self, rollout: Rollout, outcomes: Mapping[str, Outcome]) -> Rollout:
        """The rollout with reward, parts and steps. An unscored part with a weight leaves the total unscored.

        With step rewards, `steps` adds up to `reward`: what has no steps, and what clipping changes, is at the last
        token. That step is there even if it is 0: whether a rollout has one more step must not depend on its score.
        Parts are reported after clipping and gating, before weighting.
        """
        clipped = {
            term.full_name(part): _clip(value, term.clip)
            for term in self.terms
            for part, value in _parts(outcomes[term.name]).items()
        }
        shown, weights, total, steps = dict(clipped), {}, 0.0, []
        unscored, has_rest = False, self.clip is not None
        for term in self.terms:
            factor = _gate_factor(term.gate, clipped)
            for part in _parts(outcomes[term.name]):
                name, weight = term.full_name(part), term.weight_of(part)
                value = clipped[name]
                shown[name] = None if value is None or factor is None else factor * value
                if weight == 0:
                    continue
                if outcomes[term.name].failure is None:
                    weights[name] = weight
                if shown[name] is None:
                    unscored = True
                    continue
                total += weight * shown[name]  # type: ignore[operator]
                has_rest = has_rest or not outcomes[term.name].steps or term.clip is not None
                steps += [
                    StepReward(step.token, weight * (factor or 0.0) * step.value)
                    for step in outcomes[term.name].steps
                ]
        rollout = replace(rollout, parts=shown, weights=weights, failures=_failures(outcomes))
        if unscored:
            return replace(rollout, reward=None, steps=())
        if self.clip is not None:
            total = min(max(total, self.clip[0]), self.clip[1])
        return replace(
            rollout, reward=total, steps=_merge_steps(steps, total, rollout.length, has_rest)
        )


def _failures(outcomes: Mapping[str, Outcome]) -> dict[str, str]:
    """The rewards and parts that are unscored, and the kind of failure."""
    found = {name: each.failure.kind for name, each in outcomes.items() if each.failure is not None}
    missing = [
        (name, part)
        for name, each in outcomes.items()
        for part, value in each.parts.items()
        if value is None
    ]
    return found | {f"{name}/{part}": "none" for name, part in missing}


def _parts(outcome: Outcome) -> Mapping[str, float | None]:
    return {"": None} if outcome.failure is not None else outcome.parts


def _clip(value: float | None, clip: tuple[float, float] | None) -> float | None:
    return value if value is None or clip is None else min(max(value, clip[0]), clip[1])


def _gate_factor(gate: Gate | None, parts: Mapping[str, float | None]) -> float | None:
    """1 if the gate is open, 0 if it is closed, None if unknown."""
    if gate is None:
        return 1.0
    if gate.part not in parts:
        if (
            gate.part.partition("/")[0] in parts
        ):  # the whole reward failed, so its parts are unknown
            return None
        raise ValueError(f"a reward is gated on {gate.part}, but the parts are {', '.join(parts)}")
    value = parts[gate.part]
    return None if value is None else float(value >= gate.at_least)


def _merge_steps(
    steps: Sequence[StepReward], total: float, length: int, has_rest: bool
) -> tuple[StepReward, ...]:
    """One step per token, which add up to `total`. The rest is a step at the last token; without one the difference is
    rounding, and belongs to the last step."""
    if not steps:
        return ()
    by_token: dict[int, float] = {}
    for step in steps:
        by_token[step.token] = by_token.get(step.token, 0.0) + step.value
    rest, last = total - math.fsum(by_token.values()), length - 1 if has_rest else max(by_token)
    by_token[last] = by_token.get(last, 0.0) + rest
    return tuple(StepReward(token, value) for token, value in sorted(by_token.items()))


def _check_clip(owner: str, clip: tuple[float, float] | None) -> None:
    if clip is not None and not clip[0] < clip[1]:
        raise ValueError(f"{owner}: clip={clip}, but the lower bound must lie below the upper one")
