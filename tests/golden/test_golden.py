"""Conformance with four peers: every golden case is reproduced, or refused for a stated reason.

ASCENT_GOLDEN names another folder of vectors; without it the copy in `vectors/` is read.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor

from ascent.advantages import group_baselines, returns
from ascent.losses import aggregation, kl, policy_losses, preferences, ratios, values
from ascent.maths import masked
from tests.golden import runner
from tests.golden.cases import (
    BY_CONVENTION,
    DIFFERING,
    NOT_APPLICABLE,
    REPRODUCED,
    VECTORS,
    Case,
    Ours,
    Recorded,
    folder,
    load,
)
from tests.golden.conventions import Convention
from tests.golden.runner import ADAPTERS, classify, counted, judge

CASES = load(folder())
MOST_APART = 0.12


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_case(case: Case, count: Callable[..., None]) -> None:
    verdict = judge(case)
    found = counted(case, verdict)
    count(kind=found.name, reasons=list(found.reasons), numbers=verdict.numbers)
    assert not verdict.wrong, "\n".join(verdict.wrong)


def test_few_rest_on_conventions_or_differ_and_every_one_is_explained() -> None:
    kinds = [counted(case, judge(case)) for case in CASES]
    applicable = [kind for kind in kinds if kind.name != NOT_APPLICABLE]
    apart = [kind for kind in applicable if kind.name in (BY_CONVENTION, DIFFERING)]
    assert len(apart) <= MOST_APART * len(applicable)
    assert all(kind.reasons for kind in kinds if kind.name != REPRODUCED)
    # What has no adapter must be a named later algorithm; a cross-peer case finds its adapters part by part.
    unknown = {
        case.function
        for case, kind in zip(CASES, kinds, strict=True)
        if case.function and kind.name != NOT_APPLICABLE and case.function not in ADAPTERS
    }
    assert not unknown


def test_nothing_is_skipped_silently() -> None:
    """An option, an input, an expected number or a function that nobody knows is an error."""
    case = next(
        case
        for case in load(VECTORS)
        if case.family == "policy_loss" and classify(case).name == REPRODUCED
    )
    strange = (
        replace(case, params=Recorded({**case.params.entries, "new_option": 1})),
        replace(case, inputs=Recorded({**case.inputs.entries, "new_input": [1.0]})),
        replace(case, expected={**case.expected, "new_number": 1.0}),
        replace(case, function="some.new.function"),
    )
    assert not judge(case).wrong
    assert all(judge(other).wrong for other in strange)


def test_names_and_seeds_are_not_read() -> None:
    """A case under another name gets the same verdict and class: nothing is matched by its name."""
    for case in CASES[:: max(1, len(CASES) // 60)]:
        renamed = replace(case, name="renamed", file="elsewhere")
        assert classify(renamed) == classify(case)
        assert judge(renamed).numbers == judge(case).numbers


def test_a_convention_counts_only_where_the_answer_rests_on_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that changes nothing leaves a case plain; one that mends our answer is named; of two, the one that does."""
    case = next(case for case in load(VECTORS) if case.function == "core_algos.agg_loss")
    plain, off = ADAPTERS[case.function], {Convention.NO_KL: 0.0, Convention.SCORE_LATER: 1.0}

    def mended(case: Case) -> Ours:
        found = plain(case)
        wrong = sum(size for each, size in off.items() if not case.follows(each))
        return replace(found, values={**found.values, "loss": found.values["loss"] + wrong})

    monkeypatch.setitem(runner.ADAPTERS, case.function, mended)
    verdict = judge(case)
    assert not verdict.wrong
    assert verdict.conventions == (Convention.SCORE_LATER.value,)
    assert counted(case, verdict) == (BY_CONVENTION, verdict.conventions)
    off[Convention.SCORE_LATER] = 0.0
    assert counted(case, judge(case)).name == REPRODUCED


def test_a_peers_1e8_in_a_count_is_told_apart_from_a_convention() -> None:
    asked = ("core_algos.agg_loss", "seq-mean-token-mean")
    case = next(
        c for c in load(VECTORS) if (c.function, c.params.entries.get("loss_agg_mode")) == asked
    )
    verdict = judge(case)
    assert verdict.conventions == ()
    assert counted(case, verdict) == (REPRODUCED, (Convention.PLUS_1E8.value,))


def _wrong_sign(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def broken(*args: Any, **kwargs: Any) -> Any:
        gated = original(*args, **kwargs)
        return gated._replace(loss_T=-gated.loss_T)

    return broken


def _unmasked(x: Tensor, keep: Tensor) -> Tensor:
    return x


def _scaled(original: Callable[..., Any], factor: float) -> Callable[..., Any]:
    @functools.wraps(original)
    def broken(*args: Any, **kwargs: Any) -> Any:
        return factor * original(*args, **kwargs)

    return broken


def _nudged_credit(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def broken(*args: Any, **kwargs: Any) -> Any:
        credit = original(*args, **kwargs)
        return credit._replace(advantages_B=credit.advantages_B * (1 + 1e-6))

    return broken


def _detached(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: original(*args, **kwargs).detach().requires_grad_()


@functools.wraps(returns.gae)
def _one_step(*args: Any, gamma: float, lam: float, **inputs: Any) -> Any:
    return returns.td(*args, gamma=gamma, **inputs)


def _likely_is_bad(logits_P: Tensor, label_smoothing: float) -> Tensor:
    return torch.nn.functional.logsigmoid(logits_P)


BREAKAGES = {
    "the sign of the clip gate": (
        policy_losses,
        "clip",
        _wrong_sign(policy_losses.clip),
        "policy_loss",
        60,
    ),
    "the mask forgotten": (masked, "kept", _unmasked, "policy_loss", 60),
    "advantages off by one part in a million": (
        group_baselines,
        "group_mean_baseline",
        _nudged_credit(group_baselines.group_mean_baseline),
        "advantage",
        40,
    ),
    "leave-one-out without its factor": (
        group_baselines,
        "leave_one_out",
        group_baselines.group_mean_baseline,
        "advantage",
        15,
    ),
    "half of k3 forgotten": (kl, "k3", _scaled(kl.k3, 0.5), "policy_loss", 15),
    "value loss without its half": (values, "clipped", _scaled(values.clipped, 2.0), "ppo", 10),
    "gradient cut at the token ratio": (
        ratios,
        "differences",
        _detached(ratios.differences),
        "policy_loss",
        60,
    ),
    "sum for mean over tokens": (
        aggregation,
        "token_mean",
        aggregation.token_sum,
        "policy_loss",
        30,
    ),
    "TD for GAE": (returns, "gae", _one_step, "ppo", 10),
    "the sign of preference losses": (
        preferences,
        "smoothed",
        _likely_is_bad,
        "preference_loss",
        15,
    ),
}


@pytest.mark.parametrize("name", BREAKAGES)
def test_the_runner_catches_broken_code(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, attribute, broken, family, least = BREAKAGES[name]
    chosen = [
        case
        for case in load(VECTORS)
        if case.family == family and classify(case).name == REPRODUCED
    ]
    monkeypatch.setattr(module, attribute, broken)
    verdicts = (judge(case) for case in chosen)
    caught = (
        verdict for verdict in verdicts if verdict.wrong and verdict.numbers
    )  # by its numbers, not by raising
    assert len(list(islice(caught, least))) == least
