"""Causes in the optimizer: learning rate, entropy, KL, the critic."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from ascent.advice import RATE, KeyChange, changes, multiply
from ascent.diagnose.facts import Facts, change_of, examples, mean
from ascent.diagnose.records import Finding
from ascent.metrics import healthy
from ascent.runs.warnings import SOLVED

COLD = 0.5  # a temperature
FIRST_STEPS = 4  # steps that say how a run began
TINY_UPDATE = (
    1e-5  # nats per token: at this rate a policy moves by a hundredth of a nat in a thousand steps
)


def rate_too_high(facts: Facts) -> Finding | None:
    """Updates that throw the policy far from where it was, after which the score is lower; or a loss that grows."""
    return _policy_thrown(facts) or _spoiled_at_once(facts) or _loss_grows(facts)


def _policy_thrown(facts: Facts) -> Finding | None:
    high = healthy("policy/update_kl")[1]
    kls, score = facts.curve("policy/update_kl"), "reward/correct"
    too_far = [(step, value) for step, value in kls if value > high]
    found = facts.change(score)
    stopped = facts.state == "failed" and "not finite" in facts.message
    if not too_far and not stopped:
        return None
    skipped = sum(facts.values("optim/skipped"))
    worst = max((value for _, value in kls), default=0.0)
    fell = found is not None and found.last < 0.6 * max(found.first, 1e-9) and found.first > 0.02
    early = [value for _, value in too_far if value > 2 * high][:1]
    if not stopped and not (len(too_far) >= 2 and (fell or early)):
        return None
    words = [
        f"{len(too_far)} of {len(kls)} updates moved the policy by more than {high:g} nats per token (up to "
        f"{worst:.3g})"
    ]
    if found is not None:
        words.append(f"{score} went from {found.first:.3g} to {found.last:.3g}")
    if skipped or stopped:
        words.append(f"{skipped:.0f} steps had a gradient that was not finite")
    return Finding(
        cause="learning_rate_too_high",
        summary="Single updates change the policy so much that it forgets what it could do.",
        began=too_far[0][0] if too_far else facts.steps,
        confidence=min(0.98, 0.6 + 0.1 * len(too_far) + 0.1 * fell),
        evidence=tuple(words),
        changes=changes("learning_rate_too_high", facts.config),
        metrics=("policy/update_kl", score, "policy/entropy", "optim/grad_norm"),
        rollouts=examples(facts.quarter(last=True)),
    )


def _spoiled_at_once(facts: Facts) -> Finding | None:
    """The first updates are large, and after them the policy earns less than half of what it did before any."""
    name = next(
        (each for each in ("eval/reward/mean", "reward/mean") if len(facts.values(each)) >= 4), None
    )
    kls = [value for _, value in facts.curve("policy/update_kl")]
    if name is None or len(kls) < 4 or facts.config.get("cells.entropy_bonus.weight"):
        return None
    (_, start), *after = facts.curve(name)  # of the untouched policy
    soon, end = (
        mean([value for _, value in after[: max(2, len(after) // 3)]]),
        mean([value for _, value in after[-2:]]),
    )
    largest = max(kls[: max(2, len(kls) // 4)])
    if start < 0.1 or max(soon, end) > 0.5 * start or largest < healthy("policy/update_kl")[1] / 5:
        return None
    return Finding(
        cause="learning_rate_too_high",
        summary="The first updates change the policy so much that it forgets what it could do.",
        began=1,
        confidence=0.8,
        evidence=(
            f"{name} was {start:.3g} before the first update, {soon:.3g} soon after and {end:.3g} in the end",
            f"one of the first updates moved the policy by {largest:.3g} nats per token",
        ),
        changes=changes("learning_rate_too_high", facts.config),
        metrics=("policy/update_kl", name, "policy/entropy", "optim/grad_norm"),
        rollouts=examples(facts.quarter(last=True)),
    )


def _loss_grows(facts: Facts) -> Finding | None:
    """For runs that learn from files: the loss rises above its start and stays there, or rises far above it."""
    losses = facts.curve("loss/total")
    if facts.samples_rewards or len(losses) < 8:
        return None
    values = [value for _, value in losses]
    begin, highest, end = (
        mean(values[:2]),
        max(values[2:]),
        mean(values[-max(2, len(values) // 4) :]),
    )
    skipped = sum(facts.values("optim/skipped"))
    broken = skipped > 2 or (facts.state == "failed" and "not finite" in facts.message)
    if not broken and highest < (1.3 if end > begin else 1.6) * begin + 0.05:
        return None
    began = next((step for step, value in losses if value > 1.2 * begin), 1)
    return Finding(
        cause="learning_rate_too_high",
        summary="The loss grew instead of falling: steps are larger than the loss is smooth.",
        began=began,
        confidence=0.95 if highest > 1.6 * begin or skipped > 2 else 0.75,
        evidence=(
            f"the loss began at {begin:.3g}, rose to {highest:.3g} and ended at {end:.3g}",
            f"the gradient norm was up to {max(facts.values('optim/grad_norm'), default=0):.3g}",
        ),
        changes=changes("learning_rate_too_high", facts.config),
        metrics=("loss/total", "eval/loss/total", "optim/grad_norm"),
    )


def rate_too_low(facts: Facts) -> Finding | None:
    """There is a signal, and the policy does not move."""
    if facts.samples_rewards:
        return _policy_rests(facts)
    losses = facts.values("loss/total")
    found = change_of(losses)
    if found is None or len(losses) < 20 or found.first <= 0:
        return None
    flat = abs(found.last - found.first) < 0.03 * found.first
    norm = mean(facts.values("optim/grad_norm"))
    moved = max((abs(value) for value in facts.values("preference/margin")), default=0.0) > 0.02
    if not flat or norm < 0.1 or moved:
        return None
    return Finding(
        cause="learning_rate_too_low",
        summary="The loss stays where it began although its gradient is not small.",
        began=1,
        confidence=0.8 if abs(found.last - found.first) < 0.01 * found.first else 0.65,
        evidence=(
            f"the loss went from {found.first:.4g} to {found.last:.4g} in {facts.steps} steps",
            f"the gradient norm is {norm:.3g}",
        ),
        changes=(KeyChange(RATE, multiply(facts.config.get(RATE), 10), "ten times"),),
        metrics=("loss/total", "eval/loss/total", "optim/grad_norm"),
    )


def _policy_rests(facts: Facts) -> Finding | None:
    kls, rewards = facts.values("policy/update_kl"), facts.change("reward/mean")
    if len(kls) < 4 or rewards is None:
        return None
    typical = sorted(kls)[len(kls) // 2]
    signal = mean(facts.values("reward/zero_std_frac") or [0.0])
    if (
        typical > TINY_UPDATE
        or rewards.rises
        or signal > 0.8
        or mean(facts.values("reward/std")) == 0
    ):
        return None
    return Finding(
        cause="learning_rate_too_low",
        summary="There is a training signal, and the policy does not follow it.",
        began=1,
        confidence=0.95 if typical < TINY_UPDATE / 10 else 0.8,
        evidence=(
            f"an update moves the policy by {typical:.2g} nats per token",
            f"reward/mean went from {rewards.first:.3g} to {rewards.last:.3g} in {facts.steps} steps",
            f"{1 - signal:.0%} of the groups have rewards to learn from",
        ),
        changes=(
            KeyChange(
                RATE,
                multiply(facts.config.get(RATE), 10),
                "ten times; repeat until policy/update_kl is near 0.001",
            ),
        ),
        metrics=("policy/update_kl", "reward/mean", "optim/lr"),
    )


def entropy_explosion(facts: Facts) -> Finding | None:
    values, high = facts.values("policy/entropy"), healthy("policy/entropy")[1]
    found = facts.change("policy/entropy")
    if found is None or not (found.last > max(high, 3 * found.first) and found.rises):
        return None
    bonus = facts.config.get("cells.entropy_bonus.weight")
    began = facts.first_step(
        "policy/entropy", lambda value: value > max(high, 2 * mean(values[:3]))
    )
    weight = KeyChange(
        "cells.entropy_bonus.weight", multiply(bonus, 0.01), "the bonus outweighs the reward"
    )
    return Finding(
        cause="entropy_explosion",
        summary="The policy becomes noise: it spreads over tokens that earn nothing.",
        began=began,
        confidence=0.9 if bonus else 0.7,
        evidence=(
            f"policy/entropy went from {found.first:.3g} to {found.last:.3g} nats per token",
            *([f"cells.entropy_bonus.weight is {bonus:g}"] if bonus else []),
        ),
        changes=((weight,) if bonus else ()) + changes("entropy_explosion", facts.config),
        metrics=("policy/entropy", "reward/mean", "completion/length_mean"),
        rollouts=examples(facts.quarter(last=True)),
    )


def cold_sampling(facts: Facts) -> Finding | None:
    """A low temperature leaves nothing to explore from the first step on: what follows cannot be the cause."""
    heat, values = facts.config.get("rollouts.temperature", 1.0), facts.values("policy/entropy")
    equal = facts.values("reward/zero_std_frac")[:FIRST_STEPS]
    if not isinstance(heat, int | float) or heat > COLD or not values or not equal:
        return None
    right = mean(facts.values("reward/correct")[:FIRST_STEPS])
    if (
        mean(values[:FIRST_STEPS]) > 4 * healthy("policy/entropy")[0]
        or mean(equal) < 0.7
        or not 0.1 < right < 0.9
    ):
        return None
    return _collapsed(facts, confidence=0.95)


def entropy_collapse(facts: Facts) -> Finding | None:
    """Entropy far below the start, or next to nothing all along, while the task is not solved."""
    found, solved, low = (
        facts.change("policy/entropy"),
        facts.change("reward/correct"),
        healthy("policy/entropy")[0],
    )
    if found is None or solved is None or cold_sampling(facts) is not None:
        return None
    equal = mean(facts.values("reward/zero_std_frac") or [0.0])
    fell = found.last < min(0.12, 0.25 * found.first) and not (solved.rises and solved.last > 0.6)
    cold = max(found.first, found.last) < 4 * low and equal > 0.5
    if not fell and not cold:
        return None
    return _collapsed(facts, confidence=0.9 if found.last < 2 * low or cold else 0.75)


def _collapsed(facts: Facts, *, confidence: float) -> Finding | None:
    """None where the task is solved: then nothing is left to explore."""
    found, solved, low = (
        facts.change("policy/entropy"),
        facts.change("reward/correct"),
        healthy("policy/entropy")[0],
    )
    if found is None or solved is None or solved.last >= SOLVED - 0.1:
        return None
    equal = mean(facts.values("reward/zero_std_frac") or [0.0])
    began = facts.first_step(
        "policy/entropy", lambda value: value < max(4 * low, 0.3 * found.first), in_a_row=2
    )
    heat = facts.config.get("rollouts.temperature", 1.0)
    warmer = (KeyChange("rollouts.temperature", "1.0", f"it is {heat:g}"),) if heat < 1 else ()
    return Finding(
        cause="entropy_collapse",
        summary="The policy does not explore, and it has not solved the task.",
        began=began,
        confidence=confidence,
        evidence=(
            f"policy/entropy is {found.last:.3g} nats per token ({found.first:.3g} in the first steps), and "
            f"reward/correct is {solved.last:.3g}",
            f"{equal:.0%} of the groups have equal rewards",
        ),
        changes=warmer + changes("entropy_collapse", facts.config),
        metrics=("policy/entropy", "reward/correct", "reward/zero_std_frac"),
        rollouts=examples(facts.quarter(last=True)),
    )


def kl_runaway(facts: Facts) -> Finding | None:
    """Far from the reference and still leaving, and nothing but a reward model says that this is good."""
    kls, high, score = facts.values("policy/ref_kl"), healthy("policy/ref_kl")[1], facts.score
    if len(kls) < 8 or score is None:
        return None
    # Medians: k3 has outliers of hundreds where a token of the reference is nearly impossible.
    first, last = (
        statistics.median(kls[: len(kls) // 4]),
        statistics.median(kls[-(len(kls) // 4) :]),
    )
    if last < 2 * high or last < 1.3 * first:
        return None
    values = facts.values(score)
    half = change_of(values[len(values) // 2 :]) or change_of(values)
    judged = facts.scored_by_model and facts.truth_is_reward
    if half is not None and half.rises and half.last > half.first + 0.1 and not judged:
        return None
    began = facts.first_step("policy/ref_kl", lambda value: value > high, in_a_row=2)
    return Finding(
        cause="kl_runaway",
        summary="The policy leaves its reference without bound.",
        began=began,
        confidence=0.7,
        evidence=(
            f"policy/ref_kl went from {first:.3g} to {last:.3g} nats per token",
            f"{score} is {values[-1]:.3g} at the end, {max(values):.3g} at its best",
        ),
        changes=changes("kl_runaway", facts.config),
        metrics=("policy/ref_kl", score, "policy/entropy"),
        rollouts=examples(facts.quarter(last=True)),
    )


def useless_critic(facts: Facts) -> Finding | None:
    values = facts.values("critic/explained_variance")
    if len(values) < 8:
        return None
    late = mean(values[len(values) // 2 :])
    if late > 0.0 and max(values[len(values) // 2 :]) > 0.05:
        return None
    losses = facts.change("critic/loss")
    if late > -0.3 and losses is not None and losses.last < 0.5 * losses.first:
        return None
    return Finding(
        cause="critic_explains_nothing",
        summary="The critic's values say nothing about returns, so they add noise to the advantages.",
        began=1,
        confidence=0.9 if late < -0.3 else 0.65,
        evidence=(
            f"critic/explained_variance is {late:.2f} over the second half; 0 is what a constant would reach",
            *(
                [f"critic/loss went from {losses.first:.3g} to {losses.last:.3g}"]
                if losses is not None
                else []
            ),
        ),
        changes=(
            KeyChange(
                "update.critic_learning_rate",
                multiply(
                    facts.config.get("update.critic_learning_rate") or facts.config.get(RATE), 10
                ),
                "ten times",
            ),
            KeyChange(
                "update.critic_warmup_steps", "10", "the critic learns before the policy follows it"
            ),
            critic_start(facts.config),
        ),
        metrics=("critic/explained_variance", "critic/loss", "reward/mean"),
    )


def critic_start(config: Mapping[str, Any]) -> KeyChange:
    """Another start than the run's: a reward model's scores of unfinished texts can be far from any return."""
    if config.get("model.reward_model") and not config.get("model.critic_from"):
        return KeyChange(
            "model.critic_from", str(config["model.policy"]), "the policy: values start at 0"
        )
    return KeyChange("model.critic_from", "the reward model or the policy")
