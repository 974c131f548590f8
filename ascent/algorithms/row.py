"""What a row of the table is: a choice in every slot, and the words a person needs before staking a month on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from ascent.advantages import group, normalise, returns, select, shape
from ascent.cells import Cell, cell
from ascent.losses import (
    aggregate,
    controllers,
    entropy,
    gates,
    kl,
    mismatch,
    preferences,
    ranking,
    ratios,
    supervised,
    values,
)

Source = Literal["rollouts", "examples", "pairs", "rankings", "unpaired"]

# Inputs that only exist when something extra runs. A row needs whatever its cells ask for.
EXTRAS = {
    "reference_T": "reference",
    "reference_B": "reference",
    "values_T": "critic",
    "greedy_rewards_B": "greedy",
    "scores_B": "score_head",
    "step_rewards_T": "step_rewards",
    "parts_BK": "reward_parts",
    "pretraining_logprobs_X": "pretraining",
}


@dataclass(frozen=True)
class Row:
    """One algorithm. Rollout rows fill the slots from `shape` to `auxiliary`; rows fed from files fill `loss`."""

    name: str
    title: str
    paper: str
    formula: str
    origin: str
    pitfalls: tuple[str, ...]
    source: Source = "rollouts"
    shape: tuple[Cell, ...] = ()
    credit: Cell | None = None
    normalise: Cell | None = None
    filter: tuple[Cell, ...] = ()
    mismatch: Cell | None = None
    ratio: Cell | None = None
    gate: Cell | None = None
    aggregate: Cell | None = None
    kl: Cell | None = None
    controller: Cell | None = None
    value: Cell | None = None
    entropy: Cell | None = None
    auxiliary: tuple[Cell, ...] = ()
    loss: Cell | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def cells(self) -> list[tuple[str, Cell]]:
        """Every filled slot with its cell, in the order of the data flow."""
        found: list[tuple[str, Cell]] = []
        for slot in SLOTS:
            value = getattr(self, slot)
            found.extend((slot, each) for each in (value if isinstance(value, tuple) else (value,)) if each is not None)
        return found

    @property
    def inputs(self) -> frozenset[str]:
        """Every input that some cell cannot do without."""
        return frozenset(name for _, each in self.cells() for name in each.required)

    @property
    def needs(self) -> frozenset[str]:
        """What must run besides the policy: read off the cells' inputs, so it cannot fall out of date."""
        return frozenset(EXTRAS[name] for name in self.inputs if name in EXTRAS)

    @property
    def weights(self) -> dict[str, float]:
        """The coefficient of each term of the loss, by the term's name."""
        weights = {"policy": 1.0} if self.loss is None else {self.loss.name: self.loss.weight}
        for slot, each in self.cells():
            if slot in ("kl", "entropy", "value"):
                weights[slot] = each.weight
            elif slot == "auxiliary":
                weights[each.name] = each.weight
        return weights


def functions(*choices: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    return {choice.__name__: choice for choice in choices}


# What each slot may hold. A recipe names these functions; a new idea is one function here.
VOCABULARY: dict[str, dict[str, Callable[..., Any]]] = {
    "shape": functions(
        shape.eos_replace, shape.eos_subtract, shape.soft_overlong, shape.clip, shape.kl_penalty, shape.potential
    ),
    "credit": functions(
        group.raw,
        group.centre,
        group.leave_one_out,
        group.length_weighted,
        group.greedy_baseline,
        group.steps_to_go,
        group.decoupled_parts,
        returns.reward_to_go,
        returns.whole_return,
        returns.monte_carlo,
        returns.td,
        returns.n_step,
        returns.gae,
        returns.decoupled_gae,
        returns.length_adaptive_gae,
    ),
    "normalise": functions(
        normalise.none,
        normalise.group_std,
        normalise.batch_std_raw,
        normalise.batch_std_centred,
        normalise.batch_rms_group,
        normalise.batch_zscore,
        normalise.whiten_sequence,
        normalise.whiten_token,
    ),
    "filter": functions(select.varied, select.finished, select.scorable, select.near_policy),
    "mismatch": functions(
        mismatch.none,
        mismatch.bypass,
        mismatch.token_truncate,
        mismatch.token_mask,
        mismatch.product_truncate,
        mismatch.product_mask,
        mismatch.geometric_truncate,
        mismatch.geometric_mask,
        mismatch.geometric_filter,
    ),
    "ratio": functions(
        ratios.none, ratios.token, ratios.sequence_product, ratios.sequence_geometric, ratios.sequence_geometric_token
    ),
    "gate": functions(gates.plain, gates.surrogate, gates.clip, gates.dual_clip, gates.cispo, gates.sapo, gates.gmpo),
    "aggregate": functions(
        aggregate.token_mean,
        aggregate.token_sum,
        aggregate.sequence_mean_token_mean,
        aggregate.sequence_mean_token_sum,
        aggregate.sequence_mean_token_scaled,
        aggregate.prompt_mean,
    ),
    "kl": functions(kl.k1, kl.k2, kl.k3, kl.rho_k1, kl.rho_k3, kl.k3_straight_through, kl.to_old),
    "controller": functions(
        controllers.fixed, controllers.ziegler_sequence, controllers.ziegler_token, controllers.ppo_penalty
    ),
    "value": functions(values.mse, values.clipped, values.huber),
    "entropy": functions(entropy.bonus),
    "auxiliary": functions(supervised.correct_nll, supervised.chosen_nll, supervised.pretraining_nll),
    "loss": functions(
        supervised.nll,
        ranking.bradley_terry,
        ranking.kwise,
        ranking.plackett_luce,
        preferences.dpo,
        preferences.reference_free,
        preferences.hinge,
        preferences.ipo_sum,
        preferences.ipo_mean,
        preferences.simpo,
        preferences.odds_ratio,
        preferences.kto,
    ),
}
SLOTS: tuple[str, ...] = tuple(VOCABULARY)

assert set(SLOTS) <= {each.name for each in fields(Row)}

__all__ = ["EXTRAS", "SLOTS", "VOCABULARY", "Cell", "Row", "Source", "cell"]
