"""Steps whose groups come from several draws train as if all of them had come from one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from ascent.algorithms import TABLE, Row
from ascent.config.schema import Cells
from ascent.models.tiny import create
from ascent.plan.overrides import with_cells
from ascent.records import Rollout
from ascent.rollouts.batch import pack_rollouts
from ascent.rollouts.experience import add_advantages
from ascent.rollouts.microbatches import split_microbatches
from ascent.update.learner import LocalLearner
from ascent.update.objective import LOSS_SLOTS, objective_of
from tests.rollouts.test_source import PLAN, assert_goes_on, make


def reads_groups(row: Row) -> bool:
    cells = [each for slot, each in row.cells() if slot in LOSS_SLOTS]
    return any(
        "groups" in each.required for cell in cells for each in (cell, *cell.statistics.values())
    )


GROUPED = [row for row in TABLE.values() if row.source == "rollouts" and reads_groups(row)]
FILTER = {"filter": {"nonzero_variance": {}}}
AGGREGATES = [
    (name, use) for name in ("dapo", "rlvr", "grpo") for use in ("prompt_mean", "group_mean")
]
ROWS = [pytest.param(with_cells(row, Cells.model_validate(FILTER)), id=row.name) for row in GROUPED]
for name, use in AGGREGATES:
    cells = Cells.model_validate({"aggregation": {"use": use}, **FILTER})
    ROWS.append(pytest.param(with_cells(TABLE[name], cells), id=f"{name}-{use}"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return create(tmp_path_factory.mktemp("model") / "tiny", seed=0)


class OneGroupADraw:
    """In every draw the first prompt's answers differ in reward, all others' are equal: three draws fill a step.

    Groups differ in how many are right and in how many could be scored.
    """

    def __init__(self) -> None:
        self.rewards = [[1.0, 0.0, 0.0, None], [1.0, 1.0, 1.0, 0.0], [0.0, 1.0, 0.0, 0.0]]

    def __call__(self, rollouts: Sequence[Rollout]) -> list[Rollout]:
        first = self.rewards.pop(0)
        return [
            replace(each, reward=reward)
            for each, reward in zip(rollouts, [*first, *[0.0] * 8], strict=True)
        ]


def gradient(learner: LocalLearner) -> Tensor:
    """Up to a factor: the first moments after the first step."""
    state = learner.optimizer.state()
    return torch.cat(
        [value.flatten().double() for name, value in state.items() if name.startswith("mean.")]
    )


def test_rows_that_read_groups_in_their_loss_are_known() -> None:
    assert {"scale_rl", "real"} <= {row.name for row in GROUPED}


@pytest.mark.parametrize("row", ROWS)
def test_groups_of_several_draws_train_like_groups_of_one(folder: Path, row: Row) -> None:
    """The reference numbers the same rollouts in one go, by their prompts, and takes the same step."""
    plan = replace(PLAN, dynamic_sampling_tries=5, tokens_per_microbatch=24)
    source, learner = make(folder, row, plan, OneGroupADraw())
    batches = source.next(1)
    assert source.report()["sampler/dynamic_sampling_tries"].value() == 2
    assert len(batches) > 1
    learner.step(batches, objective_of(row))

    trained = [
        each
        for each, own in zip(source.rollouts, source.advantages, strict=True)
        if own is not None
    ]
    names = [each.prompt.id for each in trained]
    assert len(trained) == 11 and len(set(names)) == 3
    whole = pack_rollouts(trained)
    assert whole["groups"].ids_B.tolist() == [0] * 3 + [1] * 4 + [2] * 4
    whole["old_logprobs_T"] = whole["sampler_logprobs_T"]
    if "reference" in row.needs:
        assert source.models.reference is not None
        whole["ref_logprobs_T"] = source.models.reference.infer(whole, frozenset({"logprobs_T"}))[
            "logprobs_T"
        ]
    batch, _ = add_advantages(whole, row)
    _, other = make(folder, "rlvr")
    other.step(
        split_microbatches(
            batch, [[place] for place in range(len(trained))], plan.tokens_per_microbatch
        ),
        objective_of(row),
    )
    ours, theirs = gradient(learner), gradient(other)
    assert float(theirs.norm()) > 0
    assert float((ours - theirs).norm() / theirs.norm()) < 1e-5


def mixed(rollouts: Sequence[Rollout]) -> list[Rollout]:
    """Half of the groups have a signal, whichever draw they come from."""
    return [
        replace(each, reward=float(place % 3 == 0) if place // 4 % 2 else 0.0)
        for place, each in enumerate(rollouts)
    ]


@pytest.mark.parametrize(
    "row", [each for each in ROWS if each.id in ("scale_rl", "real", "dapo-prompt_mean")]
)
def test_groups_that_wait_in_a_checkpoint_are_still_the_same(folder: Path, row: Row) -> None:
    """Refills, rollouts that lag, minibatches, micro-batches that cut through groups, and a restart, all at once."""
    plan = replace(
        PLAN, dynamic_sampling_tries=5, max_staleness=1, minibatches=2, tokens_per_microbatch=24
    )
    assert_goes_on(*(make(folder, row, plan, mixed) for _ in range(2)))
