"""Pairs of fresh answers: who is whose, who wins, what forms no pair, and the same bits after a restart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ascent.algorithms import TABLE
from ascent.engines.native.engine import NativeEngine
from ascent.maths.groups import Groups
from ascent.models.load import load
from ascent.models.tiny import create
from ascent.records import Rollout
from ascent.rollouts.config import Models, RolloutConfig
from ascent.rollouts.generate import SamplingParams
from ascent.rollouts.microbatches import split_microbatches
from ascent.rollouts.pairs import PairSource, best_and_worst, pair_indices
from ascent.rollouts.source import MAX_STEPS_WITHOUT_SIGNAL
from ascent.update.learner import LocalLearner
from ascent.update.objective import objective_of
from ascent.update.schedule import Schedule
from tests.rollouts.test_source import asked, assert_goes_on, equal, even

NAN = math.nan


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return create(tmp_path_factory.mktemp("model") / "tiny", seed=0)


def make(folder: Path, row: str, score: Any = even, **plan: Any) -> tuple[PairSource, LocalLearner]:
    """A policy that has left its reference, so that their answers differ."""
    model, frozen = load(folder), load(folder)
    with torch.no_grad():
        for weight in model.module.parameters():
            weight.mul_(1.5)
    learner, reference = (
        LocalLearner(each, Schedule(1e-2, "constant", 0, 100)) for each in (model, frozen)
    )
    engine = {"max_num_seqs": 16, "max_model_len": 64}
    config = RolloutConfig(
        prompts_per_step=plan.pop("prompts", 6), group_size=plan.pop("samples", 2), **plan
    )
    source = PairSource(
        asked(),
        NativeEngine(model, {1}, **engine),
        score,
        Models(learner, reference, None, trust_sampler_logprobs=True),
        TABLE[row],
        config,
        SamplingParams(6, seed=3),
        decode=lambda tokens: " ".join(map(str, tokens)),
        reference_sampler=NativeEngine(frozen, {1}, **engine)
        if "reference_samples" in TABLE[row].needs
        else None,
    )
    return source, learner


def by_sample(*rewards: float | None) -> Any:
    """The n-th answer to every prompt earns the n-th of these."""

    def score(rollouts: Sequence[Rollout]) -> list[Rollout]:
        return [replace(each, reward=rewards[each.sample]) for each in rollouts]

    return score


def test_the_best_against_the_worst_the_first_among_equals_and_none_where_all_are_equal() -> None:
    rewards_B = torch.tensor([1.0, 3.0, 2.0, 3.0, 0.5, 0.5, NAN, 7.0, NAN, 4.0, 9.0, 4.0])
    groups = Groups.from_ids([0, 0, 0, 0, 1, 1, 2, 2, 3, 3, 3, 3])
    chosen_B, rejected_B = best_and_worst(rewards_B, groups)
    assert chosen_B.nonzero()[:, 0].tolist() == [1, 10]
    assert rejected_B.nonzero()[:, 0].tolist() == [0, 9]


def test_a_piece_knows_its_pairs_wherever_their_rows_lie() -> None:
    batch = {
        "groups": Groups.from_ids([4, 2, 4, 9, 2, 9]),
        "chosen_B": torch.tensor([True, False, False, False, True, True]),
        "rejected_B": torch.tensor([False, True, True, True, False, False]),
    }
    chosen_P, rejected_P = pair_indices(batch)
    assert (chosen_P.tolist(), rejected_P.tolist()) == ([4, 0, 5], [1, 2, 3])


def test_pairs_stay_together_when_a_batch_is_cut(folder: Path) -> None:
    source, _ = make(folder, "online_dpo", by_sample(0.0, 1.0), tokens_per_microbatch=24)
    pieces = source.next(1)
    assert len(pieces) > 1
    for piece in pieces:
        assert piece["segments"].total <= 24
        pairs = piece["chosen_P"].numel()
        assert pairs == piece["groups"].count == piece["segments"].count // 2
        ids_B = piece["groups"].ids_B
        assert ids_B[piece["chosen_P"]].tolist() == ids_B[piece["rejected_P"]].tolist()
        assert piece["rewards_B"][piece["chosen_P"]].tolist() == [1.0] * pairs
    with pytest.raises(ValueError, match="2 rollouts that stay together have"):
        split_microbatches(pieces[0], [[0, 1]], max_tokens=4)


def test_the_first_answer_is_the_policys_and_the_second_the_references(folder: Path) -> None:
    """Each model gives its own answer the log-probs that were recorded while it was sampled; the other does not."""
    source, learner = make(folder, "xpo", by_sample(1.0, 0.0))
    (batch,) = source.next(1)
    theirs_T = batch["segments"].broadcast(batch["from_reference_B"])
    frozen_T = source.models.reference.infer(batch, frozenset({"logprobs_T"}))["logprobs_T"]  # type: ignore[union-attr]
    for said_T, own_T in ((learner.logprobs(batch), ~theirs_T), (frozen_T, theirs_T)):
        gap_T = (said_T - batch["sampler_logprobs_T"]).abs()
        assert float(gap_T[own_T & batch["loss_mask_T"]].max()) < 1e-5
        assert float(gap_T[~own_T & batch["loss_mask_T"]].mean()) > 1e-2
    assert torch.equal(batch["ref_logprobs_T"], frozen_T)
    assert not bool(batch["from_reference_B"][batch["chosen_P"]].any())  # its answer won every pair
    assert bool(batch["from_reference_B"][batch["rejected_P"]].all())


def test_whoever_earns_more_is_chosen(folder: Path) -> None:
    source, _ = make(folder, "xpo", by_sample(0.25, 0.75))
    (batch,) = source.next(1)
    assert bool(batch["from_reference_B"][batch["chosen_P"]].all())
    report = {name: each.value() for name, each in source.report().items()}
    assert (report["preference/win_rate"], report["reward/mean"], report["reward/reference"]) == (
        0.0,
        0.25,
        0.75,
    )
    assert source.advantages[:2] == [
        [-1.0] * len(source.advantages[0]),
        [1.0] * len(source.advantages[1]),
    ]  # type: ignore[arg-type]


@pytest.mark.parametrize("row", ["online_dpo", "xpo"])
def test_ties_and_what_could_not_be_scored_form_no_pair_and_are_counted(
    folder: Path, row: str
) -> None:
    """Of eight prompts two are equally good, and two lack a score on one side."""

    def score(rollouts: Sequence[Rollout]) -> list[Rollout]:
        found = []
        for each in rollouts:
            number = int(each.prompt.id[-1])
            reward = (
                1.0
                if number < 2
                else None
                if number < 4 and each.sample == number % 2
                else float(each.sample)
            )
            found.append(replace(each, reward=reward))
        return found

    source, _ = make(folder, row, score, prompts=8)
    (batch,) = source.next(1)
    report = {name: each.value() for name, each in source.report().items()}
    assert batch["chosen_P"].numel() == 4
    assert (report["reward/zero_std_frac"], report["preference/tie_frac"]) == (0.5, 0.25)
    assert report["reward/failure_frac"] == (
        1 / 8 if row == "xpo" else 2 / 16
    )  # of the policy's own answers
    learnt = {
        each.prompt.id[-1]
        for each, own in zip(source.rollouts, source.advantages, strict=True)
        if own
    }
    assert learnt == {"4", "5", "6", "7"}


def test_prompts_without_a_pair_are_replaced_by_others(folder: Path) -> None:
    source, _ = make(folder, "online_dpo", even, prompts=4, dynamic_sampling_tries=5)
    batches = source.next(1)
    assert source.report()["sampler/dynamic_sampling_tries"].value() > 0
    assert sum(batch["chosen_P"].numel() for batch in batches) == 4


def test_no_pair_trains_nothing_and_stops_the_run_in_the_end(folder: Path) -> None:
    source, _ = make(folder, "xpo", equal)
    for step in range(1, MAX_STEPS_WITHOUT_SIGNAL):
        assert source.next(step) == []
        assert math.isnan(source.report()["preference/win_rate"].value())
    with pytest.raises(ValueError, match="nothing to learn from"):
        source.next(MAX_STEPS_WITHOUT_SIGNAL)


def test_passes_and_minibatches_cover_every_pair_once_a_pass(folder: Path) -> None:
    source, _ = make(folder, "online_dpo", by_sample(0.0, 1.0), epochs=2, minibatches=3)
    batches, seen = source.next(1), []
    while batches:
        seen.append(sum(batch["chosen_P"].numel() for batch in batches))
        batches = source.more({})
    assert seen == [2] * 6


@pytest.mark.parametrize("row", ["online_dpo", "xpo"])
def test_a_restored_source_goes_on_to_the_same_bits(folder: Path, row: str) -> None:
    assert_goes_on(*(make(folder, row, epochs=2, minibatches=2) for _ in range(2)))


def test_drift_is_measured_on_the_policys_own_answers(folder: Path) -> None:
    source, _ = make(folder, "xpo", by_sample(1.0, 0.0), max_ref_kl=1e-3)
    (batch,) = source.next(1)
    own_T = batch["segments"].broadcast(~batch["from_reference_B"]) & batch["loss_mask_T"]
    gap_T = (batch["ref_logprobs_T"] - batch["sampler_logprobs_T"])[own_T].double()
    assert source.state()["ref_kl"] == pytest.approx(
        float((gap_T.exp() - 1 - gap_T).mean()), rel=1e-5
    )
    assert "nats per token from its reference" in source.stop_reason


def test_what_an_update_did_is_measured_on_the_policys_own_answers(folder: Path) -> None:
    """The reference's answers were sampled by another policy: their log-probs say nothing about the update."""
    source, learner = make(folder, "xpo", prompts=8)
    learner.schedule = Schedule(1e-12, "constant", 0, 100)
    batches = source.next(1)
    assert batches and any(bool(batch["from_reference_B"].any()) for batch in batches)
    source.more(learner.step(batches, objective_of(source.row)))
    source.refresh(learner.weights())
    assert source.report()["policy/update_kl"].value() == pytest.approx(0, abs=1e-6)
