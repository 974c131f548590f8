"""Numbers that leave their range: which, why that matters, and what to do about it.

A rule speaks after its number has been outside for `patience` logged steps in a row, once; it can speak again after as
many steps inside. Some ranges follow the run: their edges are multiples of the mean over its first steps, and they say
nothing before those are over. All of it is a function of the metrics, so a resumed run reads its own history again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ascent.metrics import healthy

FIRST = 5  # steps whose mean a run is compared with
SOLVED = 0.9  # a policy that is right this often may be sure of itself

Metrics = Mapping[str, float]


@dataclass(frozen=True)
class Rule:
    """`number` reads the metrics, None where they do not have it. An edge is the larger of the fixed one and
    `..._times` the mean of the first steps."""

    name: str
    number: Callable[[Metrics], float | None]
    reads: str
    why: str
    do: str
    low: float = -math.inf
    high: float = math.inf
    low_times: float | None = None
    high_times: float | None = None
    patience: int = 3
    explains: tuple[str, ...] = ()  # rules whose numbers follow from this one: they have nothing to add

    @property
    def relative(self) -> bool:
        return self.low_times is not None or self.high_times is not None

    def edges(self, first: float | None) -> tuple[float, float]:
        return _edge(self.low, self.low_times, first), _edge(self.high, self.high_times, first)

    def range(self) -> str:
        """The range in words."""
        parts = [_words("at least", self.low, self.low_times), _words("at most", self.high, self.high_times)]
        return ", ".join(part for part in parts if part)


@dataclass(frozen=True)
class RunWarning:
    """A number outside its range."""

    rule: Rule
    step: int
    value: float
    low: float
    high: float

    def record(self) -> dict[str, object]:
        return {
            "name": self.rule.name, "reads": self.rule.reads, "value": self.value, "low": self.low, "high": self.high,
            "why": self.rule.why, "do": self.rule.do,
        }  # fmt: skip

    def text(self) -> str:
        edge = f"below {self.low:.4g}" if self.value < self.low else f"above {self.high:.4g}"
        lasting = f" for {self.rule.patience} steps" if self.rule.patience > 1 else ""
        return (
            f"warning {self.rule.name} (step {self.step}): {self.rule.reads} is {self.value:.4g}, {edge}{lasting}. "
            f"{self.rule.why} {self.rule.do}"
        )


def _get(name: str) -> Callable[[Metrics], float | None]:
    return lambda metrics: metrics.get(name)


def _clipped(metrics: Metrics) -> float | None:
    sides = [metrics[name] for name in ("policy/clip_frac_low", "policy/clip_frac_high") if name in metrics]
    return math.fsum(sides) if sides else None


def _entropy(metrics: Metrics) -> float | None:
    """A policy that has learnt its task may be sure; elsewhere, being sure is the end of learning."""
    return None if metrics.get("reward/correct", 0.0) >= SOLVED else metrics.get("policy/entropy")


def _without_signal(metrics: Metrics) -> float | None:
    """The share of groups whose answers are equally good; where nothing is grouped, 1 where all rewards are equal."""
    if "reward/zero_std_frac" in metrics or "reward/std" not in metrics:
        return metrics.get("reward/zero_std_frac")
    return float(metrics["reward/std"] == 0)


def _rule(
    name: str, reads: str, why: str, do: str, *, number: Callable[[Metrics], float | None] | None = None, **more: Any
) -> Rule:
    """A rule whose range is the registry's, unless it says another. `reads` names the metric, or a sum of two."""
    low, high = healthy(reads.split(" + ")[0])
    return Rule(name, number or _get(reads), reads, why, do, **{"low": low, "high": high, **more})


CLIP_FRACTION = "clip_fraction"
RULES = (
    _rule(
        "update_too_large", "policy/update_kl",
        "One step's updates moved the policy so far that it is another one; what follows in length, entropy, "
        "truncation and rewards comes from that.",
        "Lower update.learning_rate (or update.epochs), and start again or resume from a checkpoint before this step.",
        patience=1, explains=("entropy", "length", "truncation", "zero_variance"),
    ),
    _rule(
        "sampler_mismatch", "sampler/logprob_diff",
        "The sampler's log-probs differ from the trainer's on the same tokens, so what is trained is not quite what "
        "was sampled.",
        "Set cells.rollout_correction.use to token_truncate; look at dtype and engine, and at max_staleness.",
    ),
    _rule(
        CLIP_FRACTION, "policy/clip_frac_low + policy/clip_frac_high",
        "Many tokens have moved as far as one step allows, and their gradient is cut off.",
        "Lower update.learning_rate, update.epochs or update.minibatches.",
        number=_clipped,
    ),
    _rule(
        "approx_kl", "policy/approx_kl",
        "The policy moves far from the one that sampled, so its own samples say little about it.",
        "Lower update.learning_rate or update.epochs, or set update.target_kl.",
    ),
    _rule(
        "ref_kl", "policy/ref_kl",
        "The policy has left the reference far behind, which is how rewards get exploited.",
        "Read samples (ascent show samples --best), raise the KL weight, or stop earlier.",
    ),
    _rule(
        "entropy", "policy/entropy",
        "Near 0 the policy says the same every time and stops exploring; growing, it turns into noise.",
        "Falling: a higher cells.policy_loss.high, an entropy bonus, a lower learning rate. Growing: a lower "
        "learning rate.",
        number=_entropy,
        high_times=3.0, patience=5,
    ),
    _rule(
        "length", "completion/length_mean",
        "Answers have become much shorter or longer; reasoning may grow, but rewards may also pay for length.",
        "Read samples, and compare reward/correct over the same steps.", low=0.0, low_times=0.25, high=0.0,
        high_times=4.0,
    ),
    _rule(
        "truncation", "completion/truncated_frac",
        "Answers are cut off by their budget, mostly before they reach their end.",
        "Raise rollouts.max_new_tokens, mask them (cells.filter.not_truncated), or check the model's end token.",
    ),
    _rule(
        "zero_variance", "reward/zero_std_frac",
        "Nearly all groups have answers of one quality, all right or all wrong, so steps teach next to nothing.",
        "Use easier or harder prompts, a larger rollouts.group_size, rollouts.dynamic_sampling_tries, or partial "
        "credit.",
        number=_without_signal,
        patience=5,
    ),
    _rule(
        "reward_failures", "reward/failure_frac",
        "Answers could not be scored and are left out; the counts by reason are reward/failures/REWARD/REASON.",
        "Mend the reward: its first failure was printed when it happened.", patience=1,
    ),
)  # fmt: skip


@dataclass
class _Seen:
    """What one rule remembers."""

    first: list[float] = field(default_factory=list)
    in_a_row: int = 0
    outside: bool = False  # as last said


class Watch:
    """Rules over the metrics of one run, step after step; those named in `expected` are none for this run."""

    def __init__(self, rules: Sequence[Rule] = RULES, *, expected: Collection[str] = ()) -> None:
        self._rules = {rule: _Seen() for rule in rules if rule.name not in expected}
        self._explained: dict[str, int] = {}  # by an earlier warning, and for how many more steps that train

    def see(self, step: int, metrics: Metrics) -> list[RunWarning]:
        """What is to be said after this step."""
        found = [self._one(rule, seen, step, rule.number(metrics)) for rule, seen in self._rules.items()]
        said = [each for each in found if each is not None and not self._explained.get(each.rule.name)]
        for rule, seen in self._rules.items():
            if rule.number(metrics) is not None:  # a step that trained; without one the policy is still the same
                left = {name: FIRST if seen.outside else self._explained.get(name, 0) - 1 for name in rule.explains}
                self._explained |= {name: max(0, steps) for name, steps in left.items()}
        return said

    def _one(self, rule: Rule, seen: _Seen, step: int, value: float | None) -> RunWarning | None:
        if value is None or math.isnan(value):
            return None
        if rule.relative and len(seen.first) < FIRST:
            seen.first.append(value)
            return None
        low, high = rule.edges(math.fsum(seen.first) / len(seen.first) if seen.first else None)
        outside = not low <= value <= high
        seen.in_a_row = seen.in_a_row + 1 if outside != seen.outside else 0
        if seen.in_a_row < rule.patience:
            return None
        seen.outside, seen.in_a_row = outside, 0
        return RunWarning(rule, step, value, low, high) if outside else None


def _edge(fixed: float, times: float | None, first: float | None) -> float:
    return fixed if times is None or first is None else max(fixed, times * first)


def _words(side: str, fixed: float, times: float | None) -> str:
    if times is None:
        return "" if math.isinf(fixed) else f"{side} {fixed:g}"
    start = f"{times:g} times the first {FIRST} steps' mean"
    return f"{side} {start}" if fixed <= 0 else f"{side} {fixed:g} or {start}, whichever is more"
