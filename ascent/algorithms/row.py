"""A row of the table: a cell for every slot, with its paper, formula, origin and pitfalls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from ascent.advantages import (
    filters,
    group_baselines,
    normalize,
    returns,
    reward_shaping,
    token_baseline,
)
from ascent.cells import Cell, cell
from ascent.losses import (
    aggregation,
    covariance,
    distillation,
    entropy,
    kl,
    kl_controllers,
    kto_bco,
    length_desensitized,
    optimal_transport,
    pointwise,
    policy_losses,
    preferences,
    process,
    ranking,
    ratios,
    rejection_masks,
    rollout_correction,
    sequence_policy_losses,
    supervised,
    token_weights,
    values,
)

Source = Literal["rollouts", "fresh_pairs", "examples", "pairs", "rankings", "unpaired", "steps"]
# Sources that sample from the policy: rewarded completions, and pairs of them.
SAMPLED = ("rollouts", "fresh_pairs")

# Inputs of cells that need something besides the policy and its data.
EXTRAS = {
    "ref_logprobs_T": "reference",
    "ref_logprobs_B": "reference",
    "values_T": "critic",
    "greedy_rewards_B": "greedy",
    "scores_B": "score_head",
    "step_rewards_T": "step_rewards",
    "reward_components_BK": "reward_parts",
    "pretraining_logprobs_X": "pretraining",
    "log_collision_T": "collision",
    "teacher_logprobs_T": "teacher",
    "teacher_TV": "teacher_distribution",
    "step_logits_TC": "step_head",
    "optimal_values_B": "optimal_values",
    "from_reference_B": "reference_samples",
    "win_prob_B": "opponent_samples",
    "gold_B": "gold_answers",
}


@dataclass(frozen=True)
class Row:
    """One algorithm. Rollout rows fill the slots from `reward_shaping` to `extra_losses`; all others fill `loss`."""

    name: str
    title: str
    paper: str
    formula: str
    origin: str
    pitfalls: tuple[str, ...]
    source: Source = "rollouts"
    reward_shaping: tuple[Cell, ...] = ()
    advantage: Cell | None = None
    advantage_norm: Cell | None = None
    filter: tuple[Cell, ...] = ()
    rollout_correction: Cell | None = None
    ratio: Cell | None = None
    policy_loss: Cell | None = None
    token_weights: tuple[Cell, ...] = ()
    aggregation: Cell | None = None
    kl: Cell | None = None
    kl_controller: Cell | None = None
    value_loss: Cell | None = None
    entropy_bonus: Cell | None = None
    extra_losses: tuple[Cell, ...] = ()
    loss: Cell | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Terms and metrics are named by their functions: of two with one name, one would be lost.
        for slots, cells in (
            ("loss and extra_losses", (self.loss, *self.extra_losses)),
            ("token_weights", self.token_weights),
        ):
            names = [each.name for each in cells if each is not None]
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ValueError(
                    f"algorithm {self.name}: {slots} have {', '.join(names)}, but each may be there only once; "
                    f"keep one cell of {' and '.join(twice)} and set its numbers and its weight"
                )

    def cells(self) -> list[tuple[str, Cell]]:
        """Every filled slot with its cell, in the order of the data flow."""
        found: list[tuple[str, Cell]] = []
        for slot in SLOTS:
            value = getattr(self, slot)
            found.extend(
                (slot, each)
                for each in (value if isinstance(value, tuple) else (value,))
                if each is not None
            )
        return found

    @property
    def inputs(self) -> frozenset[str]:
        """The required inputs of all cells and their statistics."""
        cells = [each for _, cell in self.cells() for each in (cell, *cell.statistics.values())]
        return frozenset(name for each in cells for name in each.required)

    @property
    def needs(self) -> frozenset[str]:
        """What must run besides the policy, from the cells' inputs."""
        return frozenset(EXTRAS[name] for name in self.inputs if name in EXTRAS)

    @property
    def samples(self) -> bool:
        """Whether it learns from rollouts, not from files."""
        return self.source in SAMPLED

    def reads(self, name: str) -> bool:
        """Whether a cell, or a statistic of one, takes this input, even if it can do without."""
        return any(
            name in each.inputs
            for _, cell in self.cells()
            for each in (cell, *cell.statistics.values())
        )

    @property
    def corrects_rollouts(self) -> bool:
        """Whether a cell weighs or drops tokens by the ratio trainer / sampler."""
        return any(
            {"old_logprobs_T", "sampler_logprobs_T"} <= set(each.required)
            for _, each in self.cells()
        )

    @property
    def places_rewards(self) -> bool:
        """Whether its advantage reads rewards per token; step rewards then lie on the last token of each step."""
        return self.advantage is not None and not {"rewards_T", "step_rewards_T"}.isdisjoint(
            self.advantage.required
        )

    @property
    def trains_groups(self) -> bool:
        """Whether its loss compares the completions of a prompt, so that a minibatch must hold whole groups."""
        return self.policy_loss is not None and any(
            "groups" in each.required for each in self.policy_loss.statistics.values()
        )

    @property
    def clips_by_design(self) -> bool:
        """Whether its clip acts on many tokens in a healthy run: radii for whole sequences are a few 1e-4."""
        whole = (
            ratios.sequence_product,
            ratios.sequence_geometric,
            ratios.sequence_geometric_token,
        )
        return self.ratio is not None and self.ratio.function in whole

    @property
    def weights(self) -> dict[str, float]:
        """The coefficient of each term of the loss, by the term's name."""
        weights = {"policy": 1.0} if self.loss is None else {self.loss.name: self.loss.weight}
        for slot, each in self.cells():
            if slot in ("kl", "entropy_bonus", "value_loss"):
                weights[slot] = each.weight
            elif slot == "extra_losses":
                weights[each.name] = each.weight
        return weights


# Pair losses. A custom row may add any of them to another as an extra loss, as MPO does with BCO.
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
    pointwise.nca,
    pointwise.bco_pair,
    pointwise.sppo,
    pointwise.apo_zero,
    pointwise.apo_down,
)


def functions(*choices: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    return {choice.__name__: choice for choice in choices}


# The functions that a recipe may choose for each slot.
VOCABULARY: dict[str, dict[str, Callable[..., Any]]] = {
    "reward_shaping": functions(
        reward_shaping.eos_replace,
        reward_shaping.eos_subtract,
        reward_shaping.eos_scale,
        reward_shaping.soft_overlong,
        reward_shaping.clip,
        reward_shaping.kl_penalty,
        reward_shaping.whiten_rewards,
    ),
    "advantage": functions(
        group_baselines.raw,
        group_baselines.group_mean_baseline,
        group_baselines.leave_one_out,
        group_baselines.length_weighted,
        group_baselines.best_of_group,
        group_baselines.success_scaled,
        group_baselines.against_optimum,
        group_baselines.against_opponent,
        token_baseline.optimal_token_baseline,
        group_baselines.greedy_baseline,
        group_baselines.steps_to_go,
        group_baselines.decoupled_parts,
        returns.reward_to_go,
        returns.whole_return,
        returns.monte_carlo,
        returns.td,
        returns.n_step,
        returns.gae,
        returns.decoupled_gae,
        returns.length_adaptive_gae,
    ),
    "advantage_norm": functions(
        normalize.none,
        normalize.group_std,
        normalize.batch_std_raw,
        normalize.batch_std_centered,
        normalize.batch_rms_group,
        normalize.batch_zscore,
        normalize.whiten_sequence,
        normalize.whiten_token,
        normalize.plus_teacher,
    ),
    "filter": functions(filters.nonzero_variance, filters.not_truncated),
    "rollout_correction": functions(
        rollout_correction.none,
        rollout_correction.bypass,
        rollout_correction.token_truncate,
        rollout_correction.token_mask,
        rollout_correction.product_truncate,
        rollout_correction.product_mask,
        rollout_correction.geometric_truncate,
        rollout_correction.geometric_mask,
        rollout_correction.geometric_filter,
        rollout_correction.token_normalized,
        rollout_correction.product_normalized,
    ),
    "ratio": functions(
        ratios.none,
        ratios.token,
        ratios.sequence_product,
        ratios.sequence_geometric,
        ratios.sequence_geometric_token,
    ),
    "policy_loss": functions(
        policy_losses.plain,
        policy_losses.surrogate,
        policy_losses.clip,
        policy_losses.dual_clip,
        policy_losses.cispo,
        policy_losses.sapo,
        policy_losses.gmpo,
        policy_losses.dppo_tv,
        policy_losses.dppo_kl,
        policy_losses.dro,
        covariance.clip_cov,
        covariance.kl_cov,
        sequence_policy_losses.vespo,
        sequence_policy_losses.fipo,
        sequence_policy_losses.real,
        sequence_policy_losses.regression,
    ),
    "token_weights": functions(
        token_weights.top_entropy,
        token_weights.near_policy,
        token_weights.teacher_agreement,
        token_weights.probability,
        token_weights.own_likelihood,
        rejection_masks.ratio_within,
        rejection_masks.distance_within,
        length_desensitized.length_desensitized,
    ),
    "aggregation": functions(
        aggregation.token_mean,
        aggregation.token_sum,
        aggregation.sequence_mean_token_mean,
        aggregation.sequence_mean_token_sum,
        aggregation.sequence_mean_token_scaled,
        aggregation.prompt_mean,
        aggregation.group_mean,
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
    "kl_controller": functions(
        kl_controllers.fixed,
        kl_controllers.ziegler_sequence,
        kl_controllers.ziegler_token,
        kl_controllers.ppo_penalty,
    ),
    "value_loss": functions(values.mse, values.clipped, values.huber),
    "entropy_bonus": functions(entropy.bonus, entropy.adaptive_bonus),
    "extra_losses": functions(
        supervised.correct_nll,
        supervised.chosen_nll,
        supervised.gold_nll,
        supervised.reference_likelihood,
        supervised.pretraining_nll,
        pointwise.bco_pair,
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
        optimal_transport.aot,
        optimal_transport.aot_unpaired,
        kto_bco.kto,
        kto_bco.apo_zero_unpaired,
        kto_bco.bco,
    ),
}
SLOTS: tuple[str, ...] = tuple(VOCABULARY)

assert set(SLOTS) <= {each.name for each in fields(Row)}

__all__ = ["EXTRAS", "SLOTS", "VOCABULARY", "Cell", "Row", "Source", "cell"]
