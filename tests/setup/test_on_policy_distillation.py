"""The student's own answers in the place of a share of the records'."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ascent.api.train import assemble, resume_run, train_plan
from ascent.data.prepare import Item
from ascent.data.render import Rendered
from ascent.engines.native.engine import NativeEngine
from ascent.models.load import load
from ascent.models.tiny import create
from ascent.setup.on_policy_distillation import OnPolicyAnswers
from tests.setup.runs import tiny_plan, weights_of


@pytest.fixture(scope="module")
def sampler(tmp_path_factory: pytest.TempPathFactory) -> NativeEngine:
    return NativeEngine(
        load(create(tmp_path_factory.mktemp("model") / "tiny", seed=0)), {1}, max_model_len=64
    )


def items(count: int = 40, prompt: int = 3) -> list[Item]:
    tokens = [np.arange(5 + n, 15 + n, dtype=np.int32) for n in range(count)]
    return [Item("examples", (Rendered(each, np.arange(10) >= prompt, prompt),)) for each in tokens]


def own(sampler: NativeEngine, **changes: Any) -> OnPolicyAnswers:
    return OnPolicyAnswers(
        sampler,
        **{"fraction": 0.5, "seed": 0, "temperature": 1.0, "max_new_tokens": 6, "longest": 8}
        | changes,
    )


def test_a_share_of_the_answers_is_written_anew_behind_the_same_questions(
    sampler: NativeEngine,
) -> None:
    before, after = items(), own(sampler)(items(), 1)
    fresh = [
        place
        for place, item in enumerate(after)
        if item.sequences[0].tokens[3:].tolist() != before[place].sequences[0].tokens[3:].tolist()
    ]
    assert 10 <= len(fresh) <= 30
    for old, new in zip(before, after, strict=True):
        assert new.sequences[0].tokens[:3].tolist() == old.sequences[0].tokens[:3].tolist()
    for place in fresh:
        written = after[place].sequences[0]
        assert 4 <= len(written) <= 8 and written.prompt_length == 3
        assert written.loss_mask.tolist() == [False] * 3 + [True] * (len(written) - 3)


def test_the_same_step_gives_the_same_answers_and_another_does_not(sampler: NativeEngine) -> None:
    first, again, later = (own(sampler, fraction=1.0)(items(), step) for step in (1, 1, 2))
    said = [[item.sequences[0].tokens.tolist() for item in each] for each in (first, again, later)]
    assert said[0] == said[1] != said[2]


def test_nobody_and_everybody(sampler: NativeEngine) -> None:
    found = items()
    assert all(a is b for a, b in zip(own(sampler, fraction=0.0)(found, 1), found, strict=True))
    assert not any(a is b for a, b in zip(own(sampler, fraction=1.0)(found, 1), found, strict=True))
    plain = items(4, prompt=0)  # text that answers nothing
    assert all(a is b for a, b in zip(own(sampler, fraction=1.0)(plain, 1), plain, strict=True))


def test_a_run_resumes_to_the_same_bits_and_differs_from_one_on_the_records(tmp_path: Path) -> None:
    plan = tiny_plan(
        algorithm="gkd", rollouts={"max_new_tokens": 8}, data={"on_policy_fraction": 1.0}
    )
    train_plan(plan, tmp_path / "run", say=lambda line: None)
    final = weights_of(tmp_path / "run", 4)
    shutil.rmtree(tmp_path / "run/checkpoints/4")
    assert resume_run(tmp_path / "run", say=lambda line: None) == 4
    assert weights_of(tmp_path / "run", 4) == final
    batches = [
        assemble(
            tiny_plan(algorithm="gkd", data={"on_policy_fraction": share}), tmp_path / str(share)
        ).source.next(1)
        for share in (0.0, 1.0)
    ]
    assert batches[0][0]["tokens_T"].tolist() != batches[1][0]["tokens_T"].tolist()
