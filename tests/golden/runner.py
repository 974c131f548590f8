"""Running golden cases: which class a case belongs to, and what is wrong with our answer, if anything."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import NamedTuple

from tests.golden import (
    cross_peer,
    differences,
    openrlhf_advantages,
    openrlhf_losses,
    swift,
    trl_advantages,
    trl_online,
    trl_policy,
    trl_ppo,
    trl_preferences,
    trl_primitives,
    verl_advantages,
    verl_losses,
    verl_primitives,
    verl_rollout,
)
from tests.golden.cases import Case, Ours, compared
from tests.golden.cases import differences as numbers_that_differ

REPRODUCED, DIFFERING, NOT_APPLICABLE = "reproduced", "differing on purpose", "not applicable"

ADAPTERS: dict[str, Callable[[Case], Ours]] = {
    **verl_losses.ADAPTERS,
    **verl_advantages.ADAPTERS,
    **verl_primitives.ADAPTERS,
    **verl_rollout.ADAPTERS,
    **trl_policy.ADAPTERS,
    **trl_advantages.ADAPTERS,
    **trl_ppo.ADAPTERS,
    **trl_preferences.ADAPTERS,
    **trl_primitives.ADAPTERS,
    **trl_online.ADAPTERS,
    **openrlhf_losses.ADAPTERS,
    **openrlhf_advantages.ADAPTERS,
    **swift.ADAPTERS,
}


class Class(NamedTuple):
    """What a case is, by its specification alone, and why."""

    name: str
    reasons: tuple[str, ...] = ()


class Verdict(NamedTuple):
    """What is wrong (nothing, hopefully), and how many of the peer's numbers were compared."""

    wrong: list[str]
    numbers: int


def classify(case: Case) -> Class:
    """Reproduced, differing on purpose or not applicable; a cross-peer case differs if any of its answers does."""
    if case.family == "cross_peer" and not case.function:
        parts = [classify(part) for part in cross_peer.answers(case)]
        differing = tuple(dict.fromkeys(reason for part in parts if part.name == DIFFERING for reason in part.reasons))
        if differing:
            return Class(DIFFERING, differing)
        if all(part.name == NOT_APPLICABLE for part in parts):
            return Class(NOT_APPLICABLE, tuple(dict.fromkeys(reason for part in parts for reason in part.reasons)))
        return Class(REPRODUCED)
    theirs = differences.not_applicable(case)
    if theirs is not None:
        return Class(NOT_APPLICABLE, (theirs,))
    difference = differences.on_purpose(case)
    return Class(DIFFERING, (difference.reason,)) if difference else Class(REPRODUCED)


def judge(case: Case) -> Verdict:
    """Run a case. An adapter that fails, or does not exist, is a wrong answer like any other."""
    if case.family == "cross_peer" and not case.function:
        parts = [judge(part) for part in cross_peer.answers(case)]
        return Verdict([word for part in parts for word in part.wrong], sum(part.numbers for part in parts))
    if differences.not_applicable(case) is not None:
        return Verdict([], 0)
    if case.function not in ADAPTERS:
        return Verdict([f"{case.id}: no adapter for {case.function!r}"], 0)
    case = case.fresh()
    try:
        ours = ADAPTERS[case.function](case)
        difference = differences.on_purpose(case)
        wrong = difference.wrong(case, ours) if difference else numbers_that_differ(case, ours)
    except Exception:
        return Verdict([f"{case.id}: {traceback.format_exc(limit=-3)}"], 0)
    return Verdict([f"{case.id}: {word}" for word in wrong], compared(case, ours))
