"""Causes in the signal that rewards give: none, noise, answers that were not scored."""

from __future__ import annotations

from ascent.advice import KeyChange, changes
from ascent.diagnose.facts import Facts, Sample, disagreement, examples, mean, scored
from ascent.diagnose.records import Finding
from ascent.metrics import healthy

NO_SIGNAL = 0.85  # of the groups have equal rewards
PAIRS = 20  # equal completions that must have been scored before rewards are called noisy


def no_signal(facts: Facts) -> Finding | None:
    """Nearly all groups have equal rewards: too hard, too easy, or a reward that ignores the answer."""
    flat, means = facts.values("reward/zero_std_frac"), facts.values("reward/mean")
    spread, right = facts.values("reward/std"), facts.values("reward/correct")
    if len(means) < 2 or not spread:
        return None
    begin = slice(0, max(2, len(means) // 4))
    shown = examples(facts.quarter(last=False))
    curves = ("reward/mean", "reward/zero_std_frac", "reward/std")
    if (
        max(spread) == 0
        and not _solved(right[begin], means[begin])
        and not _hopeless(right[begin], means[begin])
    ):
        return Finding(
            cause="constant_reward",
            summary="The reward is the same for every answer.",
            began=1,
            confidence=0.97,
            evidence=(
                f"reward/mean is {means[0]:.3g} and reward/std is 0 in all {len(means)} steps",
            ),
            changes=(KeyChange("rewards", "another one: it does not look at the answer"),),
            metrics=curves,
            rollouts=shown,
        )
    if not flat or mean(flat[begin]) < NO_SIGNAL or mean(flat[:2]) < NO_SIGNAL - 0.15:
        return _easy_without_groups(facts) if not flat else None
    evidence = (
        f"{mean(flat[begin]):.0%} of the groups have equal rewards in the first {len(flat[begin])} steps; reward/mean "
        f"is {mean(means[begin]):.3g}"
    )
    if mean(spread[begin]) > 0.15 and mean(flat) > 0.97 and 0.1 < mean(means) < 0.9:
        return Finding(
            cause="no_signal_equal_groups",
            summary="Answers to one prompt get equal rewards, answers to others different ones.",
            began=1,
            confidence=0.9,
            evidence=(
                evidence,
                f"reward/std is {mean(spread):.2f} over all rollouts and 0 inside the groups",
            ),
            changes=(
                KeyChange(
                    "rewards",
                    "one that reads the completion",
                    "this one seems to read the prompt alone",
                ),
            ),
            metrics=curves,
            rollouts=shown,
        )
    share = mean(right[begin] or means[begin])
    if 0.15 < share < 0.85:  # equal answers, some right and some wrong: the policy does not explore
        return None
    easy = share > 0.5
    cause = "no_signal_too_easy" if easy else "no_signal_too_hard"
    summary = "Nearly every answer is right already." if easy else "Nearly every answer is wrong."
    key = KeyChange("data.train", f"{'harder' if easy else 'easier'} prompts")
    partial = () if easy else (KeyChange("rewards", "partial credit"),)
    return Finding(
        cause=cause,
        summary=summary,
        began=1,
        confidence=0.9,
        evidence=(evidence,),
        changes=(key, *changes("no_signal", facts.config), *partial),
        metrics=curves,
        rollouts=shown,
    )


def _easy_without_groups(facts: Facts) -> Finding | None:
    right = facts.values("reward/correct")
    if (
        len(right) < 4
        or not facts.truth_is_reward
        or facts.scored_by_model
        or 0.03 < mean(right) < 0.97
    ):
        return None
    easy = mean(right) > 0.5
    return Finding(
        cause=f"no_signal_too_{'easy' if easy else 'hard'}",
        summary="Nearly all rewards are equal.",
        began=1,
        confidence=0.8,
        evidence=(f"reward/correct is {mean(right):.3g} over the run",),
        changes=(KeyChange("data.train", f"{'harder' if easy else 'easier'} prompts"),),
        metrics=("reward/mean", "reward/std"),
        rollouts=examples(facts.quarter(last=False)),
    )


def _solved(right: list[float], means: list[float]) -> bool:
    return bool(right) and mean(right) > 0.97 and abs(mean(right) - mean(means)) < 1e-9


def _hopeless(right: list[float], means: list[float]) -> bool:
    return bool(right) and mean(right) < 0.03 and abs(mean(right) - mean(means)) < 1e-9


def noisy_reward(facts: Facts) -> Finding | None:
    """Equal completions of one prompt get different rewards."""
    share, pairs = disagreement(facts.samples)
    reward = facts.change("reward/mean")
    if pairs < PAIRS or share < 0.15 or facts.config.get("env.use"):
        return None
    return Finding(
        cause="noisy_reward",
        summary="The reward is not a function of the answer: the same answer earns different rewards.",
        began=1,
        confidence=0.95 if share > 0.3 and not (reward is not None and reward.rises) else 0.7,
        evidence=(
            f"{share:.0%} of {pairs} pairs of equal completions to one prompt have different rewards",
            *(
                [f"reward/mean went from {reward.first:.3g} to {reward.last:.3g}"]
                if reward is not None
                else []
            ),
        ),
        changes=(
            KeyChange("rewards", "a reward without randomness, or the mean of several calls"),
            KeyChange("rollouts.group_size", "larger", "averages noise out"),
        ),
        metrics=("reward/mean", "reward/std", "reward/correct"),
        rollouts=examples(_same_text(facts)),
    )


def _same_text(facts: Facts) -> list[Sample]:
    """Two samples with the same text and different rewards."""
    seen: dict[tuple[object, ...], Sample] = {}
    for each in scored(facts.samples):
        other = seen.setdefault((each["step"], each["id"], each["completion"]), each)
        if other["reward"] != each["reward"]:
            return [other, each]
    return []


def unscored_rewards(facts: Facts) -> Finding | None:
    values, high = facts.values("reward/failure_frac"), healthy("reward/failure_frac")[1]
    failed = facts.state == "failed" and "RewardFailed" in facts.message
    if not failed and (not values or mean(values) < high):
        return None
    reasons: dict[str, float] = {}
    for each in facts.metrics:
        for name, value in each.items():
            if name.startswith("reward/failures/"):
                reasons[name] = reasons.get(name, 0.0) + value
    worst = (
        max(reasons, key=lambda name: reasons[name]).removeprefix("reward/failures/")
        if reasons
        else "unknown"
    )
    late = "timeout" in worst
    fix = (
        KeyChange("rewards[].timeout", "longer", "or serve the reward from more processes")
        if late
        else KeyChange("rewards", "one that returns a number for every answer")
    )
    return Finding(
        cause="unscored_rewards",
        summary="Many answers could not be scored and were left out, so what is learned is biased.",
        began=facts.first_step("reward/failure_frac", lambda value: value > high) or 1,
        confidence=0.97 if failed or mean(values) > 2 * high else 0.8,
        evidence=(
            f"{mean(values) if values else 1:.0%} of rollouts were not scored; most often: {worst}",
            *([facts.message[:200]] if failed else []),
        ),
        changes=(fix,),
        metrics=("reward/failure_frac", "reward/mean"),
        rollouts=examples([each for each in facts.samples if each.get("reward") is None]),
    )
