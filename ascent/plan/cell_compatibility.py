"""Cells that do not fit each other, refused before anything runs. Each check is one function with its own message."""

from __future__ import annotations

from typing import get_type_hints

from ascent.advantages import reward_shaping
from ascent.advantages.advantage import TokenAdvantage
from ascent.algorithms import TABLE, Row
from ascent.cells import Cell
from ascent.losses import (
    aggregation,
    kl,
    kl_controllers,
    policy_losses,
    ratios,
    rollout_correction,
    sequence_policy_losses,
)
from ascent.losses.objective import WITHIN_SUMS

# Fresh pairs carry what pairs of a file carry, but for what only a file can say.
SAME_INPUTS = {"fresh_pairs": ("fresh_pairs", "pairs")}
ONLY_IN_FILES = frozenset({"gold_B", "margins_P", "scores_B"})

# What a model without a scalar head gives.
OF_LANGUAGE_MODELS = frozenset(
    {"logprobs_T", "logprobs_B", "log_ratio_T", "entropy_T", "log_collision_T", "logits_TV"}
)

PER_SEQUENCE_RATIOS = (ratios.sequence_geometric, ratios.sequence_geometric_token)
PER_SEQUENCE_WEIGHTS = (
    rollout_correction.product_truncate,
    rollout_correction.product_mask,
    rollout_correction.product_normalized,
)
# Policy losses that are one number for a group or a sequence, and the aggregations that count each of them once.
WHOLE_LOSSES = {
    sequence_policy_losses.real: (aggregation.group_mean,),
    sequence_policy_losses.regression: (
        aggregation.sequence_mean_token_mean,
        aggregation.group_mean,
    ),
    policy_losses.gmpo: (aggregation.sequence_mean_token_mean, aggregation.group_mean),
}

# Inputs of advantages that no reward shaping touches: what they are, and what to use instead.
UNSHAPED = {
    "win_prob_B": ("the chance of winning", "add a reward that scores both answers"),
    "step_rewards_T": (
        "the rewards of steps",
        "use an advantage that reads whole rewards, or cells.kl for a KL",
    ),
    "reward_components_BK": (
        "each component of the reward",
        "add a reward, or use cells.kl for a KL",
    ),
}


def check_cells(row: Row) -> None:
    """ValueError with the first combination of cells in `row` that cannot work."""
    _inputs_exist(row)
    _token_weights_fit_loss(row)
    _terms_share_a_head(row)
    if row.source == "rollouts":
        _shaping_reaches_the_advantage(row)
        _shaping_treats_both_sides_alike(row)
        _normalization_fits_advantage(row)
        _kl_has_a_gradient(row)
        _controller_has_a_term(row)
        _ratio_fits_policy_loss(row)
        _ratio_fits_aggregation(row)
        _policy_loss_fits_the_rest(row)


def _inputs_exist(row: Row) -> None:
    """A cell may need what only another kind of data has: the table itself says which inputs come with which source."""
    sources = SAME_INPUTS.get(row.source, (row.source,))
    here = {name for other in TABLE.values() if other.source in sources for name in other.inputs}
    here |= {"segments", "loss_mask_T"}  # every batch has them
    here -= ONLY_IN_FILES if row.samples else set()
    elsewhere = {
        name: str(other.source)
        for other in TABLE.values()
        for name in other.inputs
        if name not in here
    }
    for slot, each in row.cells():
        foreign = next((name for name in each.required if name in elsewhere), None)
        if foreign:
            raise ValueError(
                f"cells.{slot}: {each.name} needs {foreign}, which comes with {elsewhere[foreign]}, "
                f"but {row.name} learns from {row.source}; choose another function"
            )


def _token_weights_fit_loss(row: Row) -> None:
    """A loss of pairs is weighed pair by pair, any other token by token."""
    if row.loss is None or "chosen_P" not in row.loss.required:
        return
    for each in row.token_weights:
        if "chosen_P" not in each.required:
            raise ValueError(
                f"cells.token_weights.{each.name} weighs tokens, but cells.loss {row.loss.name} is one number per "
                "pair; remove it, or use own_likelihood, which weighs pairs"
            )
        if each.function in WITHIN_SUMS and "logprobs_B" not in row.loss.required:
            raise ValueError(
                f"cells.token_weights.{each.name} weighs tokens in a response's sum of log-probs, but cells.loss "
                f"{row.loss.name} reads none; remove it"
            )


def _terms_share_a_head(row: Row) -> None:
    """A loss of scores trains a model with a scalar head, which has no log-probs."""
    if row.loss is None or row.needs.isdisjoint({"score_head", "step_head"}):
        return
    for slot, each in row.cells():
        foreign = next((name for name in each.required if name in OF_LANGUAGE_MODELS), None)
        if foreign:
            raise ValueError(
                f"cells.{slot}: {each.name} needs {foreign} of a language model, but cells.loss {row.loss.name} trains "
                "a reward model; remove it, or choose another loss"
            )


def _shaping_reaches_the_advantage(row: Row) -> None:
    if (
        row.advantage is None
        or not row.reward_shaping
        or {"rewards_B", "rewards_T"} & set(row.advantage.inputs)
    ):
        return
    own = (UNSHAPED[name] for name in row.advantage.inputs if name in UNSHAPED)
    what, instead = next(own, ("its own inputs", "use another advantage"))
    key = f"cells.reward_shaping.{row.reward_shaping[0].name}"
    raise ValueError(
        f"{key} has no effect: cells.advantage {row.advantage.name} learns from {what}, not from the reward that is "
        f"shaped; set {key}=false, or {instead}"
    )


def _shaping_treats_both_sides_alike(row: Row) -> None:
    """A reward is compared with another one that is not shaped: an optimal value not at all, a greedy completion's only
    by the rules on its score. The KL of the sample alone is ReMax's own."""
    read = set(row.advantage.inputs) if row.advantage is not None else set()
    if "optimal_values_B" in read:
        found, other = (
            row.reward_shaping,
            "the optimal value of the prompt, which was estimated from unshaped rewards",
        )
    elif "greedy_rewards_B" in read:
        found = tuple(each for each in row.reward_shaping if not _scores_alone(each))
        other = (
            "a greedy completion's, for which neither other completions nor model outputs are there"
        )
    else:
        return
    if found:
        key, advantage = (
            f"cells.reward_shaping.{found[0].name}",
            row.advantage.name if row.advantage else "none",
        )
        raise ValueError(
            f"{key} with cells.advantage {advantage}: the shaped reward would be compared with {other}; set "
            f"{key}=false, or change the reward itself"
        )


def _scores_alone(rule: Cell) -> bool:
    """Whether a rule on a sequence's score needs nothing but the sequence; rules on tokens are the sample's own."""
    if rule.function is reward_shaping.whiten_rewards:
        return False
    own = {"rewards_B", "lengths_B", "truncated_B", "loss_mask_T", "segments"}
    return "rewards_B" not in rule.inputs or set(rule.required) <= own


def _normalization_fits_advantage(row: Row) -> None:
    if (
        row.advantage is None
        or row.advantage_norm is None
        or "advantages_B" not in row.advantage_norm.required
    ):
        return
    if get_type_hints(row.advantage.function).get("return") is TokenAdvantage:
        raise ValueError(
            f"cells.advantage_norm {row.advantage_norm.name} rescales one advantage an answer, but cells.advantage "
            f"{row.advantage.name} gives one a token; set cells.advantage_norm.use to whiten_token or none"
        )


def _kl_has_a_gradient(row: Row) -> None:
    if row.kl is not None and row.kl.function is kl.k1:
        raise ValueError(
            "cells.kl k1 has zero expected gradient in the loss; use k2 or rho_k3 there, or "
            "cells.reward_shaping.kl_penalty, which puts k1 into the reward"
        )


def _controller_has_a_term(row: Row) -> None:
    penalties = [each for each in row.reward_shaping if each.function is reward_shaping.kl_penalty]
    cell = row.kl_controller
    if (
        cell is not None
        and row.kl is None
        and not any("ref_logprobs_T" in each.required for each in row.reward_shaping)
    ):
        raise ValueError(
            f"cells.kl_controller has no effect: {row.name} has no KL to steer; set cells.kl_controller=false"
        )
    if cell is None or cell.function is kl_controllers.fixed:
        return
    if row.kl is not None and penalties:
        raise ValueError(
            f"cells.kl_controller {cell.name} steers one coefficient, but {row.name} has KL in the reward "
            "(cells.reward_shaping.kl_penalty) and in the loss (cells.kl); remove one of them"
        )
    from_old, to_old = (
        cell.function is kl_controllers.ppo_penalty,
        row.kl is not None and row.kl.function is kl.to_old,
    )
    if from_old != to_old:
        wants, has = (
            ("the sampling policy", "the reference")
            if from_old
            else ("the reference", "the sampling policy")
        )
        fix = "ziegler_sequence" if from_old else "ppo_penalty"
        raise ValueError(
            f"cells.kl_controller {cell.name} looks at KL to {wants}, but {row.name} penalizes KL to {has}; use {fix}"
        )
    if row.kl is None and not penalties:
        raise ValueError(
            f"cells.kl_controller {cell.name} steers kl_penalty or cells.kl, and {row.name} has neither"
        )
    start = row.kl.weight if row.kl is not None else penalties[0].numbers["beta"]
    if not start:
        raise ValueError(
            f"cells.kl_controller {cell.name} multiplies the KL coefficient, and 0 stays 0; give "
            f"{'cells.kl.weight' if row.kl is not None else 'cells.reward_shaping.kl_penalty.beta'} a start above 0"
        )


def _ratio_fits_policy_loss(row: Row) -> None:
    if row.ratio is None or row.policy_loss is None:
        return
    bounded = "log_ratio_T" in row.policy_loss.required
    used = bounded or (row.kl is not None and "log_ratio_T" in row.kl.required)
    if row.ratio.function is ratios.none and bounded:
        raise ValueError(
            f"cells.policy_loss {row.policy_loss.name} bounds a ratio, but cells.ratio is none; use token, or "
            "cells.policy_loss plain"
        )
    if row.ratio.function is not ratios.none and not used:
        raise ValueError(
            f"cells.ratio {row.ratio.name} has no effect: cells.policy_loss {row.policy_loss.name} takes no ratio; use "
            "none"
        )


def _ratio_fits_aggregation(row: Row) -> None:
    if (
        row.ratio is None
        or row.aggregation is None
        or row.ratio.function not in PER_SEQUENCE_RATIOS
    ):
        return
    if not row.aggregation.name.startswith("sequence_"):
        raise ValueError(
            f"cells.ratio {row.ratio.name} is one number per sequence, but cells.aggregation {row.aggregation.name} "
            "weighs sequences by their length; use sequence_mean_token_mean"
        )


def _policy_loss_fits_the_rest(row: Row) -> None:
    loss = row.policy_loss
    if loss is None:
        return
    if (
        loss.function is policy_losses.gmpo
        and row.ratio is not None
        and row.ratio.function is not ratios.token
    ):
        raise ValueError(
            f"cells.policy_loss gmpo clips each token's own ratio, but cells.ratio {row.ratio.name} is one number for "
            "the whole answer; set cells.ratio.use=token"
        )
    if (
        loss.function is sequence_policy_losses.vespo
        and row.rollout_correction
        and row.rollout_correction.function in PER_SEQUENCE_WEIGHTS
    ):
        raise ValueError(
            f"cells.rollout_correction {row.rollout_correction.name} with cells.policy_loss vespo: vespo multiplies "
            "the weights of a sequence's tokens, and each of them would be the whole sequence's; use token_truncate, "
            "token_mask or none"
        )
    fitting = WHOLE_LOSSES.get(loss.function)
    if fitting and row.aggregation is not None and row.aggregation.function not in fitting:
        raise ValueError(
            f"cells.aggregation {row.aggregation.name} with cells.policy_loss {loss.name}, whose loss is one number "
            f"repeated on every token: long answers would count more; use {fitting[0].__name__}"
        )
