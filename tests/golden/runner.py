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
from tests.golden.cases import (
    BY_CONVENTION,
    DIFFERING,
    NOT_APPLICABLE,
    REPRODUCED,
    Case,
    Ours,
    compared,
    unread,
)
from tests.golden.cases import differences as numbers_that_differ
from tests.golden.conventions import NUMERICAL, REFUSED, Convention

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
    """What a case is, and why."""

    name: str
    reasons: tuple[str, ...] = ()


class Verdict(NamedTuple):
    """What is wrong (nothing, hopefully), how many of the peer's numbers were compared, and what the answer rests on.

    `conventions` are those of the peer's that no recipe of ours gives and without which we would answer otherwise;
    `numerical` those of them that are rounding.
    """

    wrong: list[str]
    numbers: int
    conventions: tuple[str, ...] = ()
    numerical: tuple[str, ...] = ()


def classify(case: Case) -> Class:
    """Reproduced (somehow), differing on purpose or not applicable, by the case's specification alone.

    A cross-peer case differs if any of its answers does.
    """
    if case.family == "cross_peer" and not case.function:
        parts = [classify(part) for part in cross_peer.answers(case)]
        differing = tuple(
            dict.fromkeys(
                reason for part in parts if part.name == DIFFERING for reason in part.reasons
            )
        )
        if differing:
            return Class(DIFFERING, differing)
        if all(part.name == NOT_APPLICABLE for part in parts):
            return Class(
                NOT_APPLICABLE,
                tuple(dict.fromkeys(reason for part in parts for reason in part.reasons)),
            )
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
        return Verdict(
            [word for part in parts for word in part.wrong],
            sum(part.numbers for part in parts),
            tuple(dict.fromkeys(reason for part in parts for reason in part.conventions)),
            tuple(dict.fromkeys(reason for part in parts for reason in part.numerical)),
        )
    if differences.not_applicable(case) is not None:
        return Verdict([], 0)
    if case.function not in ADAPTERS:
        return Verdict([f"{case.id}: no adapter for {case.function!r}"], 0)
    case = case.fresh()
    try:
        ours = ADAPTERS[case.function](case)
        difference = differences.on_purpose(case)
        wrong = (
            difference.wrong(case, ours)
            if difference
            else unread(case) + numbers_that_differ(case, ours)
        )
        rests = (
            ((), ())
            if difference or wrong
            else (_rests_on(case, REFUSED), _rests_on(case, NUMERICAL))
        )
    except Exception:
        return Verdict([f"{case.id}: {traceback.format_exc(limit=-3)}"], 0)
    return Verdict([f"{case.id}: {word}" for word in wrong], compared(case, ours), *rests)


def counted(case: Case, verdict: Verdict) -> Class:
    """The class under which a case is counted: one that is reproduced may rest on conventions of the peer's."""
    found = classify(case)
    if found.name != REPRODUCED:
        return found
    return (
        Class(BY_CONVENTION, verdict.conventions)
        if verdict.conventions
        else Class(REPRODUCED, verdict.numerical)
    )


def _rests_on(case: Case, kinds: frozenset[Convention]) -> tuple[str, ...]:
    """None where our plain answer will do; else what it takes, or all that was asked for where no one thing decides."""
    asked = sorted(case.asked & kinds, key=lambda each: each.name)
    if not asked or _agrees(case, kinds):
        return ()
    needed = [each for each in asked if not _agrees(case, frozenset([each]))] or asked
    return tuple(str(each.value) for each in needed)


def _agrees(case: Case, without: frozenset[Convention]) -> bool:
    case = case.fresh(without)
    return not numbers_that_differ(case, ADAPTERS[case.function](case))
