"""Combinations that cannot work, refused before anything runs. Each check is one function with its own message."""

from __future__ import annotations

import math
from typing import get_type_hints

from ascent.advantages import reward_shaping
from ascent.advantages.advantage import TokenAdvantage
from ascent.algorithms import TABLE, Row
from ascent.config.schema import Config
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
from ascent.plan.unused_keys import REWARD_MODEL

# Fresh pairs carry what pairs of a file carry, but for what only a file can say.
ALIKE = {"fresh_pairs": ("fresh_pairs", "pairs")}
ONLY_IN_FILES = frozenset({"gold_B", "margins_P", "scores_B"})

PER_SEQUENCE_RATIOS = (ratios.sequence_geometric, ratios.sequence_geometric_token)
PER_SEQUENCE_WEIGHTS = (
    rollout_correction.product_truncate,
    rollout_correction.product_mask,
    rollout_correction.product_normalized,
)
# Gates whose loss is one number for a group or a sequence, and the aggregates that count each of them once.
OF_THE_WHOLE = {
    sequence_policy_losses.real: (aggregation.group_mean,),
    sequence_policy_losses.regression: (aggregation.sequence_mean_token_mean, aggregation.group_mean),
    policy_losses.gmpo: (aggregation.sequence_mean_token_mean, aggregation.group_mean),
}


def check_compatibility(config: Config, row: Row) -> None:
    """ValueError with the first combination in `config` and `row` that cannot work."""
    _inputs_exist(row)
    _focus_fits_loss(row)
    _shares_leave_room(config)
    _every_checkpoint_has_a_score(config)
    if row.samples:
        _something_to_reward(config, row)
        _minibatches_are_not_empty(config, row)
        refuse_long_rollouts(config, row, 1, config.rollouts.max_new_tokens)
    if row.source == "fresh_pairs":
        _group_has_a_pair(config, row)
    if row.source == "rollouts":
        _group_has_a_baseline(config, row)
        _normalizer_fits_credit(row)
        _sampling_fits_correction(config, row)
        _critic_is_trained(config, row)
        _kl_has_a_gradient(row)
        _controller_has_a_term(row)
        _cut_completions_have_one_rule(config, row)
        _critic_warms_up_before_the_end(config)
        _old_rollouts_have_a_ratio(config, row)
        _several_passes_have_a_ratio(config, row)
        _ratio_fits_gate(row)
        _kl_has_its_ratio(config, row)
        _ratio_fits_aggregate(row)
        _gate_fits_the_rest(row)
        _overlong_is_reachable(config, row)
    if "opponent_samples" in row.needs:
        _opponent_is_a_fair_one(config, row)
    if row.needs & {"teacher", "teacher_distribution"} and config.model.teacher is None:
        raise ValueError(f"model.teacher is missing: {row.name} learns from a frozen teacher; name the model")
    if "teacher_distribution" in row.needs and config.data.on_policy_fraction and config.data.train_on != "completion":
        raise ValueError(
            f"data.on_policy_fraction={config.data.on_policy_fraction:g} with data.train_on={config.data.train_on}: "
            "the student answers the last question anew, so that answer alone can be trained; use train_on completion"
        )
    if "pretraining" in row.needs and config.data.pretraining is None:
        raise ValueError(
            f"data.pretraining is missing: {row.name} mixes pretraining text into every step; name the text"
        )


def _inputs_exist(row: Row) -> None:
    """A cell may need what only another kind of data has: the table itself says which inputs come with which source."""
    sources = ALIKE.get(row.source, (row.source,))
    here = {name for other in TABLE.values() if other.source in sources for name in other.inputs}
    here |= {"segments", "loss_mask_T"}  # every batch has them
    here -= ONLY_IN_FILES if row.samples else set()
    elsewhere = {name: str(other.source) for other in TABLE.values() for name in other.inputs if name not in here}
    elsewhere["potentials_T"] = "no data of a recipe"  # `potential` is for who calls it from Python
    for slot, each in row.cells():
        foreign = next((name for name in each.required if name in elsewhere), None)
        if foreign:
            raise ValueError(
                f"cells.{slot}: {each.name} needs {foreign}, which comes with {elsewhere[foreign]}, "
                f"but {row.name} learns from {row.source}; choose another function"
            )


def _shares_leave_room(config: Config) -> None:
    total = math.fsum(each.share for each in config.data.mix)
    if total >= 1:
        raise ValueError(
            f"data.mix takes {total:g} of every step, which leaves nothing for data.train; shares must add up to less "
            "than 1"
        )
    names = [config.data.train, *(each.use for each in config.data.mix)]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"data.mix: {twice!r} is named twice; name each data once, with its whole share")


def _every_checkpoint_has_a_score(config: Config) -> None:
    run = config.run
    if run.keep_best and run.save_every % run.evaluate_every:
        raise ValueError(
            f"run.keep_best={run.keep_best}, but run.save_every={run.save_every} is no multiple of "
            f"run.evaluate_every={run.evaluate_every}: a checkpoint without an evaluation cannot be the best; make it "
            "a multiple"
        )


def _focus_fits_loss(row: Row) -> None:
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


def _something_to_reward(config: Config, row: Row) -> None:
    names = [reward.use for reward in config.rewards]
    if REWARD_MODEL in names and config.model.reward_model is None:
        raise ValueError("rewards uses reward_model, but model.reward_model is not set; name the model")
    if not names and config.model.reward_model is None:
        raise ValueError(f"rewards is empty: {row.name} learns from rewards; add rewards or model.reward_model")


def _group_has_a_baseline(config: Config, row: Row) -> None:
    size = config.rollouts.group_size
    comparing = [f"{slot} {each.name}" for slot, each in row.cells() if "groups" in each.required]
    if size == 1 and comparing:
        raise ValueError(
            f"rollouts.group_size=1 gives no baseline ({comparing[0]} compares the completions of one prompt); "
            "use >= 2, or algorithm ppo"
        )


def _normalizer_fits_credit(row: Row) -> None:
    if row.advantage is None or row.advantage_norm is None or "advantages_B" not in row.advantage_norm.required:
        return
    if get_type_hints(row.advantage.function).get("return") is TokenAdvantage:
        raise ValueError(
            f"cells.advantage_norm {row.advantage_norm.name} rescales one advantage an answer, but cells.advantage "
            f"{row.advantage.name} gives one a token; set cells.advantage_norm.use to whiten_token or none"
        )


def _group_has_a_pair(config: Config, row: Row) -> None:
    size = config.rollouts.group_size
    if "reference_samples" in row.needs and size != 2:
        raise ValueError(
            f"rollouts.group_size={size}, but {row.name} compares one answer of the policy with one of the reference; "
            "use 2, and more prompts (rollouts.prompts_per_step) for more pairs"
        )
    if size < 2:
        raise ValueError(f"rollouts.group_size={size}, but a pair takes two answers to a prompt; use >= 2")


def _opponent_is_a_fair_one(config: Config, row: Row) -> None:
    """Both answers are drawn alike, and what is learnt from is the chance of winning, which no shaping touches."""
    credit = row.advantage.name if row.advantage else "none"
    if config.rollouts.top_p < 1:
        raise ValueError(
            f"rollouts.top_p={config.rollouts.top_p} with cells.advantage {credit}: the opponent is drawn from the "
            "whole distribution, and the policy must not have it easier; use top_p 1"
        )
    if row.reward_shaping:
        raise ValueError(
            f"cells.reward_shaping.{row.reward_shaping[0].name} has no effect: cells.advantage {credit} learns from "
            "the chance of winning, not from the reward that is shaped; set "
            f"cells.reward_shaping.{row.reward_shaping[0].name}=false, or add a reward that scores both answers"
        )


def _sampling_fits_correction(config: Config, row: Row) -> None:
    comparing = [f"cells.{slot} {each.name}" for slot, each in row.cells() if "sampler_logprobs_T" in each.required]
    if comparing and config.rollouts.top_p < 1:
        raise ValueError(
            f"rollouts.top_p={config.rollouts.top_p} with {comparing[0]}: truncated sampling biases what that "
            "compares; use top_p 1, or leave it out (cells.rollout_correction.use=none; under cells.token_weights its "
            "name: false)"
        )


def _critic_is_trained(config: Config, row: Row) -> None:
    has_values = row.advantage is not None and "values_T" in row.advantage.required
    credit = row.advantage.name if row.advantage else "none"
    if has_values and row.value_loss is None:
        raise ValueError(
            f"cells.advantage {credit} needs a critic, but no cells.value_loss trains it; add cells.value_loss.use=mse"
        )
    if row.value_loss is not None and not has_values:
        raise ValueError(
            f"cells.value_loss has no effect: cells.advantage {credit} uses no critic; set cells.value_loss=false"
        )
    if config.rollouts.truncated_reward == "bootstrap" and not has_values:
        raise ValueError(
            f"rollouts.truncated_reward='bootstrap' asks a critic, but cells.advantage {credit} has none; use score"
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
    from_old, to_old = cell.function is kl_controllers.ppo_penalty, row.kl is not None and row.kl.function is kl.to_old
    if from_old != to_old:
        wants, has = ("the sampling policy", "the reference") if from_old else ("the reference", "the sampling policy")
        fix = "ziegler_sequence" if from_old else "ppo_penalty"
        raise ValueError(
            f"cells.kl_controller {cell.name} looks at KL to {wants}, but {row.name} penalizes KL to {has}; use {fix}"
        )
    if row.kl is None and not penalties:
        raise ValueError(f"cells.kl_controller {cell.name} steers kl_penalty or cells.kl, and {row.name} has neither")
    start = row.kl.weight if row.kl is not None else penalties[0].numbers["beta"]
    if not start:
        raise ValueError(
            f"cells.kl_controller {cell.name} multiplies the KL coefficient, and 0 stays 0; give "
            f"{'cells.kl.weight' if row.kl is not None else 'cells.reward_shaping.kl_penalty.beta'} a start above 0"
        )


def _cut_completions_have_one_rule(config: Config, row: Row) -> None:
    rules = [each.name for each in row.reward_shaping if each.name.startswith("eos_")]
    if config.rollouts.truncated_reward == "bootstrap" and rules:
        raise ValueError(
            "rollouts.truncated_reward='bootstrap' lets the critic value a completion that was cut, and "
            f"cells.reward_shaping.{rules[0]} scores it; use one of them: set cells.reward_shaping.{rules[0]}=false, "
            "or truncation score"
        )


def _critic_warms_up_before_the_end(config: Config) -> None:
    alone, steps = config.update.critic_warmup_steps, config.run.steps
    if alone >= steps:
        raise ValueError(
            f"update.critic_warmup_steps={alone} of run.steps={steps} leaves no step for the policy; use fewer, or "
            "more steps in all"
        )


def _has_a_ratio(row: Row) -> bool:
    own = row.policy_loss is not None and "old_logprobs_T" in row.policy_loss.required  # a gate that forms its own
    return own or (row.ratio is not None and row.ratio.function is not ratios.none)


def _several_passes_have_a_ratio(config: Config, row: Row) -> None:
    epochs = config.update.epochs
    if epochs > 1 and not _has_a_ratio(row):
        raise ValueError(
            f"update.epochs={epochs} trains on every rollout {epochs} times, but {row.name} has no ratio to account "
            "for how far the policy has moved since it sampled (cells.ratio none); use 1, or an algorithm with a "
            "ratio, such as ppo or grpo"
        )


def _old_rollouts_have_a_ratio(config: Config, row: Row) -> None:
    lag = config.rollouts.max_staleness
    if lag and not _has_a_ratio(row):
        raise ValueError(
            f"rollouts.max_staleness={lag} trains on what an older policy sampled, but {row.name} has no ratio to "
            "account for that (cells.ratio none); use 0, or an algorithm with a ratio, such as ppo or grpo"
        )


def _ratio_fits_gate(row: Row) -> None:
    if row.ratio is None or row.policy_loss is None:
        return
    bounded = "log_ratio_T" in row.policy_loss.required
    used = bounded or (row.kl is not None and "log_ratio_T" in row.kl.required)
    if row.ratio.function is ratios.none and bounded:
        raise ValueError(
            f"cells.policy_loss {row.policy_loss.name} bounds a ratio, but cells.ratio is none; use token, or gate "
            "plain"
        )
    if row.ratio.function is not ratios.none and not used:
        raise ValueError(
            f"cells.ratio {row.ratio.name} has no effect: gate {row.policy_loss.name} takes no ratio; use none"
        )


def _kl_has_its_ratio(config: Config, row: Row) -> None:
    """A KL that multiplies by the ratio means each token's own. Without a ratio it is right for what the policy of this
    update sampled, and no other."""
    if row.kl is None or row.ratio is None or "log_ratio_T" not in row.kl.required:
        return
    if row.ratio.function not in (ratios.none, ratios.token):
        raise ValueError(
            f"cells.kl {row.kl.name} multiplies by a token's own ratio, but cells.ratio {row.ratio.name} is one number "
            "for the whole answer; set cells.kl.use=k2, or cells.ratio.use=token"
        )
    updates, lag = config.update.epochs * config.update.minibatches, config.rollouts.max_staleness
    if row.ratio.function is ratios.none and (updates > 1 or lag):
        raise ValueError(
            f"cells.kl {row.kl.name} multiplies by the ratio, which cells.ratio none holds at 1, but {row.name} makes "
            f"{updates} updates of a step's rollouts (max_staleness {lag}); set cells.ratio.use=token"
        )


def refuse_long_rollouts(config: Config, row: Row, prompt: int, answer: int) -> None:
    """A rollout is trained in one forward pass, the two of a pair together: `prompt` and `answer` are the most tokens
    that they can have. Before any prompt is read, a prompt has at least one."""
    room, together = config.update.tokens_per_microbatch, 2 if row.source == "fresh_pairs" else 1
    if together * (prompt + answer) > room:
        what = "the two rollouts of a pair" if together == 2 else "a rollout"
        raise ValueError(
            f"{what} can have {together * (prompt + answer)} tokens (prompts of up to {prompt}, answers of up to "
            f"{answer} by rollouts.max_new_tokens={config.rollouts.max_new_tokens}), more than "
            f"update.tokens_per_microbatch={room}, and each is trained in one forward pass; lower max_new_tokens, or "
            "raise tokens_per_microbatch"
        )


def _ratio_fits_aggregate(row: Row) -> None:
    if row.ratio is None or row.aggregation is None or row.ratio.function not in PER_SEQUENCE_RATIOS:
        return
    if not row.aggregation.name.startswith("sequence_"):
        raise ValueError(
            f"cells.ratio {row.ratio.name} is one number per sequence, but cells.aggregation {row.aggregation.name} "
            "weighs sequences by their length; use sequence_mean_token_mean"
        )


def _gate_fits_the_rest(row: Row) -> None:
    gate = row.policy_loss
    if gate is None:
        return
    if gate.function is policy_losses.gmpo and row.ratio is not None and row.ratio.function is not ratios.token:
        raise ValueError(
            f"cells.policy_loss gmpo clips each token's own ratio, but cells.ratio {row.ratio.name} is one number for "
            "the whole answer; set cells.ratio.use=token"
        )
    if (
        gate.function is sequence_policy_losses.vespo
        and row.rollout_correction
        and row.rollout_correction.function in PER_SEQUENCE_WEIGHTS
    ):
        raise ValueError(
            f"cells.rollout_correction {row.rollout_correction.name} with cells.policy_loss vespo: vespo multiplies "
            "the weights of a sequence's tokens, and each of them would be the whole sequence's; use token_truncate, "
            "token_mask or none"
        )
    fitting = OF_THE_WHOLE.get(gate.function)
    if fitting and row.aggregation is not None and row.aggregation.function not in fitting:
        raise ValueError(
            f"cells.aggregation {row.aggregation.name} with cells.policy_loss {gate.name}, whose loss is one number "
            f"repeated on every token: long answers would count more; use {fitting[0].__name__}"
        )


def _overlong_is_reachable(config: Config, row: Row) -> None:
    budget = config.rollouts.max_new_tokens
    for each in [each for each in row.reward_shaping if each.function is reward_shaping.soft_overlong]:
        limit, cache = int(each.numbers["max_length"]), int(each.numbers["cache"])
        if limit - cache >= budget:
            raise ValueError(
                f"cells.reward_shaping.soft_overlong has no effect: it starts at {limit - cache} tokens (max_length "
                f"{limit}, cache {cache}), but rollouts.max_new_tokens={budget} ends every completion before; lower "
                "max_length"
            )


def _minibatches_are_not_empty(config: Config, row: Row) -> None:
    prompts, size = config.rollouts.prompts_per_step, config.rollouts.group_size
    most, words = prompts * size, "completions (prompts_per_step x group_size)"
    if row.source == "fresh_pairs":
        most, words = prompts, "pairs at most (prompts_per_step)"
    elif row.trains_groups:
        most, words = prompts, "groups (prompts_per_step), which its gate compares as wholes"
    if config.update.minibatches > most:
        raise ValueError(
            f"update.minibatches={config.update.minibatches}, but a step has only {most} {words}; use at most {most}"
        )
