"""Causes in sampling: length, truncation, a sampler that disagrees, rollouts that are too old."""

from __future__ import annotations

from ascent.advice import RATE, KeyChange, changes, multiply
from ascent.diagnose.facts import Facts, correct_of, examples, length_of, mean, reward_correlation
from ascent.diagnose.records import Finding
from ascent.metrics import healthy


def length_explosion(facts: Facts) -> Finding | None:
    """Completions grow, and neither does the reward pay for it nor are more of them right."""
    found, reward = facts.change("completion/length_mean"), facts.change("reward/mean")
    if found is None or reward is None or found.last < 1.7 * found.first or not found.rises:
        return None
    pays, right = (
        reward_correlation(facts.quarter(last=False), length_of),
        facts.change("reward/correct"),
    )
    if (pays > 0.3 and reward.rises) or (right is not None and right.rises):
        return None
    cut = facts.change("completion/truncated_frac")
    began = facts.first_step(
        "completion/length_mean", lambda value: value > 1.5 * found.first, in_a_row=2
    )
    masked = any(key.startswith("cells.filter.not_truncated") for key in facts.config)
    return Finding(
        cause="length_explosion",
        summary="Completions get longer although length is not rewarded.",
        began=began,
        confidence=0.75,
        evidence=(
            f"completion/length_mean went from {found.first:.3g} to {found.last:.3g} tokens",
            f"reward/mean went from {reward.first:.3g} to {reward.last:.3g}; its correlation with length "
            f"was {pays:.2f}",
            *(
                [f"{cut.last:.0%} of completions are cut at rollouts.max_new_tokens"]
                if cut is not None
                else []
            ),
        ),
        changes=(
            *(
                [
                    KeyChange(
                        "cells.filter.not_truncated", "false", "masked completions cost nothing"
                    )
                ]
                if masked
                else []
            ),
            *changes("length_explosion", facts.config),
        ),
        metrics=("completion/length_mean", "completion/truncated_frac", "reward/mean"),
        rollouts=examples(facts.quarter(last=True), length_of),
    )


def truncation(facts: Facts) -> Finding | None:
    """The budget cuts many completions from the first step on."""
    values, high = (
        facts.values("completion/truncated_frac"),
        healthy("completion/truncated_frac")[1],
    )
    if (
        len(values) < 3 or min(values[0], mean(values)) < high
    ):  # the first rollouts are those of the untouched policy
        return None
    budget = facts.config.get("rollouts.max_new_tokens")
    cut = [each for each in facts.samples if each.get("stop") == "length"]
    right = [value for each in cut if (value := correct_of(each)) is not None]
    return Finding(
        cause="truncation",
        summary="The token budget ends completions before the policy does.",
        began=1,
        confidence=0.9 if values[0] > 0.5 else 0.7,
        evidence=(
            f"{values[0]:.0%} of completions are cut in the first step, {mean(values):.0%} over the "
            f"run (rollouts.max_new_tokens={budget})",
            *([f"{mean(right):.0%} of the cut completions are right"] if right else []),
        ),
        changes=changes("truncation", facts.config),
        metrics=("completion/truncated_frac", "completion/length_mean", "reward/mean"),
        rollouts=examples(cut),
    )


def sampler_mismatch(facts: Facts) -> Finding | None:
    values, high = facts.values("sampler/logprob_diff"), healthy("sampler/logprob_diff")[1]
    if not values or mean(values) < high or facts.values("sampler/staleness"):
        return None
    return Finding(
        cause="sampler_mismatch",
        summary="The sampler and the trainer give the same tokens different probabilities.",
        began=1,
        confidence=0.95,
        evidence=(
            f"their log-probs differ by {mean(values):.3g} nats per token on average (healthy: at most {high:g})",
            f"by up to {max(facts.values('sampler/logprob_diff_max'), default=0):.3g}; rollouts.engine is "
            f"{facts.config.get('rollouts.engine', 'native')}",
        ),
        changes=changes("sampler_mismatch", facts.config),
        metrics=("sampler/logprob_diff", "sampler/is_ess", "reward/mean"),
    )


def stale_rollouts(facts: Facts) -> Finding | None:
    """Rollouts are several versions old, and the policy has left the one that sampled."""
    stale, kls = facts.values("sampler/staleness"), facts.values("policy/approx_kl")
    score = facts.change("reward/mean")
    if not stale or max(stale) < 1 or not kls:
        return None
    high = healthy("policy/approx_kl")[1]
    far = mean(kls[len(kls) // 4 :])
    if far < high and not (score is not None and score.falls):
        return None
    limit = facts.config.get("rollouts.max_staleness")
    return Finding(
        cause="stale_rollouts",
        summary="The policy trains on rollouts of an older self that behaves differently.",
        began=facts.first_step("policy/approx_kl", lambda value: value > high) or 1,
        confidence=0.95 if far > 2 * high else 0.75,
        evidence=(
            f"rollouts are {max(stale):.0f} versions old, and policy/approx_kl is {far:.3g} nats per token "
            f"(healthy: at most {high:g})",
            *(
                [f"reward/mean went from {score.first:.3g} to {score.last:.3g}"]
                if score is not None
                else []
            ),
        ),
        changes=(
            KeyChange("rollouts.max_staleness", "1" if limit is None or limit > 1 else "0"),
            KeyChange(
                RATE,
                multiply(facts.config.get(RATE), 0.3),
                "so that a version differs less from the next",
            ),
            KeyChange("cells.rollout_correction.use", "token_truncate"),
        ),
        metrics=("sampler/staleness", "policy/approx_kl", "reward/mean"),
    )
