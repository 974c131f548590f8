"""Causes in the data and the length of a run: copies, leaks, order, overfitting, seeds, too few steps."""

from __future__ import annotations

import statistics

from ascent.advice import KeyChange
from ascent.diagnose.facts import Facts, examples, mean
from ascent.diagnose.records import Finding

MANY_COPIES, LEAK, ORDERED = 0.3, 0.05, 0.5
MIN_PEERS = 3


def data_copies(facts: Facts) -> Finding | None:
    data = facts.data
    if data is None or not data.records or data.repeated < MANY_COPIES * data.records:
        return None
    return Finding(
        cause="data_copies",
        summary="Most training records repeat another one.",
        began=None,
        confidence=0.9,
        evidence=(
            f"{data.repeated} of {data.records} records equal an earlier one, so there are "
            f"{data.records - data.repeated} different ones",
        ),
        changes=(
            KeyChange("data.train", "without the copies"),
            KeyChange("run.steps", "fewer", "an epoch is shorter than it looks"),
        ),
        metrics=("loss/total", "eval/loss/total"),
    )


def data_leak(facts: Facts) -> Finding | None:
    data = facts.data
    if data is None or not data.heldout or data.leaked < LEAK * data.heldout:
        return None
    return Finding(
        cause="data_leak",
        summary="Held-out prompts are also trained on, so the evaluation says little about new ones.",
        began=None,
        confidence=0.95,
        evidence=(f"{data.leaked} of {data.heldout} held-out prompts are in the training data",),
        changes=(KeyChange("data.evaluate", "prompts that are not in data.train, such as 5%"),),
        metrics=("loss/total", "eval/loss/total", "eval/reward/correct"),
    )


def data_order(facts: Facts) -> Finding | None:
    data = facts.data
    if data is None or facts.config.get("data.shuffle", True) or abs(data.order) < ORDERED:
        return None
    return Finding(
        cause="data_order",
        summary="Records come in an order that changes what is learned over the run.",
        began=1,
        confidence=0.9,
        evidence=(
            f"data.shuffle is false, and a record's place in the file correlates with its length by {data.order:.2f}",
        ),
        changes=(KeyChange("data.shuffle", "true"),),
        metrics=("loss/total", "eval/loss/total", "reward/mean"),
    )


def overfitting(facts: Facts) -> Finding | None:
    """Better on what is trained and worse on what is held out."""
    return _policy_overfits(facts) if facts.samples_rewards else _loss_overfits(facts)


def _loss_overfits(facts: Facts) -> Finding | None:
    held, trained = facts.curve("eval/loss/total"), facts.change("loss/total")
    values = [value for _, value in held]
    if len(values) < 3 or trained is None:
        return None
    best, end = min(values), values[-1]
    if end < 1.1 * best + 0.01 or trained.last > trained.first or trained.last > 0.9 * end:
        return None
    began = next(step for step, value in held if value == best)
    return Finding(
        cause="overfitting",
        summary="The model learns the training records by heart.",
        began=began,
        confidence=0.9 if end > 1.3 * best else 0.75,
        evidence=(
            f"eval/loss/total was {best:.3g} at step {began} and is {end:.3g}; loss/total is {trained.last:.3g}",
            *_distinct(facts),
        ),
        changes=(
            KeyChange("data.train", "more different records"),
            KeyChange("run.steps", str(began), "where held-out loss was best"),
            KeyChange("run.keep_best", "1"),
        ),
        metrics=("loss/total", "eval/loss/total"),
    )


def _policy_overfits(facts: Facts) -> Finding | None:
    held, trained = facts.curve("eval/reward/mean"), facts.values("reward/mean")
    values = [value for _, value in held]
    if len(values) < 4 or len(trained) < 4:
        return None
    best, end = max(values), mean(values[-2:])
    late = mean(trained[-max(2, len(trained) // 4) :])
    prompts = {each["prompt"] for each in facts.samples}
    few = len(prompts) <= max(8, facts.steps)
    gap = late - end
    if not few or gap < 0.2 or late < trained[0]:
        return None
    began = next(step for step, value in held if value == best)
    return Finding(
        cause="overfitting",
        summary="The policy learns a few prompts and not the task.",
        began=began,
        confidence=0.9 if gap > 0.3 else 0.75,
        evidence=(
            f"reward/mean is {late:.3g} in training and {end:.3g} on held-out prompts (best {best:.3g} at "
            f"step {began})",
            f"{len(prompts)} different prompts were sampled in {facts.steps} steps",
            *_distinct(facts),
        ),
        changes=(
            KeyChange("data.train", "more different prompts"),
            KeyChange("run.steps", str(max(1, began))),
            KeyChange("run.keep_best", "1"),
        ),
        metrics=("reward/mean", "eval/reward/mean", "policy/entropy"),
        rollouts=examples(facts.quarter(last=True)),
    )


def _distinct(facts: Facts) -> tuple[str, ...]:
    return (
        (f"the training data has {facts.data.records} records",) if facts.data is not None else ()
    )


def unlucky_seed(facts: Facts) -> Finding | None:
    """Below what runs with other seeds reach, by more than these differ among themselves."""
    if len(facts.peers) < MIN_PEERS or facts.score is None:
        return None
    own = mean(facts.values(facts.score)[-2:])
    middle, spread = statistics.fmean(facts.peers), statistics.stdev(facts.peers)
    if own > middle - max(2 * spread, 0.05):
        return None
    return Finding(
        cause="unlucky_seed",
        summary="Other seeds of the same recipe do better; nothing else is wrong with this run.",
        began=None,
        confidence=0.7,
        evidence=(
            f"{facts.score} is {own:.3g}; {len(facts.peers)} other seeds reach {middle:.3g} (standard "
            f"deviation {spread:.2g})",
        ),
        changes=(
            KeyChange("seed", "another, and report the mean over several"),
            KeyChange("rollouts.prompts_per_step", "larger", "less depends on luck"),
        ),
        metrics=(facts.score,),
    )


def needs_more_steps(facts: Facts) -> Finding | None:
    """Still improving at the end: no failure."""
    name = "reward/mean" if facts.has("reward/mean") else None
    if name is None or facts.state not in ("finished", "stopped", "running"):
        return None
    values, whole = facts.values(name), facts.change(name)
    if whole is None or not whole.rises or (values[-1] > 0.95 and facts.truth_is_reward):
        return None
    third = len(values) // 3
    middle, late = mean(values[third:-third]), mean(values[-third:])
    if late - middle < 0.2 * (whole.last - whole.first):
        return None
    return Finding(
        cause="needs_more_steps",
        summary="The reward was still rising when the run ended.",
        began=None,
        confidence=0.6,
        evidence=(
            f"{name} rose from {whole.first:.3g} to {whole.last:.3g}, and {late - middle:.2g} from its "
            f"middle third to its last",
        ),
        changes=(
            KeyChange("run.steps", str(2 * facts.steps), "twice as many; ascent resume goes on"),
        ),
        metrics=(name,),
        note=True,
    )
