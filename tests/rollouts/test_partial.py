"""Partial rollouts with a real tiny policy: nothing is lost, nothing repeated, nothing too old, and all of it again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ascent.algorithms import TABLE
from ascent.checkpoints.resume import read_state
from ascent.checkpoints.save import save
from ascent.config.schema import Cells
from ascent.engines.copied import CopiedPolicyEngine
from ascent.engines.native.interruptible import InterruptibleEngine
from ascent.models.load import load
from ascent.models.tiny import create
from ascent.plan.overrides import with_cells
from ascent.records import Rollout
from ascent.rollouts.config import Models, RolloutConfig
from ascent.rollouts.generate import SamplingParams
from ascent.rollouts.source import RolloutSource
from ascent.update.learner import LocalLearner
from ascent.update.objective import objective_of
from ascent.update.schedule import Schedule
from tests.rollouts.test_source import asked, even, weights

PLAN = RolloutConfig(prompts_per_step=8, group_size=2, max_staleness=2, partial_rollouts=True)
STOPS = range(1, 9)  # 8 of some 260 tokens: lengths differ


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return create(tmp_path_factory.mktemp("model") / "tiny", seed=0)


def make(
    folder: Path, config: RolloutConfig = PLAN, row: Any = "grpo", score: Any = None
) -> tuple[Any, LocalLearner]:
    model = load(folder)
    learner = LocalLearner(model, Schedule(3e-3, "constant", 0, 100))
    engine: InterruptibleEngine = (
        CopiedPolicyEngine(model, load(folder), STOPS, max_model_len=64)
        if config.overlap
        else InterruptibleEngine(model, STOPS, max_model_len=64)
    )
    engine.steps_per_sync = 4
    frozen = LocalLearner(load(folder), Schedule(1e-2, "constant", 0, 100))
    models = Models(learner, frozen, None, trust_sampler_logprobs=True)
    row = TABLE[row] if isinstance(row, str) else row
    return RolloutSource(
        asked(20),
        engine,
        score or (lambda stream: even(list(stream))),
        models,
        row,
        config,
        SamplingParams(max_new_tokens=56, seed=3),
        decode=lambda tokens: " ".join(map(str, tokens)),
    ), learner


class Seen:
    """What was sampled and trained, step by step."""

    def __init__(self) -> None:
        self.groups: list[str] = []  # of scored rollouts
        self.versions: list[set[int]] = []  # of each trained sequence
        self.lags: list[float] = []
        self.tokens: list[list[int]] = []


def train(source: RolloutSource, learner: LocalLearner, steps: range) -> Seen:
    objective, seen, score = objective_of(source.row), Seen(), source.score

    def watched(stream: Any) -> list[Rollout]:
        scored = list(score(stream))
        seen.groups += list(dict.fromkeys(each.prompt.id for each in scored))
        return scored

    source.score = watched
    for step in steps:
        batches = source.next(step)
        for batch in batches:
            lengths = batch["segments"].lengths_B.tolist()
            for versions_T, mask_T in zip(
                batch["versions_T"].split(lengths), batch["loss_mask_T"].split(lengths), strict=True
            ):
                seen.versions.append(set(versions_T[mask_T].tolist()))
                seen.lags += (step - 1 - versions_T[mask_T]).tolist()
            seen.tokens.append(batch["tokens_T"].tolist())
        while batches:
            batches = source.more(learner.step(batches, objective))
        source.refresh(learner.weights())
    source.score = score
    return seen


def drawn(names: Sequence[str]) -> list[tuple[str, int]]:
    """(step.attempt, index) of every group."""
    return [(name.split("/")[0], int(name.split("/")[1])) for name in names]


@pytest.mark.parametrize(("staleness", "overlap"), [(1, False), (2, False), (2, True), (3, True)])
def test_every_group_is_trained_once_and_no_token_is_too_old(
    folder: Path, staleness: int, overlap: bool
) -> None:
    source, learner = make(folder, replace(PLAN, max_staleness=staleness, overlap=overlap))
    steps = 7
    seen = train(source, learner, range(1, 1 + steps))
    complete = steps + overlap
    assert len(seen.groups) == len(set(seen.groups)) == 8 * complete
    open_groups = {each["name"] for each in source.state()["partial"]["groups"]}
    everything = {("1.0", n) for n in range(10)} | {
        (f"{b}.0", n) for b in range(2, complete + 1) for n in range(8)
    }
    assert set(drawn(seen.groups)) | set(drawn(sorted(open_groups))) == everything  # none is lost
    assert not open_groups & set(seen.groups)
    assert len(open_groups) == 2
    assert (
        sum(len(versions) > 1 for versions in seen.versions) > 3
    )  # new weights came between their tokens
    assert 0 < max(seen.lags) <= staleness
    assert source.report()["sampler/staleness_max"].value() <= staleness


def test_with_overlap_it_is_the_run_without(folder: Path) -> None:
    """Of a staleness of 3 one version is spent on the batch that is complete, with a thread or without."""

    class Ahead(RolloutConfig):
        lookahead = 1  # type: ignore[assignment]

    plain = Ahead(**{**vars(PLAN), "max_staleness": 3})
    one, two = make(folder, plain), make(folder, replace(PLAN, max_staleness=3, overlap=True))
    first, second = (train(*each, range(1, 6)) for each in (one, two))
    assert first.tokens == second.tokens and first.groups == second.groups
    assert weights(one[1]) == weights(two[1])


@pytest.mark.parametrize("overlap", [False, True])
def test_what_is_unfinished_is_saved_and_goes_on(
    folder: Path, tmp_path: Path, overlap: bool
) -> None:
    whole_source, whole_learner = make(folder, replace(PLAN, overlap=overlap))
    done = 0
    while not any(
        each["stop"] == "abort" and len(each["tokens"]) for each in waiting(whole_source)
    ):
        done += 1
        train(whole_source, whole_learner, range(done, done + 1))
    save(tmp_path, done, {"source": whole_source.state(), "learner": whole_learner.state()}, {})
    held, later = weights(whole_learner), range(done + 1, done + 5)
    rest = train(whole_source, whole_learner, later)
    source, learner = make(folder, replace(PLAN, overlap=overlap))
    with torch.no_grad():
        for name, weight in learner.model.named_parameters():
            weight.copy_(torch.tensor(held[name]).view(weight.shape))
    state = read_state(tmp_path / str(done))
    learner.load_state(state["learner"])
    source.load_state(state["source"])
    again = train(source, learner, later)
    assert (again.groups, again.tokens, again.versions) == (rest.groups, rest.tokens, rest.versions)
    assert weights(learner) == weights(whole_learner)


def waiting(source: RolloutSource) -> list[dict[str, Any]]:
    return [each for group in source.state()["partial"]["groups"] for each in group["completions"]]


def test_recorded_log_probs_are_those_of_the_versions(folder: Path) -> None:
    """Every version's weights are kept, and asked for the tokens that it sampled."""
    source, learner = make(folder)
    kept: dict[int, LocalLearner] = {}
    for step in range(1, 6):
        kept[step - 1] = LocalLearner(load(folder), Schedule(1e-2, "constant", 0, 100))
        kept[step - 1].model.module.load_state_dict(learner.model.module.state_dict())
        batches = source.next(step)
        for batch in batches:
            for version, model in kept.items():
                own_T = batch["loss_mask_T"] & (batch["versions_T"] == version)
                assert torch.allclose(
                    model.logprobs(batch)[own_T], batch["sampler_logprobs_T"][own_T], atol=1e-5
                )
        learner.step(batches, objective_of(source.row))
        source.refresh(learner.weights())


def test_a_correction_weighs_against_the_policy_of_now(folder: Path) -> None:
    cells = {"rollout_correction": {"use": "token_truncate"}}
    source, learner = make(folder, row=with_cells(TABLE["grpo"], Cells.model_validate(cells)))
    for step in range(1, 4):
        batches = source.next(step)
        for batch in batches:
            now_T, mask_T = learner.logprobs(batch), batch["loss_mask_T"]
            assert torch.allclose(now_T[mask_T], batch["old_logprobs_T"][mask_T], atol=1e-6)
        stats = learner.step(batches, objective_of(source.row))
        assert abs(stats["policy/ratio_max"].value() - 1) < 1e-4
        assert (abs(stats["sampler/is_weight"].value() - 1) > 1e-4) == (step > 1)
        source.refresh(learner.weights())


def test_refills_take_from_the_same_groups(folder: Path) -> None:
    source, learner = make(folder, replace(PLAN, dynamic_sampling_tries=3), row="dapo")
    seen = train(source, learner, range(1, 5))
    assert len(seen.groups) == len(set(seen.groups)) > 4 * 8
    assert len(seen.groups) % 8 == 0
    assert len(source.state()["partial"]["groups"]) == 2


def test_a_failing_reward_leaves_the_engine_usable(folder: Path) -> None:
    def fails(stream: Any) -> list[Rollout]:
        for number, _ in enumerate(stream):
            if number == 3:
                raise RuntimeError("the judge is gone")
        raise AssertionError

    source, _ = make(folder, score=fails)
    with pytest.raises(RuntimeError, match="the judge is gone"):
        source.next(1)
    assert source.sampler.interrupt() == []
    assert len(source.state()["partial"]["groups"]) >= 8
