"""Combinations of keys that cannot work, refused before anything runs. Every check is a function with a message."""

from __future__ import annotations

import math

from ascent.advantages import reward_shaping
from ascent.algorithms import Row
from ascent.config.schema import Config
from ascent.losses import ratios
from ascent.plan.cell_compatibility import check_cells
from ascent.plan.unused_keys import REWARD_MODEL
from ascent.rollouts.multi_turn import Limits


def check_compatibility(config: Config, row: Row) -> None:
    """ValueError with the first combination in `config` and `row` that cannot work."""
    check_cells(row)
    if config.model.quantize is not None and config.model.lora is None:
        raise ValueError(
            f"model.quantize={config.model.quantize} freezes the weights, so without LoRA nothing could be trained; "
            "set model.lora (16, say), or model.quantize=null"
        )
    _mix_leaves_room_for_train(config)
    _every_checkpoint_has_a_score(config)
    if row.samples:
        _has_rewards(config, row)
        _minibatches_are_not_empty(config, row)
        check_rollout_lengths(config, row, 1, config.rollouts.max_new_tokens)
        _engine_can_truncate(config)
    if row.source == "fresh_pairs":
        _group_has_a_pair(config, row)
    if row.source == "rollouts":
        _group_has_a_baseline(config, row)
        _sampling_fits_correction(config, row)
        _critic_is_trained(config, row)
        _truncation_has_one_rule(config, row)
        _critic_warms_up_before_the_end(config)
        _stale_rollouts_have_a_ratio(config, row)
        _partial_rollouts_can_wait(config, row)
        _epochs_have_a_ratio(config, row)
        _kl_has_its_ratio(config, row)
        _overlong_is_reachable(config, row)
    if "opponent_samples" in row.needs:
        _opponent_samples_alike(config, row)
    if row.needs & {"teacher", "teacher_distribution"} and config.model.teacher is None:
        raise ValueError(
            f"model.teacher is missing: {row.name} learns from a frozen teacher; name the model"
        )
    if (
        "teacher_distribution" in row.needs
        and config.data.on_policy_fraction
        and config.data.train_on != "completion"
    ):
        raise ValueError(
            f"data.on_policy_fraction={config.data.on_policy_fraction:g} with data.train_on={config.data.train_on}: "
            "the student answers the last question anew, so that answer alone can be trained; use train_on completion"
        )
    if "pretraining" in row.needs and config.data.pretraining is None:
        raise ValueError(
            f"data.pretraining is missing: {row.name} mixes pretraining text into every step; name the text"
        )


def _mix_leaves_room_for_train(config: Config) -> None:
    total = math.fsum(each.share for each in config.data.mix)
    if total >= 1:
        raise ValueError(
            f"data.mix takes {total:g} of every step, which leaves nothing for data.train; shares must add up to less "
            "than 1"
        )
    names = [config.data.train, *(each.use for each in config.data.mix)]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(
            f"data.mix: {twice!r} is named twice; name each data once, with its whole share"
        )


def _every_checkpoint_has_a_score(config: Config) -> None:
    run = config.run
    if run.keep_best and run.save_every % run.evaluate_every:
        raise ValueError(
            f"run.keep_best={run.keep_best}, but run.save_every={run.save_every} is no multiple of "
            f"run.evaluate_every={run.evaluate_every}: a checkpoint without an evaluation cannot be the best; make it "
            "a multiple"
        )


def _has_rewards(config: Config, row: Row) -> None:
    names = [reward.use for reward in config.rewards]
    if REWARD_MODEL in names and config.model.reward_model is None:
        raise ValueError(
            "rewards uses reward_model, but model.reward_model is not set; name the model"
        )
    if not names and config.model.reward_model is None:
        raise ValueError(
            f"rewards is empty: {row.name} learns from rewards; add rewards or model.reward_model"
        )


def _group_has_a_baseline(config: Config, row: Row) -> None:
    size = config.rollouts.group_size
    comparing = [f"{slot} {each.name}" for slot, each in row.cells() if "groups" in each.required]
    if size == 1 and comparing:
        raise ValueError(
            f"rollouts.group_size=1 gives no baseline ({comparing[0]} compares the completions of one prompt); "
            "use >= 2, or algorithm ppo"
        )


def _group_has_a_pair(config: Config, row: Row) -> None:
    size = config.rollouts.group_size
    if "reference_samples" in row.needs and size != 2:
        raise ValueError(
            f"rollouts.group_size={size}, but {row.name} compares one answer of the policy with one of the reference; "
            "use 2, and more prompts (rollouts.prompts_per_step) for more pairs"
        )
    if size < 2:
        raise ValueError(
            f"rollouts.group_size={size}, but a pair takes two answers to a prompt; use >= 2"
        )


def _opponent_samples_alike(config: Config, row: Row) -> None:
    """Both answers are drawn alike."""
    advantage = row.advantage.name if row.advantage else "none"
    if config.rollouts.top_p < 1:
        raise ValueError(
            f"rollouts.top_p={config.rollouts.top_p} with cells.advantage {advantage}: the opponent is drawn from the "
            "whole distribution, and the policy must not have it easier; use top_p 1"
        )


def _sampling_fits_correction(config: Config, row: Row) -> None:
    comparing = [
        f"cells.{slot} {each.name}"
        for slot, each in row.cells()
        if "sampler_logprobs_T" in each.required
    ]
    if comparing and config.rollouts.top_p < 1:
        raise ValueError(
            f"rollouts.top_p={config.rollouts.top_p} with {comparing[0]}: truncated sampling biases what that "
            "compares; use top_p 1, or leave it out (cells.rollout_correction.use=none; under cells.token_weights its "
            "name: false)"
        )


def _critic_is_trained(config: Config, row: Row) -> None:
    has_values = row.advantage is not None and "values_T" in row.advantage.required
    advantage = row.advantage.name if row.advantage else "none"
    if has_values and row.value_loss is None:
        raise ValueError(
            f"cells.advantage {advantage} needs a critic, but no cells.value_loss trains it; add "
            "cells.value_loss.use=mse"
        )
    if row.value_loss is not None and not has_values:
        raise ValueError(
            f"cells.value_loss has no effect: cells.advantage {advantage} uses no critic; set cells.value_loss=false"
        )
    if config.rollouts.truncated_reward == "bootstrap" and not has_values:
        raise ValueError(
            f"rollouts.truncated_reward='bootstrap' asks a critic, but cells.advantage {advantage} has none; use score"
        )


def _truncation_has_one_rule(config: Config, row: Row) -> None:
    rules = [each.name for each in row.reward_shaping if each.name.startswith("eos_")]
    if config.rollouts.truncated_reward == "bootstrap" and rules:
        raise ValueError(
            "rollouts.truncated_reward='bootstrap' lets the critic value a completion that was cut, and "
            f"cells.reward_shaping.{rules[0]} scores it; use one of them: set cells.reward_shaping.{rules[0]}=false, "
            "or truncated_reward score"
        )


def _critic_warms_up_before_the_end(config: Config) -> None:
    alone, steps = config.update.critic_warmup_steps, config.run.steps
    if alone >= steps:
        raise ValueError(
            f"update.critic_warmup_steps={alone} of run.steps={steps} leaves no step for the policy; use fewer, or "
            "more steps in all"
        )


def _has_a_ratio(row: Row) -> bool:
    own = (
        row.policy_loss is not None and "old_logprobs_T" in row.policy_loss.required
    )  # one that forms its own ratio
    return own or (row.ratio is not None and row.ratio.function is not ratios.none)


def _epochs_have_a_ratio(config: Config, row: Row) -> None:
    epochs = config.update.epochs
    if epochs > 1 and not _has_a_ratio(row):
        raise ValueError(
            f"update.epochs={epochs} trains on every rollout {epochs} times, but {row.name} has no ratio to account "
            "for how far the policy has moved since it sampled (cells.ratio none); use 1, or an algorithm with a "
            "ratio, such as ppo or grpo"
        )


def _stale_rollouts_have_a_ratio(config: Config, row: Row) -> None:
    lag = config.rollouts.max_staleness
    if lag and not _has_a_ratio(row):
        raise ValueError(
            f"rollouts.max_staleness={lag} trains on what an older policy sampled, but {row.name} has no ratio to "
            "account for that (cells.ratio none); use 0, or an algorithm with a ratio, such as ppo or grpo"
        )


def _partial_rollouts_can_wait(config: Config, row: Row) -> None:
    """What is unfinished at the end of a step must be able to wait, in a checkpoint too, and go on with new weights."""
    rollouts = config.rollouts
    if not rollouts.partial_rollouts:
        return
    key = "rollouts.partial_rollouts=true"
    if not rollouts.max_staleness:
        raise ValueError(
            f"{key} with rollouts.max_staleness=0: a rollout that goes on in the next step is older than its weights; "
            "use max_staleness 1, or 2 to sample during the update as well"
        )
    if rollouts.engine != "native":
        raise ValueError(
            f"{key}, but engine {rollouts.engine} cannot interrupt a request; use rollouts.engine=native"
        )
    if config.env is not None:
        raise ValueError(
            f"{key}, but an environment cannot wait in a checkpoint; use partial_rollouts=false with env"
        )
    if config.model.routing_replay:
        raise ValueError(
            f"{key} with model.routing_replay=true: the experts that were recorded with the old weights are not those "
            "of the new ones; set one of them to false"
        )
    if row.needs & {"opponent_samples", "collision"}:
        raise ValueError(
            f"{key}, but {row.name} asks the policy that sampled a rollout for more than its log-probs, and here it is "
            "several policies; use partial_rollouts=false"
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


def _engine_can_truncate(config: Config) -> None:
    if config.rollouts.engine == "hf" and config.rollouts.top_p < 1:
        raise ValueError(
            f"rollouts.top_p={config.rollouts.top_p:g}, but rollouts.engine=hf samples from the whole distribution; "
            "use top_p=1, or engine=native"
        )


def check_rollout_lengths(config: Config, row: Row, prompt: int, answer: int) -> None:
    """A rollout is trained in one forward pass, the two of a pair together: `prompt` and `answer` are the most tokens
    that they can have. Before any prompt is read, a prompt has at least one."""
    room, together = config.update.max_microbatch_tokens, 2 if row.source == "fresh_pairs" else 1
    if together * (prompt + answer) > room:
        what = "the two rollouts of a pair" if together == 2 else "a rollout"
        key = (
            "env.max_tokens"
            if answer != config.rollouts.max_new_tokens
            else "rollouts.max_new_tokens"
        )
        raise ValueError(
            f"{what} can have {together * (prompt + answer)} tokens (prompts of up to {prompt}, answers of up to "
            f"{answer} by {key}), more than update.tokens_per_microbatch={room}, and each is trained in one forward "
            f"pass; give {key} a lower value, or raise tokens_per_microbatch"
        )


def _overlong_is_reachable(config: Config, row: Row) -> None:
    budget, why = _longest_rollout(config)
    for each in [
        each for each in row.reward_shaping if each.function is reward_shaping.soft_overlong
    ]:
        limit, cache = int(each.numbers["max_length"]), int(each.numbers["cache"])
        if limit - cache >= budget:
            raise ValueError(
                f"cells.reward_shaping.soft_overlong has no effect: it starts at {limit - cache} tokens (max_length "
                f"{limit}, cache {cache}), but {why} ends every completion before; lower max_length"
            )


def _longest_rollout(config: Config) -> tuple[int, str]:
    """The most tokens that the policy can sample in a rollout, and the keys that limit it."""
    budget, why = (
        config.rollouts.max_new_tokens,
        f"rollouts.max_new_tokens={config.rollouts.max_new_tokens}",
    )
    if config.env is None:
        return budget, why
    given = {
        key: value
        for key, value in config.env.options.items()
        if key in ("max_turns", "max_tokens")
    }
    limits = Limits(**{key: value for key, value in given.items() if isinstance(value, int)})
    turns = limits.max_turns * budget
    if 0 < limits.max_tokens < turns:
        return limits.max_tokens, f"env.max_tokens={limits.max_tokens}"
    return turns, f"env.max_turns={limits.max_turns} times {why}"


def _minibatches_are_not_empty(config: Config, row: Row) -> None:
    prompts, size = config.rollouts.prompts_per_step, config.rollouts.group_size
    most, words = prompts * size, "completions (prompts_per_step x group_size)"
    if row.source == "fresh_pairs":
        most, words = prompts, "pairs at most (prompts_per_step)"
    elif row.trains_groups:
        most, words = prompts, "groups (prompts_per_step), which its policy loss compares"
    if config.update.minibatches > most:
        raise ValueError(
            f"update.minibatches={config.update.minibatches}, but a step has only {most} {words}; use at most {most}"
        )
