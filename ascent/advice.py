"""What to change about a cause, as keys of the recipe. Warnings of a run and the diagnosis after it say the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

NOTHING: Mapping[str, Any] = {}


@dataclass(frozen=True)
class KeyChange:
    """A key of the recipe to set, and why. `value` is text: a number, a direction ("lower") or a name."""

    key: str
    value: str
    why: str = ""

    def text(self) -> str:
        return f"{self.key}: {self.value}" + (f" ({self.why})" if self.why else "")


@dataclass(frozen=True)
class Advice:
    """A `value` for a key, or a factor (`times`) for the one that it has."""

    key: str
    value: str = ""
    why: str = ""
    times: float | None = None

    def change(self, config: Mapping[str, Any]) -> KeyChange:
        value = self.value if self.times is None else multiply(config.get(self.key), self.times)
        return KeyChange(self.key, value, self.why)


RATE = "update.learning_rate"
SLOWER = Advice(RATE, times=0.3)
ADVICE: dict[str, tuple[Advice, ...]] = {
    "learning_rate_too_high": (
        Advice(RATE, times=0.1, why="a tenth, from an earlier checkpoint or the start"),
        Advice("update.max_grad_norm", "0.5"),
        Advice("update.warmup_steps", "10"),
    ),
    "entropy_collapse": (
        Advice("cells.policy_loss.high", "0.28", "clip-higher lets rare tokens grow"),
        Advice("cells.entropy_bonus.weight", "0.001"),
        SLOWER,
    ),
    "entropy_explosion": (Advice(RATE, times=0.3, why="updates this large spread the policy"),),
    "kl_runaway": (
        Advice(
            "cells.kl.weight",
            "higher",
            "or cells.reward_shaping.kl_penalty.beta, whichever the row has",
        ),
        Advice("run.max_ref_kl", "0.5", "stops the run there"),
        SLOWER,
    ),
    "length_explosion": (
        Advice("cells.reward_shaping.soft_overlong", "{}", "a price for length"),
        Advice(
            "cells.aggregation.use", "token_mean", "a mean per sequence favors long wrong answers"
        ),
    ),
    "truncation": (
        Advice(
            "rollouts.max_new_tokens",
            times=2,
            why="twice; or check that the model knows its EOS token",
        ),
        Advice("cells.filter.not_truncated", "{}", "leaves cut completions out of the loss"),
    ),
    "no_signal": (
        Advice("rollouts.group_size", "larger", "so that some groups differ"),
        Advice("rollouts.dynamic_sampling_tries", "4", "with cells.filter.nonzero_variance"),
    ),
    "sampler_mismatch": (
        Advice("rollouts.engine", "native", "one forward for both"),
        Advice(
            "cells.rollout_correction.use",
            "token_truncate",
            "weights tokens by how likely the trainer finds them",
        ),
        Advice("model.dtype", "float32", "where it fits"),
    ),
}


def changes(cause: str, config: Mapping[str, Any] = NOTHING) -> tuple[KeyChange, ...]:
    """`config` has the values of now, by dotted keys."""
    return tuple(each.change(config) for each in ADVICE[cause])


def advice_text(cause: str) -> str:
    """A sentence, for a run whose config is not at hand."""
    return "; ".join(each.text() for each in changes(cause)) + "."


def multiply(value: object, factor: float) -> str:
    """A number; a direction where there is no number to multiply."""
    if not isinstance(value, int | float):
        return "lower" if factor < 1 else "higher"
    found = value * factor
    return f"{found:.0f}" if isinstance(value, int) and found == int(found) else f"{found:.2g}"
