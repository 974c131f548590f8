"""Per-token numbers for people: right, of few rollouts, and without any effect on training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ascent.maths.batch import PackedBatch
from ascent.maths.segments import Segments
from ascent.models.tiny import create
from ascent.rollouts.token_stats import TokenProbe
from tests.rollouts.test_source import PLAN, make, train, weights


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return create(tmp_path_factory.mktemp("model") / "tiny", seed=0)


def test_training_has_the_same_bits_with_and_without(folder: Path) -> None:
    plain, probed = make(folder), make(folder, plan=replace(PLAN, token_stats=True))
    assert train(*plain, range(1, 4)) == train(*probed, range(1, 4))
    assert weights(plain[1]) == weights(probed[1])
    assert probed[0].token_stats and not plain[0].token_stats


def test_numbers_belong_to_the_sampled_tokens(folder: Path) -> None:
    source, learner = make(folder, plan=replace(PLAN, token_stats=True))
    train(source, learner, range(1, 2))
    for index, stats in source.token_stats.items():
        rollout = source.rollouts[index]
        assert {len(each) for each in stats} == {rollout.length}
        assert stats.trainer_logprobs == pytest.approx(
            rollout.turns[0].completion.logprobs, abs=1e-5
        )
        assert all(0 < each <= 20 for each in stats.entropy)
        assert all(each > 0 for each in stats.ratio) and any(
            abs(each - 1) > 1e-4 for each in stats.ratio
        )
        assert source.advantages[index] is not None


class Fixed:
    """A model whose log-probs are a constant, which an update changes."""

    value = -1.0

    def infer(self, batch: PackedBatch, want: frozenset[str]) -> dict[str, torch.Tensor]:
        return {name: torch.full((batch["segments"].total,), self.value) for name in want}


def batch_of(lengths: list[int], untrained: tuple[int, ...] = ()) -> PackedBatch:
    segments = Segments.from_lengths(torch.tensor(lengths))
    mask_T = torch.ones(segments.total, dtype=torch.bool)
    for row in untrained:
        mask_T[segments.offsets[row] : segments.offsets[row + 1]] = False
    mask_T[segments.offsets[:-1]] = False  # a prompt of one token
    return {
        "segments": segments,
        "tokens_T": torch.zeros(segments.total, dtype=torch.long),
        "loss_mask_T": mask_T,
    }


def test_the_ratio_is_after_to_before() -> None:
    probe = TokenProbe(batch_of([4, 3]), [7, 8], Fixed())
    (found,) = probe.finish(torch.full((4,), -0.5)).items()
    assert found[0] == 7 and found[1].trainer_logprobs == [-1.0] * 3
    assert found[1].ratio == pytest.approx([torch.tensor(0.5).exp().item()] * 3)


def test_a_sixteenth_of_the_tokens_or_one_rollout() -> None:
    assert TokenProbe(batch_of([10] * 64), range(64), Fixed()).rows == [0, 1, 2, 3]
    assert TokenProbe(batch_of([10] * 3), range(3), Fixed()).rows == [0]
    assert TokenProbe(batch_of([10] * 3, untrained=(0,)), range(3), Fixed()).rows == [1]
    assert TokenProbe(batch_of([10] * 2, untrained=(0, 1)), range(2), Fixed()).rows == []
    assert (
        TokenProbe(batch_of([10] * 2), [-1, -1], Fixed()).rows == []
    )  # rollouts of an earlier step
