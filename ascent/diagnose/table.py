"""The table of causes, and the order in which findings are told.

A rule is a pure function from the facts of a run to a finding or None. `explains` names causes that follow from this
one: an exploding policy is also truncated, far from its reference and without signal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ascent.diagnose import generalization, learning, reward_signal, rewards, sampling
from ascent.diagnose.facts import Facts
from ascent.diagnose.records import Finding

CONSEQUENCES = (
    "entropy_explosion",
    "entropy_collapse",
    "kl_runaway",
    "length_explosion",
    "truncation",
    "no_signal_too_hard",
)
HACKS = tuple(f"reward_hacking_{kind}" for kind in ("length", "repetition", "format", "flattery"))
OPTIMUM = ("overfitting", "needs_more_steps", "unlucky_seed")


@dataclass(frozen=True)
class Rule:
    """`causes` are those that `find` may name. Rules further up are told first where they are equally sure."""

    find: Callable[[Facts], Finding | None]
    causes: tuple[str, ...]
    explains: tuple[str, ...] = ()


RULES = (
    Rule(
        learning.cold_sampling,
        ("entropy_collapse",),
        ("learning_rate_too_high", *CONSEQUENCES, *OPTIMUM),
    ),
    Rule(reward_signal.unscored_rewards, ("unscored_rewards",), (*CONSEQUENCES, *OPTIMUM, *HACKS)),
    Rule(
        sampling.sampler_mismatch, ("sampler_mismatch",), (*CONSEQUENCES, *OPTIMUM, "noisy_reward")
    ),
    Rule(
        sampling.stale_rollouts,
        ("stale_rollouts",),
        (*CONSEQUENCES, *OPTIMUM, "learning_rate_too_high"),
    ),
    Rule(
        reward_signal.noisy_reward,
        ("noisy_reward",),
        (*CONSEQUENCES, *OPTIMUM, *HACKS, "learning_rate_too_high", "critic_explains_nothing"),
    ),
    Rule(
        reward_signal.no_signal,
        ("constant_reward", "no_signal_equal_groups", "no_signal_too_hard", "no_signal_too_easy"),
        (
            "learning_rate_too_low",
            "learning_rate_too_high",
            "critic_explains_nothing",
            *CONSEQUENCES,
            *OPTIMUM,
        ),
    ),
    Rule(
        rewards.reward_model,
        ("reward_model_wrong", "reward_model_overoptimized"),
        (*CONSEQUENCES, *OPTIMUM, "learning_rate_too_high", "critic_explains_nothing"),
    ),
    Rule(rewards.reward_hacking, HACKS, (*CONSEQUENCES, *OPTIMUM, "learning_rate_too_high")),
    Rule(
        sampling.truncation,
        ("truncation",),
        ("no_signal_too_hard", "learning_rate_too_high", *OPTIMUM),
    ),
    Rule(learning.entropy_explosion, ("entropy_explosion",), (*CONSEQUENCES, *OPTIMUM)),
    Rule(
        learning.rate_too_high,
        ("learning_rate_too_high",),
        (*CONSEQUENCES, *OPTIMUM, "critic_explains_nothing", "data_order"),
    ),
    Rule(learning.rate_too_low, ("learning_rate_too_low",), ("noisy_labels", *OPTIMUM)),
    Rule(sampling.length_explosion, ("length_explosion",), (*CONSEQUENCES, *OPTIMUM)),
    Rule(learning.useless_critic, ("critic_explains_nothing",), ("kl_runaway", *OPTIMUM)),
    Rule(generalization.data_leak, ("data_leak",), OPTIMUM),
    Rule(generalization.data_copies, ("data_copies",), OPTIMUM),
    Rule(generalization.data_order, ("data_order",), (*OPTIMUM, "learning_rate_too_high")),
    Rule(rewards.noisy_labels, ("noisy_labels", "reward_model_wrong"), OPTIMUM),
    Rule(
        generalization.overfitting,
        ("overfitting",),
        ("entropy_collapse", "kl_runaway", "needs_more_steps", "unlucky_seed"),
    ),
    Rule(
        learning.entropy_collapse,
        ("entropy_collapse",),
        ("kl_runaway", "unlucky_seed", "no_signal_too_hard"),
    ),
    Rule(learning.kl_runaway, ("kl_runaway",), ("unlucky_seed",)),
    Rule(generalization.unlucky_seed, ("unlucky_seed",)),
    Rule(generalization.needs_more_steps, ("needs_more_steps",)),
)
CAUSES = tuple(dict.fromkeys(cause for rule in RULES for cause in rule.causes))


def find_causes(facts: Facts) -> tuple[Finding, ...]:
    """All findings: failures before notes, causes before what follows from them, the surest first."""
    found = [
        (place, rule, finding)
        for place, rule in enumerate(RULES)
        if (finding := rule.find(facts)) is not None
    ]
    explained: dict[str, str] = {}
    for _, rule, finding in found:
        for name in rule.explains:
            if name != finding.cause and explained.get(finding.cause) != name:
                explained.setdefault(name, finding.cause)
    findings = [
        (place, replace(each, follows_from=explained.get(each.cause))) for place, _, each in found
    ]
    failing = any(not each.note for _, each in findings)
    told = [(place, each) for place, each in findings if not (each.note and failing)]
    ordered = sorted(
        told,
        key=lambda pair: (
            pair[1].note,
            pair[1].follows_from is not None,
            -pair[1].confidence,
            pair[0],
        ),
    )
    return tuple(each for _, each in ordered)
