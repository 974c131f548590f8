"""Causes in what the reward pays for: hacking, reward models, labels."""

from __future__ import annotations

from functools import partial

from ascent.advice import KeyChange
from ascent.diagnose.facts import (
    Change,
    Facts,
    Sample,
    change_of,
    correct_of,
    examples,
    length_of,
    marker_of,
    mean,
    repetition_of,
    reward_correlation,
    scored,
)
from ascent.diagnose.records import Finding


def reward_hacking(facts: Facts) -> Finding | None:
    """The reward rises and the truth does not, or, where nothing says what is right, length or a mark explains all."""
    reward = facts.change("reward/mean")
    if reward is None or not reward.rises or facts.scored_by_model:
        return None
    if facts.truth_is_reward:
        return _unjudged_hack(facts, reward)
    truth_name = (
        "eval/reward/correct" if len(facts.values("eval/reward/correct")) >= 4 else "reward/correct"
    )
    truth = facts.change(truth_name)
    if truth is None or truth.last > truth.first + 0.05:
        return None
    kind, words = _kind_of_hack(facts)
    fixes = {
        "length": (
            KeyChange("rewards", "pay for the answer, not its length"),
            KeyChange("cells.reward_shaping.soft_overlong", "{}"),
        ),
        "repetition": (
            KeyChange("rewards", "subtract repetition (use: repetition, a negative weight)"),
            KeyChange("cells.kl.weight", "higher"),
        ),
        "format": (
            KeyChange("rewards[].gate", "pay for the format only where the answer is right"),
            KeyChange("rewards[].weight", "lower"),
        ),
        "flattery": (
            KeyChange("rewards", "another judge, or one that is told to ignore style"),
            KeyChange("cells.kl.weight", "higher"),
        ),
    }
    began = facts.first_step(
        "reward/mean", lambda value: value > reward.first + 0.3 * (reward.last - reward.first)
    )
    return Finding(
        cause=f"reward_hacking_{kind}",
        summary="The policy earns more without being right more often.",
        began=began,
        confidence=0.9 if truth.last < truth.first - 0.02 or truth.last < 0.05 else 0.75,
        evidence=(
            f"reward/mean rose from {reward.first:.3g} to {reward.last:.3g}, {truth_name} went from "
            f"{truth.first:.3g} to {truth.last:.3g}",
            *words,
        ),
        changes=fixes[kind],
        metrics=("reward/mean", truth_name, "completion/length_mean", "policy/ref_kl"),
        rollouts=examples(scored(facts.quarter(last=True)), lambda each: float(each["reward"])),
    )


def _unjudged_hack(facts: Facts, reward: Change) -> Finding | None:
    """Nothing says what is right, but length or repetition explains nearly all of a reward that has degrees."""
    if {each["reward"] for each in scored(facts.samples)} <= {0.0, 1.0}:
        return None
    features = {"length": length_of, "repetition": repetition_of}
    explained = {
        kind: reward_correlation(facts.samples, feature) for kind, feature in features.items()
    }
    kind = max(explained, key=lambda each: explained[each])
    early, late = (
        mean([features[kind](each) for each in facts.quarter(last=end)]) for end in (False, True)
    )
    if explained[kind] < 0.8 or late < 1.3 * early:
        return None
    return Finding(
        cause=f"reward_hacking_{kind}",
        summary=f"The reward rises with {kind}, and nothing says whether answers are right.",
        began=1,
        confidence=0.65,
        evidence=(
            f"reward/mean rose from {reward.first:.3g} to {reward.last:.3g}; its correlation with {kind} is "
            f"{explained[kind]:.2f}, which went from {early:.3g} to {late:.3g}",
        ),
        changes=(
            KeyChange(
                "rewards", "add one that checks the answer", "with weight 0 it is only logged"
            ),
        ),
        metrics=("reward/mean", "completion/length_mean", "policy/ref_kl"),
        rollouts=examples(scored(facts.quarter(last=True)), lambda each: float(each["reward"])),
    )


def _kind_of_hack(facts: Facts) -> tuple[str, tuple[str, ...]]:
    """What explains the reward best: a format, a mark, saying things twice, or length."""
    samples = [*facts.quarter(last=False), *facts.quarter(last=True)]
    names = {
        name for each in samples for name in each.get("parts") or {} if "format" in name.lower()
    }
    by_format = max(
        (reward_correlation(samples, partial(_part, name=name)) for name in names), default=0.0
    )
    by_length, by_repetition = (
        reward_correlation(samples, length_of),
        reward_correlation(samples, repetition_of),
    )
    mark, by_mark = marker_of(samples)
    words = (
        f"the reward's correlation with length is {by_length:.2f}, with repeated words {by_repetition:.2f}, with "
        f"{mark!r} {by_mark:.2f}" + (f", with its format {by_format:.2f}" if names else ""),
    )
    if by_format > max(by_length, by_repetition) + 0.02 and by_format >= by_mark - 0.02:
        return "format", words
    if by_mark > max(by_length, by_repetition) + 0.02 and by_mark > 0.5:
        return "flattery", words
    return ("repetition" if by_repetition > by_length + 0.02 else "length"), words


def _part(sample: Sample, name: str) -> float | None:
    value: float | None = (sample.get("parts") or {}).get(name)
    return value


def reward_model(facts: Facts) -> Finding | None:
    """A reward model's score rises and the truth does not: it was wrong from the start, or was pushed too far."""
    reward = facts.change("reward/mean")
    if not facts.scored_by_model or facts.truth_is_reward or reward is None or not reward.rises:
        return None
    name = (
        "eval/reward/correct" if len(facts.values("eval/reward/correct")) >= 4 else "reward/correct"
    )
    values = facts.values(name)
    if len(values) < 4:
        return None
    start, best, end = values[0], max(values), mean(values[-2:])
    agrees = reward_correlation(facts.quarter(last=False), correct_of)
    evidence = (
        f"reward/mean rose from {reward.first:.3g} to {reward.last:.3g}; {name} began at {start:.3g}, was "
        f"{best:.3g} at best and is {end:.3g}",
        f"at the start the reward's correlation with right answers was {agrees:.2f}",
    )
    shown = examples(scored(facts.quarter(last=True)), lambda each: float(each["reward"]))
    curves = ("reward/mean", name, "policy/ref_kl", "completion/length_mean")
    if agrees < 0.05 and end <= start + 0.05:
        return Finding(
            cause="reward_model_wrong",
            summary="The reward model prefers the wrong answers.",
            began=1,
            confidence=0.9 if agrees < -0.1 else 0.7,
            evidence=evidence,
            changes=(
                KeyChange(
                    "model.reward_model",
                    "train it again",
                    "its labels may be swapped: ascent evaluate it on held-out pairs",
                ),
                KeyChange("run.max_ref_kl", "0.5"),
            ),
            metrics=curves,
            rollouts=shown,
        )
    if end < best - 0.1 or end <= start + 0.02:
        began = next((step for step, value in facts.curve(name) if value == best), 1)
        return Finding(
            cause="reward_model_overoptimized",
            summary="The policy found answers that the reward model scores too high.",
            began=began,
            confidence=0.85,
            evidence=evidence,
            changes=(
                KeyChange("cells.reward_shaping.kl_penalty.beta", "higher", "or cells.kl.weight"),
                KeyChange("run.max_ref_kl", "0.5"),
                KeyChange("run.keep_best", "1", "with run.best_metric reward/correct"),
                KeyChange(
                    "model.reward_model",
                    "train it on more pairs, and on the policy's own answers (ascent iterate)",
                ),
            ),
            metrics=curves,
            rollouts=shown,
        )
    return None


def noisy_labels(facts: Facts) -> Finding | None:
    """A model of preferences that does not predict held-out ones better than a coin, or predicts the opposite."""
    held, trained = facts.values("eval/preference/accuracy"), facts.change("preference/accuracy")
    if not held or trained is None:
        return None
    late = mean(held[-max(1, len(held) // 2) :])
    if late > 0.6:
        return None
    swapped = late < 0.35
    losses = change_of(facts.values("eval/loss/total"))
    return Finding(
        cause="reward_model_wrong" if swapped else "noisy_labels",
        summary="Held-out preferences are the opposite of the trained ones."
        if swapped
        else "The labels cannot be predicted: they look like a coin's.",
        began=1,
        confidence=0.85 if abs(late - 0.5) < 0.08 or swapped else 0.65,
        evidence=(
            f"held-out accuracy is {late:.0%} (a coin has 50%), in training it is {trained.last:.0%}",
            *(
                [f"eval/loss/total went from {losses.first:.3g} to {losses.last:.3g}"]
                if losses is not None
                else []
            ),
        ),
        changes=(
            KeyChange(
                "data.train", "check the labels: ascent inspect shows agreement of annotators"
            ),
            KeyChange("data.evaluate", "from the same labelers"),
        ),
        metrics=("eval/preference/accuracy", "preference/accuracy", "eval/loss/total"),
    )
