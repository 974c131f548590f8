"""What a row of the table is: a choice in every slot, and the words a person needs before staking a month on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from ascent.advantages import group, normalise, returns, select, shape, token_baseline
from ascent.cells import Cell, cell
from ascent.losses import (
    absolute,
    aggregate,
    controllers,
    covariance,
    distillation,
    entropy,
    focus,
    gates,
    kl,
    mismatch,
    preferences,
    process,
    ranking,
    ratios,
    rejection,
    sequence_gates,
    shared_length,
    supervised,
    transport,
    unpaired,
    values,
)

Source = Literal["rollouts", "fresh_pairs", "examples", "pairs", "rankings", "unpaired", "steps"]
# Sources that sample: answers of the policy as it is, with rewards; and pairs of such answers.
SAMPLED = ("rollouts", "fresh_pairs")

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
    "log_collision_T": "collision",
    "teacher_T": "teacher",
    "teacher_TV": "teacher_distribution",
    "step_logits_TC": "step_head",
    "optimal_values_B": "optimal_values",
    "from_reference_B": "reference_samples",
    "chances_B": "opponent_samples",
    "gold_B": "gold_answers",
}


@dataclass(frozen=True)
class Row:
    """One algorithm. Rollout rows fill the slots from `shape` to `auxiliary`; all others fill `loss`."""

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
    focus: tuple[Cell, ...] = ()
    aggregate: Cell | None = None
    kl: Cell | None = None
    controller: Cell | None = None
    value: Cell | None = None
    entropy: Cell | None = None
    auxiliary: tuple[Cell, ...] = ()
    loss: Cell | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Terms and marks go by their functions' names: of two of one name, one would silently be lost.
        for slots, cells in (("loss and auxiliary", (self.loss, *self.auxiliary)), ("focus", self.focus)):
            names = [each.name for each in cells if each is not None]
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ValueError(
                    f"algorithm {self.name}: {slots} hold {', '.join(names)}, but each function may stand there once; "
                    f"keep one cell of {' and '.join(twice)} and set its numbers and its weight"
                )

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
        asking = [each for _, cell in self.cells() for each in (cell, *cell.statistics.values())]
        return frozenset(name for each in asking for name in each.required)

    @property
    def needs(self) -> frozenset[str]:
        """What must run besides the policy: read off the cells' inputs, so it cannot fall out of date."""
        return frozenset(EXTRAS[name] for name in self.inputs if name in EXTRAS)

    @property
    def samples(self) -> bool:
        """Whether it learns from answers that are sampled and rewarded step by step, and not from files."""
        return self.source in SAMPLED

    @property
    def places_rewards(self) -> bool:
        """Whether its credit reads rewards token by token: a step's reward then stands where the step ends."""
        return self.credit is not None and not {"rewards_T", "step_rewards_T"}.isdisjoint(self.credit.required)

    @property
    def trains_groups(self) -> bool:
        """Whether its loss compares the answers to a prompt with each other: then an update takes them all or none."""
        return self.gate is not None and any("groups" in each.required for each in self.gate.statistics.values())

    @property
    def clips_by_design(self) -> bool:
        """Whether its clip acts on many tokens when all is well: radii for whole sequences are a few 1e-4."""
        whole = (ratios.sequence_product, ratios.sequence_geometric, ratios.sequence_geometric_token)
        return self.ratio is not None and self.ratio.function in whole

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


# Losses of pairs. A row of one's own may join any of them to another as an auxiliary term, as MPO does with BCO.
PAIR_LOSSES: tuple[Callable[..., Any], ...] = (
    preferences.dpo,
    preferences.dpo_mean,
    preferences.robust,
    preferences.exo,
    preferences.discopop,
    preferences.reference_free,
    preferences.reference_free_hinge,
    preferences.reference_free_ipo,
    preferences.hinge,
    preferences.ipo_sum,
    preferences.ipo_mean,
    preferences.simpo,
    preferences.alphapo,
    preferences.odds_ratio,
    absolute.nca,
    absolute.bco_pair,
    absolute.sppo,
    absolute.apo_zero,
    absolute.apo_down,
)


def functions(*choices: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    return {choice.__name__: choice for choice in choices}


# What each slot may hold. A recipe names these functions; a new idea is one function here.
VOCABULARY: dict[str, dict[str, Callable[..., Any]]] = {
    "shape": functions(
        shape.eos_replace,
        shape.eos_subtract,
        shape.eos_scale,
        shape.soft_overlong,
        shape.clip,
        shape.kl_penalty,
        shape.potential,
        shape.whiten_rewards,
    ),
    "credit": functions(
        group.raw,
        group.centre,
        group.leave_one_out,
        group.length_weighted,
        group.best_of_group,
        group.success_scaled,
        group.against_optimum,
        group.against_opponent,
        token_baseline.optimal_token_baseline,
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
        normalise.plus_teacher,
    ),
    "filter": functions(select.varied, select.finished),
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
        mismatch.token_normalised,
        mismatch.product_normalised,
    ),
    "ratio": functions(
        ratios.none, ratios.token, ratios.sequence_product, ratios.sequence_geometric, ratios.sequence_geometric_token
    ),
    "gate": functions(
        gates.plain,
        gates.surrogate,
        gates.clip,
        gates.dual_clip,
        gates.cispo,
        gates.sapo,
        gates.gmpo,
        gates.dppo_tv,
        gates.dppo_kl,
        gates.dro,
        covariance.clip_cov,
        covariance.kl_cov,
        sequence_gates.vespo,
        sequence_gates.fipo,
        sequence_gates.real,
        sequence_gates.regression,
    ),
    "focus": functions(
        focus.top_entropy,
        focus.near_policy,
        focus.teacher_agreement,
        focus.probability,
        focus.own_likelihood,
        rejection.ratio_within,
        rejection.distance_within,
        shared_length.shared_length,
    ),
    "aggregate": functions(
        aggregate.token_mean,
        aggregate.token_sum,
        aggregate.sequence_mean_token_mean,
        aggregate.sequence_mean_token_sum,
        aggregate.sequence_mean_token_scaled,
        aggregate.prompt_mean,
        aggregate.group_mean,
    ),
    "kl": functions(
        kl.k1,
        kl.k2,
        kl.k3,
        kl.rho_k1,
        kl.rho_k3,
        kl.weighted_k3,
        kl.k3_straight_through,
        kl.k1_straight_through,
        kl.to_old,
    ),
    "controller": functions(
        controllers.fixed, controllers.ziegler_sequence, controllers.ziegler_token, controllers.ppo_penalty
    ),
    "value": functions(values.mse, values.clipped, values.huber),
    "entropy": functions(entropy.bonus, entropy.adaptive_bonus),
    "auxiliary": functions(
        supervised.correct_nll,
        supervised.chosen_nll,
        supervised.gold_nll,
        supervised.reference_likelihood,
        supervised.pretraining_nll,
        absolute.bco_pair,
    ),
    "loss": functions(
        supervised.nll,
        ranking.bradley_terry,
        ranking.kwise,
        ranking.plackett_luce,
        distillation.gkd,
        distillation.kd,
        process.prm_hard,
        process.prm_soft,
        *PAIR_LOSSES,
        transport.aot,
        transport.aot_unpaired,
        unpaired.kto,
        unpaired.apo_zero_unpaired,
        unpaired.bco,
    ),
}
SLOTS: tuple[str, ...] = tuple(VOCABULARY)

assert set(SLOTS) <= {each.name for each in fields(Row)}

__all__ = ["EXTRAS", "SLOTS", "VOCABULARY", "Cell", "Row", "Source", "cell"]
