"""Warnings: metrics that leave their healthy range, why that matters, and what to do.

A rule warns once its metric is outside the range for `patience` consecutive logged steps, and again only after as many
steps inside. Some bounds are multiples of the mean over the first steps; these rules start after them. Warnings depend
on the metrics alone, so a resumed run replays its history.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ascent.advice import advice_text
from ascent.metrics import healthy

FIRST = 5  # steps whose mean is the base of relative bounds
SOLVED = 0.9  # low entropy is fine at this accuracy

Metrics = Mapping[str, float]


@dataclass(frozen=True)
class Rule:
    """`value` computes the checked number from the metrics, None where they lack it; `reads` names the metrics. A bound
    is the larger of the fixed one and `..._times` the mean of the first steps."""

    name: str
    value: Callable[[Metrics], float | None]
    reads: str
    why: str
    fix: str
    low: float = -math.inf
    high: float = math.inf
    low_times: float | None = None
    high_times: float | None = None
    patience: int = 3
    explains: tuple[str, ...] = ()  # rules that this one suppresses

    @property
    def relative(self) -> bool:
        return self.low_times is not None or self.high_times is not None

    def bounds(self, first: float | None) -> tuple[float, float]:
        return _bound(self.low, self.low_times, first), _bound(self.high, self.high_times, first)

    def range(self) -> str:
        """The healthy range as text."""
        parts = [
            _describe("at least", self.low, self.low_times),
            _describe("at most", self.high, self.high_times),
        ]
        return ", ".join(part for part in parts if part)


@dataclass(frozen=True)
class RunWarning:
    """A metric outside its range."""

    rule: Rule
    step: int
    value: float
    low: float
    high: float

    def record(self) -> dict[str, object]:
        return {
            "name": self.rule.name,
            "reads": self.rule.reads,
            "value": self.value,
            "low": self.low,
            "high": self.high,
            "why": self.rule.why,
            "fix": self.rule.fix,
        }

    def text(self) -> str:
        side = f"below {self.low:.4g}" if self.value < self.low else f"above {self.high:.4g}"
        duration = f" for {self.rule.patience} steps" if self.rule.patience > 1 else ""
        return (
            f"warning {self.rule.name} (step {self.step}): {self.rule.reads} is {self.value:.4g}, {side}{duration}. "
            f"{self.rule.why} {self.rule.fix}"
        )


def _get(name: str) -> Callable[[Metrics], float | None]:
    return lambda metrics: metrics.get(name)


def _clipped(metrics: Metrics) -> float | None:
    sides = [
        metrics[name]
        for name in ("policy/clip_frac_low", "policy/clip_frac_high")
        if name in metrics
    ]
    return math.fsum(sides) if sides else None


def _entropy(metrics: Metrics) -> float | None:
    """None where the task is solved."""
    return None if metrics.get("reward/correct", 0.0) >= SOLVED else metrics.get("policy/entropy")


def _zero_variance(metrics: Metrics) -> float | None:
    """The share of groups with equal rewards; without groups, 1 where all rewards are equal."""
    if "reward/zero_std_frac" in metrics or "reward/std" not in metrics:
        return metrics.get("reward/zero_std_frac")
    return float(metrics["reward/std"] == 0)


def _mismatch(metrics: Metrics) -> float | None:
    """None where a correction accounts for it: stale rollouts are expected to differ."""
    corrected = not {"sampler/is_capped_frac", "sampler/is_rejected_frac"}.isdisjoint(metrics)
    return (
        None
        if corrected and "sampler/staleness" in metrics
        else metrics.get("sampler/logprob_diff")
    )


def _rule(
    name: str,
    reads: str,
    why: str,
    fix: str,
    *,
    value: Callable[[Metrics], float | None] | None = None,
    **more: Any,
) -> Rule:
    """A rule with the healthy range of the registry, unless given. `reads` names the metric, or a sum of two."""
    low, high = healthy(reads.split(" + ")[0])
    return Rule(name, value or _get(reads), reads, why, fix, **{"low": low, "high": high, **more})


CLIP_FRACTION = "clip_fraction"
RULES = (
    _rule(
        "update_too_large",
        "policy/update_kl",
        "The updates of one step changed the policy too much; later changes in length, entropy, truncation and "
        "rewards follow from that.",
        advice_text("learning_rate_too_high"),
        patience=1,
        explains=("entropy", "length", "truncation", "zero_variance"),
    ),
    _rule(
        "sampler_mismatch",
        "sampler/logprob_diff",
        "The sampler's log-probs differ from the trainer's on the same tokens, so training is off-policy.",
        advice_text("sampler_mismatch"),
        value=_mismatch,
    ),
    _rule(
        CLIP_FRACTION,
        "policy/clip_frac_low + policy/clip_frac_high",
        "Many tokens are at the clip bound, where their gradient is 0.",
        "Lower update.learning_rate, update.epochs or update.minibatches.",
        value=_clipped,
    ),
    _rule(
        "approx_kl",
        "policy/approx_kl",
        "The policy is far from the one that sampled, so the samples are off-policy.",
        "Lower update.learning_rate or update.epochs, or set update.target_kl.",
    ),
    _rule(
        "ref_kl",
        "policy/ref_kl",
        "The policy is far from the reference, where reward hacking is likely.",
        f"Read samples (ascent show samples --best). {advice_text('kl_runaway')}",
    ),
    _rule(
        "entropy",
        "policy/entropy",
        "Near 0 the policy stops exploring; growing entropy turns completions into noise.",
        f"Falling: {advice_text('entropy_collapse')} Growing: {advice_text('entropy_explosion')}",
        value=_entropy,
        high_times=3.0,
        patience=5,
    ),
    _rule(
        "length",
        "completion/length_mean",
        "Completions are much shorter or longer than at the start; the reward may favor length.",
        "Read samples, and compare with reward/correct over the same steps.",
        low=0.0,
        low_times=0.25,
        high=0.0,
        high_times=4.0,
    ),
    _rule(
        "truncation",
        "completion/truncated_frac",
        "Many completions are cut by the token budget.",
        advice_text("truncation"),
    ),
    _rule(
        "zero_variance",
        "reward/zero_std_frac",
        "Nearly all groups have equal rewards, all right or all wrong, so there is almost no training signal.",
        f"Easier or harder prompts, partial credit, {advice_text('no_signal')}",
        value=_zero_variance,
        patience=5,
    ),
    _rule(
        "reward_failures",
        "reward/failure_frac",
        "Completions could not be scored and are left out; the counts by reason are reward/failures/REWARD/REASON.",
        "Fix the reward: its first failure was printed.",
        patience=1,
    ),
)


@dataclass
class _RuleState:
    first: list[float] = field(default_factory=list)
    consecutive: int = 0
    outside: bool = False  # as last reported


class Monitor:
    """Applies the rules to the metrics of a run, step by step; `expected` names rules that do not apply."""

    def __init__(self, rules: Sequence[Rule] = RULES, *, expected: Collection[str] = ()) -> None:
        self._rules = {rule: _RuleState() for rule in rules if rule.name not in expected}
        self._suppressed: dict[
            str, int
        ] = {}  # rule -> training steps for which it stays suppressed

    def update(self, step: int, metrics: Metrics) -> list[RunWarning]:
        """The new warnings of this step."""
        found = [
            self._check(rule, state, step, rule.value(metrics))
            for rule, state in self._rules.items()
        ]
        warnings = [
            each for each in found if each is not None and not self._suppressed.get(each.rule.name)
        ]
        for rule, state in self._rules.items():
            if rule.value(metrics) is not None:  # a step that trained
                left = {
                    name: FIRST if state.outside else self._suppressed.get(name, 0) - 1
                    for name in rule.explains
                }
                self._suppressed |= {name: max(0, steps) for name, steps in left.items()}
        return warnings

    def _check(
        self, rule: Rule, state: _RuleState, step: int, value: float | None
    ) -> RunWarning | None:
        if value is None or math.isnan(value):
            return None
        if rule.relative and len(state.first) < FIRST:
            state.first.append(value)
            return None
        low, high = rule.bounds(math.fsum(state.first) / len(state.first) if state.first else None)
        outside = not low <= value <= high
        state.consecutive = state.consecutive + 1 if outside != state.outside else 0
        if state.consecutive < rule.patience:
            return None
        state.outside, state.consecutive = outside, 0
        return RunWarning(rule, step, value, low, high) if outside else None


def _bound(fixed: float, times: float | None, first: float | None) -> float:
    return fixed if times is None or first is None else max(fixed, times * first)


def _describe(side: str, fixed: float, times: float | None) -> str:
    if times is None:
        return "" if math.isinf(fixed) else f"{side} {fixed:g}"
    start = f"{times:g} times the first {FIRST} steps' mean"
    return f"{side} {start}" if fixed <= 0 else f"{side} {fixed:g} or {start}, whichever is more"
