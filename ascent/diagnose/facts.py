"""What rules read of a run: its curves, samples and config, and a few statistics of them.

A run is short and its curves are noisy, so rules compare means over the first and the last quarter of the steps, and
ask whether the difference exceeds its standard error.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from ascent.config.changes import evaluated_since

Point = tuple[int, float]
Sample = Mapping[str, Any]
QUARTER = 4
CLEAR = 3.0  # standard errors
CORRECT = ("correct", "success")  # components of a reward that say right or wrong


class Change(NamedTuple):
    """Means over the first and the last quarter of a curve, and the difference in standard errors."""

    first: float
    last: float
    errors: float

    @property
    def rises(self) -> bool:
        return self.errors > CLEAR

    @property
    def falls(self) -> bool:
        return self.errors < -CLEAR


@dataclass(frozen=True)
class DataFacts:
    """What the training data is like. `repeated` counts records that equal an earlier one, `leaked` held-out prompts
    that are also trained on; `order` is the correlation of a record's length with its place in the file."""

    records: int
    repeated: int = 0
    heldout: int = 0
    leaked: int = 0
    order: float = 0.0


@dataclass(frozen=True)
class Facts:
    """A run as rules see it. `peers` are final scores of runs that differ in their seed only. `changes` are the lines
    of changes.jsonl."""

    metrics: Sequence[Mapping[str, float]]
    samples: Sequence[Sample]
    config: Mapping[str, Any]  # by dotted keys
    state: str = "finished"
    message: str = ""
    data: DataFacts | None = None
    peers: tuple[float, ...] = field(default=())
    changes: Sequence[Mapping[str, Any]] = ()

    def curve(self, name: str) -> list[Point]:
        """(step, value) of the finite values; the evaluation before the first step has step 0.

        Evaluations before the last change of what is evaluated, or how, are left out.
        """
        since = self.evaluated_since if name.startswith("eval/") else 0
        found = ((int(each["step"]), each[name]) for each in self.metrics if name in each)
        return [(step, value) for step, value in found if math.isfinite(value) and step >= since]

    def values(self, name: str) -> list[float]:
        return [value for _, value in self.curve(name)]

    def has(self, name: str) -> bool:
        return any(name in each for each in self.metrics)

    def change(self, name: str) -> Change | None:
        """None for a curve of fewer than four values."""
        return change_of(self.values(name))

    def first_step(
        self, name: str, holds: Callable[[float], bool], *, in_a_row: int = 1
    ) -> int | None:
        """The first step at which a condition holds for that many values in a row."""
        curve = self.curve(name)
        for place in range(len(curve) - in_a_row + 1):
            if all(holds(value) for _, value in curve[place : place + in_a_row]):
                return curve[place][0]
        return None

    @property
    def steps(self) -> int:
        return max((int(each["step"]) for each in self.metrics), default=0)

    @property
    def samples_rewards(self) -> bool:
        """Whether the run learns from rewards of rollouts."""
        return self.has("reward/mean") or any("reward" in each for each in self.samples)

    @cached_property
    def evaluated_since(self) -> int:
        """The first step whose evaluation can be compared with the last one."""
        return evaluated_since(self.changes, self.config, samples=self.samples_rewards)

    @property
    def scored_by_model(self) -> bool:
        return self.config.get("model.reward_model") is not None

    @cached_property
    def truth_is_reward(self) -> bool:
        """Whether right or wrong is all that the reward says, so that the two cannot part."""
        pairs = [
            (each["reward/mean"], each["reward/correct"])
            for each in self.metrics
            if "reward/mean" in each and "reward/correct" in each
        ]
        known = [(a, b) for a, b in pairs if math.isfinite(a) and math.isfinite(b)]
        return all(math.isclose(a, b, abs_tol=1e-9) for a, b in known)

    @cached_property
    def score(self) -> str | None:
        """The metric that says how good the run is: held-out truth, held-out reward, or the reward in training."""
        names = (
            "eval/reward/correct",
            "eval/reward/mean",
            "eval/preference/accuracy",
            "reward/correct",
            "reward/mean",
        )
        return next((name for name in names if len(self.values(name)) > 1), None)

    def quarter(self, *, last: bool) -> list[Sample]:
        """The samples of the first or the last quarter of the sampled steps."""
        steps = sorted({int(each["step"]) for each in self.samples})
        count = max(1, len(steps) // QUARTER)
        chosen = set(steps[-count:] if last else steps[:count])
        return [each for each in self.samples if int(each["step"]) in chosen]


def change_of(values: Sequence[float]) -> Change | None:
    if len(values) < QUARTER:
        return None
    count = max(2, len(values) // QUARTER)
    first, last = statistics.fmean(values[:count]), statistics.fmean(values[-count:])
    # The noise of one value from differences of neighbors, by their median: a fast rise is no noise.
    steps = [abs(b - a) for a, b in itertools.pairwise(values)]
    noise = statistics.median(steps) / (0.6745 * math.sqrt(2))
    error = max(noise * math.sqrt(2 / count), 1e-9 + 1e-3 * max(abs(first), abs(last)))
    return Change(first, last, (last - first) / error)


def mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else math.nan


def correlation(pairs: Sequence[tuple[float, float]]) -> float:
    """Pearson's; 0 where one of the two does not vary."""
    if len(pairs) < 3:
        return 0.0
    left, right = zip(*pairs, strict=True)
    if max(left) == min(left) or max(right) == min(right):
        return 0.0
    return statistics.correlation(left, right)


def length_of(sample: Sample) -> float:
    return float(len(sample.get("tokens") or str(sample["completion"]).split()))


def repetition_of(sample: Sample) -> float:
    """The share of words that were said before in the same completion."""
    words = str(sample["completion"]).split()
    return 1 - len(set(words)) / len(words) if words else 0.0


def correct_of(sample: Sample) -> float | None:
    """Right or wrong, where a component of the reward says so."""
    parts: Mapping[str, float | None] = sample.get("parts") or {}
    found = [value for name, value in parts.items() if name.rpartition("/")[2] in CORRECT]
    return found[0] if found else None


def scored(samples: Sequence[Sample]) -> list[Sample]:
    return [each for each in samples if each.get("reward") is not None]


def reward_correlation(
    samples: Sequence[Sample], feature: Callable[[Sample], float | None]
) -> float:
    """How far a feature explains the reward, over all scored samples."""
    pairs = [
        (value, float(each["reward"]))
        for each in scored(samples)
        if (value := feature(each)) is not None
    ]
    return correlation(pairs)


def marker_of(samples: Sequence[Sample]) -> tuple[str, float]:
    """The character or word whose presence tells high rewards from low ones best, and its correlation with them."""
    known = scored(samples)
    words = [marks_of(each) for each in known]
    counts = Counter(word for each in words for word in each)
    found = ("", 0.0)
    for word, count in counts.most_common(200):
        if 3 <= count <= len(known) - 3:
            pairs = [
                (float(word in own), float(each["reward"]))
                for own, each in zip(words, known, strict=True)
            ]
            found = max(found, (word, correlation(pairs)), key=lambda each: each[1])
    return found


def marks_of(sample: Sample) -> set[str]:
    """Words, and characters that are neither letters nor digits nor spaces."""
    text = str(sample["completion"])
    return {*text.split(), *(each for each in text if not each.isalnum() and not each.isspace())}


def disagreement(samples: Sequence[Sample]) -> tuple[float, int]:
    """Of completions with the same text for the same prompt: the share of pairs with different rewards, and how many.

    A reward that reads the completion alone gives 0.
    """
    same: defaultdict[tuple[Any, ...], list[float]] = defaultdict(list)
    for each in scored(samples):
        same[each["step"], each["id"], each["completion"], each.get("stop")].append(
            float(each["reward"])
        )
    pairs = differing = 0
    for rewards in same.values():
        pairs += len(rewards) - 1
        differing += sum(each != rewards[0] for each in rewards[1:])
    return (differing / pairs if pairs else 0.0), pairs


def examples(
    samples: Sequence[Sample], key: Callable[[Sample], float] | None = None
) -> tuple[dict[str, Any], ...]:
    """Three samples, those with the largest key, with the fields that a reader needs."""
    ordered = sorted(samples, key=key, reverse=True) if key else list(samples)
    distinct = list(
        {(each["completion"], each.get("reward")): each for each in reversed(ordered)}.values()
    )[::-1]
    fields = ("step", "prompt", "completion", "reward", "stop")
    return tuple({name: each.get(name) for name in fields} for each in distinct[:3])
