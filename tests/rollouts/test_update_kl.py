"""What an update did to the policy is measured, and a run that it destroyed is told so."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ascent.maths.metrics import Mean
from ascent.maths.segments import Segments
from ascent.models.tiny import create
from ascent.records import Rollout
from ascent.rollouts.experience import logprobs_under
from ascent.rollouts.source import MAX_STEPS_WITHOUT_SIGNAL
from ascent.rollouts.update_kl import UPDATE_KL_LIMIT, no_signal_error, update_kl, update_kl_rows
from ascent.update.objective import objective_of
from ascent.update.schedule import Schedule
from tests.rollouts.test_source import assert_goes_on, even, in_turn, make, train


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return create(tmp_path_factory.mktemp("model") / "tiny", seed=0)


@pytest.mark.parametrize("row", ["rlvr", "rloo"])
def test_it_is_the_mean_k3_from_the_policy_that_sampled(folder: Path, row: str) -> None:
    source, learner = make(folder, row)
    batch = source.next(1) and source.current.batch
    assert update_kl(batch, logprobs_under(learner, batch, 10**6)) == pytest.approx(
        0, abs=1e-9
    )  # not updated yet
    with torch.no_grad():
        for weight in learner.model.parameters():
            weight += 0.01 * torch.sin(torch.arange(weight.numel(), dtype=weight.dtype)).view(
                weight.shape
            )
    now_T, loss_mask_T = (logprobs_under(learner, batch, 10**6).double(), batch["loss_mask_T"])
    gaps = [
        now - old
        for now, old in zip(
            now_T[loss_mask_T].tolist(),
            batch["sampler_logprobs_T"][loss_mask_T].tolist(),
            strict=True,
        )
    ]
    assert update_kl(batch, now_T) == pytest.approx(
        math.fsum(math.exp(gap) - 1 - gap for gap in gaps) / len(gaps), rel=1e-4
    )


def test_every_step_that_trains_reports_it_and_a_resumed_run_knows_it(folder: Path) -> None:
    source, learner = make(folder)
    train(source, learner, range(1, 3))
    value = source.report()["policy/update_kl"].value()
    assert 0 < value < UPDATE_KL_LIMIT
    assert source.state()["last_update"] == (2, pytest.approx(value))
    assert_goes_on(make(folder), make(folder))


def test_it_is_measured_where_the_policy_sampled_and_is_trained() -> None:
    """Sequences of 300 tokens: the first is not trained, the second the reference's, the fourth has no log-probs."""
    segments = Segments.from_lengths([300] * 6)
    first, fourth = ((torch.arange(6) == row).repeat_interleave(300) for row in (0, 3))
    batch: Any = {
        "segments": segments,
        "tokens_T": torch.arange(segments.total),
        "loss_mask_T": ~first,
        "sampler_logprobs_T": torch.where(fourth, torch.nan, -1.0),
        "from_reference_B": torch.arange(6) == 1,
    }
    assert update_kl_rows(batch) == [2]  # a second one would exceed 512 tokens
    del batch["from_reference_B"]
    assert update_kl_rows(batch) == [1]
    assert update_kl_rows({**batch, "loss_mask_T": first & fourth}) == []


@pytest.mark.parametrize("row", ["rlvr", "reinforce_pp"])
def test_unscored_answers_at_the_start_of_a_step_do_not_hide_it(folder: Path, row: str) -> None:
    def score(rollouts: Sequence[Rollout]) -> list[Rollout]:
        found = in_turn(rollouts)
        return [*(replace(each, reward=None) for each in found[:2]), *found[2:]]

    source, learner = make(folder, row, score=score)
    batches = source.next(1)
    whole = source.current.batch
    assert batches and whole is not None
    source.more(learner.step(batches, objective_of(source.row)))
    expected = update_kl(whole, logprobs_under(learner, whole, 10**6))
    source.refresh(learner.weights())
    assert (
        source.report()["policy/update_kl"].value() == pytest.approx(expected, rel=1e-3)
        and expected > 0
    )
    assert source.state()["last_update"] == (1, pytest.approx(expected, rel=1e-3))


class Destroyed:
    """The first step's rewards differ; afterwards, as after a policy was destroyed, all are 0."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, rollouts: Sequence[Rollout]) -> list[Rollout]:
        self.calls += 1
        return (
            even(rollouts) if self.calls == 1 else [replace(each, reward=0.0) for each in rollouts]
        )


@pytest.mark.parametrize(("rate", "blamed"), [(0.5, True), (1e-4, False)])
def test_a_run_that_one_update_destroyed_is_not_told_to_use_easier_prompts(
    folder: Path, rate: float, blamed: bool
) -> None:
    source, learner = make(folder, score=Destroyed())
    learner.schedule = Schedule(rate, "constant", 0, 100)
    with pytest.raises(ValueError, match="nothing to learn from") as caught:
        train(source, learner, range(1, MAX_STEPS_WITHOUT_SIGNAL + 2))
    words = str(caught.value)
    assert (
        "The last update, in step 1, moved the policy by" in words and "learning_rate" in words
    ) == blamed
    assert ("easier or harder prompts" in words) != blamed


def test_a_policy_of_nan_is_a_destroyed_one() -> None:
    report: Any = {
        name: Mean(torch.tensor(part), torch.tensor(1.0))
        for name, part in (("reward/failure_frac", 0.0), ("completion/truncated_frac", 0.25))
    }
    assert "learning_rate" in str(no_signal_error(20, report, (3, math.nan)))
    assert "25% were truncated" in str(no_signal_error(20, report, None))
    assert "easier" in str(no_signal_error(20, report, None))
