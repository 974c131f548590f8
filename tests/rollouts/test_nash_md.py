"""Answers that play against an opponent: who is trained, what a win is worth, what is unscored, the same bits again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ascent.algorithms import TABLE
from ascent.engines.geometric_mixture import GeometricMixtureSampler
from ascent.engines.native.engine import NativeEngine
from ascent.models.load import load
from ascent.models.tiny import create
from ascent.records import Request, Rollout
from ascent.rollouts.config import Models, RolloutConfig
from ascent.rollouts.evaluate import Evaluation
from ascent.rollouts.generate import SamplingParams
from ascent.rollouts.nash_md import NashMDSource, win_probabilities
from ascent.update.learner import LocalLearner
from ascent.update.schedule import Schedule
from tests.rollouts.test_source import asked, assert_goes_on, even, train

NAN = math.nan
LOGPROBS = frozenset({"logprobs_T"})
SAMPLES = 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return create(tmp_path_factory.mktemp("model") / "tiny", seed=0)


def make(folder: Path, score: Any = even, **plan: Any) -> tuple[NashMDSource, LocalLearner]:
    """A policy that has left its reference."""
    model, frozen = load(folder), load(folder)
    with torch.no_grad():
        for weight in model.module.parameters():
            weight.mul_(1.5)
    learner, reference = (
        LocalLearner(each, Schedule(1e-2, "constant", 0, 100)) for each in (model, frozen)
    )
    return NashMDSource(
        asked(),
        NativeEngine(model, {1}, max_num_seqs=16, max_model_len=64),
        score,
        Models(learner, reference, None, trust_sampler_logprobs=True),
        TABLE["nash_md"],
        RolloutConfig(prompts_per_step=4, group_size=plan.pop("samples", SAMPLES), **plan),
        SamplingParams(6, seed=3),
        decode=lambda tokens: " ".join(map(str, tokens)),
        opponent=GeometricMixtureSampler(model, frozen, {1}),
    ), learner


def by_sample(*rewards: float | None) -> Any:
    """The n-th answer to every prompt earns the n-th of these; opponents come after the policy's own."""

    def score(rollouts: Sequence[Rollout]) -> list[Rollout]:
        return [replace(each, reward=rewards[each.sample]) for each in rollouts]

    return score


def said(source: NashMDSource) -> dict[str, float]:
    return {name: each.value() for name, each in source.report().items()}


def test_chances_by_hand() -> None:
    found_B = win_probabilities(
        torch.tensor([1.0, 0.0, 1.0, 0.0, NAN, 1.0]), torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0, NAN])
    )
    assert found_B[:4].tolist() == pytest.approx([0.731059, 0.268941, 0.5, 0.5], abs=1e-6)
    assert found_B[4:].isnan().all()


def test_only_the_policys_own_answers_are_trained_on(folder: Path) -> None:
    source, learner = make(folder)
    (batch,) = source.next(1)
    assert batch["segments"].count == 4 * SAMPLES
    gap_T = (learner.logprobs(batch) - batch["sampler_logprobs_T"]).abs()
    assert float(gap_T[batch["loss_mask_T"]].max()) < 1e-5  # they are the policy's own words
    assert [each.sample for each in source.rollouts] == [0, 2, 1, 3] * 4
    learnt = [own is not None for own in source.advantages]
    assert learnt == [True, False] * 4 * SAMPLES
    own = [token for each in source.rollouts[::2] for token in each.turns[0].completion.tokens]
    assert batch["tokens_T"][batch["loss_mask_T"]].tolist() == own


def test_drawing_opponents_leaves_the_policys_engine_and_the_trainer_alone(folder: Path) -> None:
    """Both run on the same modules, whose attention is switched for the opponent and back."""
    source, learner = make(folder)
    train(source, learner, range(1, 3))
    (batch,) = source.next(3)
    assert (
        float(
            (learner.logprobs(batch) - batch["sampler_logprobs_T"])[batch["loss_mask_T"]]
            .abs()
            .max()
        )
        < 1e-5
    )


def test_opponents_are_drawn_from_the_mixture_each_with_noise_of_its_own(folder: Path) -> None:
    source, _ = make(folder)
    source.next(1)
    theirs = source.rollouts[1::2]
    again = {
        (each.prompt_id, each.sample): each
        for each in source.opponent.sample(
            [_request(each, source.params) for each in theirs]  # by their keys alone
        )
    }
    assert all(again[each.prompt.id, each.sample] == each.turns[0].completion for each in theirs)
    first, second = (
        [each.turns[0].completion.tokens for each in theirs[n::2]] for n in range(SAMPLES)
    )
    assert first != second
    assert first != [each.turns[0].completion.tokens for each in source.rollouts[::4]]


def _request(rollout: Rollout, settings: SamplingParams) -> Request:
    return Request(
        rollout.prompt.id,
        rollout.sample,
        rollout.turns[0].observed,
        settings.max_new_tokens,
        settings.seed,
    )


def test_what_an_answer_learns_is_its_chance_above_a_half_less_each_tokens_own_kl(
    folder: Path,
) -> None:
    """The first answer beats its opponent by 1, the second loses by 2: .731 and .119."""
    source, _ = make(folder, by_sample(1.0, 0.5, 0.0, 2.5))
    (batch,) = source.next(1)
    lead_B = torch.tensor([0.731059 - 0.5, 0.119203 - 0.5]).repeat(4)
    reference = source.models.reference
    assert reference is not None
    kl_T = batch["sampler_logprobs_T"] - reference.infer(batch, LOGPROBS)["logprobs_T"]
    expected_T = batch["segments"].broadcast(lead_B) - 0.1 * kl_T
    loss_mask_T = batch["loss_mask_T"]
    assert float(kl_T[loss_mask_T].abs().max()) > 0.1
    torch.testing.assert_close(
        batch["advantages_T"][loss_mask_T], expected_T[loss_mask_T], atol=1e-5, rtol=0
    )


def test_rewards_are_the_policys_and_what_opponents_earn_is_told_apart(folder: Path) -> None:
    source, _ = make(folder, by_sample(1.0, 0.25, 0.0, 0.25))
    source.next(1)
    told = said(source)
    assert (told["reward/mean"], told["reward/opponent"]) == (0.625, 0.125)
    assert (
        told["preference/tie_frac"],
        told["preference/win_rate"],
        told["reward/failure_frac"],
    ) == (0.5, 1.0, 0.0)


def test_without_both_scores_an_answer_is_unscored_and_not_trained(folder: Path) -> None:
    """Of two answers each: the first has no score at prompts 0 and 1, its opponent none at prompts 2 and 3."""

    def score(rollouts: Sequence[Rollout]) -> list[Rollout]:
        found = []
        for each in rollouts:
            lacking = 0 if int(each.prompt.id[-1]) < 2 else SAMPLES
            found.append(
                replace(each, reward=None if each.sample == lacking else float(each.sample))
            )
        return found

    source, _ = make(folder, score)
    (batch,) = source.next(1)
    assert said(source)["reward/failure_frac"] == 0.5
    assert batch["segments"].sum(batch["loss_mask_T"]).gt(0).tolist() == [False, True] * 4
    assert [own is not None for own in source.advantages] == [False, False, True, False] * 4
    silent, _ = make(folder, by_sample(None, None, 1.0, 1.0))
    assert silent.next(1) == []
    assert (
        math.isnan(said(silent)["preference/win_rate"]) and said(silent)["reward/opponent"] == 1.0
    )


def test_opponents_carry_the_version_of_the_policy_that_they_were_mixed_from(folder: Path) -> None:
    source, learner = make(folder)
    train(source, learner, range(1, 3))
    assert {each.turns[0].completion.versions[0] for each in source.rollouts} == {1}
    restored, _ = make(folder)
    restored.load_state(source.state())
    restored.next(3)
    assert {each.turns[0].completion.versions[0] for each in restored.rollouts} == {2}


def test_a_restored_source_goes_on_to_the_same_bits(folder: Path) -> None:
    assert_goes_on(*(make(folder, epochs=2, minibatches=2) for _ in range(2)))


def test_an_evaluation_has_no_opponent(folder: Path) -> None:
    source, _ = make(folder)
    score = by_sample(*[0.0] * 2 * SAMPLES, 0.75)  # the last is the greedy answer's
    found = Evaluation(asked(), source.sampler, score, source.params, source.decode)(0)
    assert found["eval/reward/mean"] == 0.75
    assert "eval/reward/opponent" not in found
