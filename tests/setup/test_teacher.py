"""Learning from a frozen teacher, by recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ascent.api.check import check
from ascent.api.train import assemble, train_plan
from ascent.models import tiny
from ascent.runs.folder import read_run
from ascent.setup.teacher import Teacher, teacher_of
from tests.setup.runs import tiny_plan


def quiet(text: str) -> None: ...


@pytest.mark.parametrize(
    ("algorithm", "model"),
    [("gkd", {}), ("kd", {}), ("kd", {"lora": 4}), ("kd", {"dtype": "bfloat16"})],
)
def test_the_loss_is_the_teachers_and_falls(
    tmp_path: Path, algorithm: str, model: dict[str, Any]
) -> None:
    train_plan(
        tiny_plan(algorithm=algorithm, model=model, run={"steps": 6}), tmp_path / "run", say=quiet
    )
    losses = [line[f"loss/{algorithm}"] for line in read_run(tmp_path / "run").metrics]
    assert losses[-1] < losses[0]
    assert "eval/loss/total" in read_run(tmp_path / "run").metrics[1]


def test_a_student_that_is_its_teacher_has_nothing_to_learn(tmp_path: Path) -> None:
    folder = tiny.create(tmp_path / "model", seed=0)
    plan = tiny_plan(algorithm="gkd", model={"policy": str(folder), "teacher": str(folder)})
    training = assemble(plan, tmp_path / "run")
    found = training.learner.evaluate(training.source.next(1), training.objective)
    assert found["loss/total"].value() == pytest.approx(0, abs=1e-6)


def test_the_cut_changes_nothing(tmp_path: Path) -> None:
    values = []
    for budget in (64, 4096):
        training = assemble(
            tiny_plan(algorithm="gkd", update={"tokens_per_microbatch": budget}),
            tmp_path / str(budget),
        )
        values.append(
            training.learner.evaluate(training.source.next(1), training.objective)[
                "loss/total"
            ].value()
        )
    assert values[0] == pytest.approx(values[1], rel=1e-5)


def test_a_teacher_of_other_words_is_refused(tmp_path: Path) -> None:
    other = tiny.create(tmp_path / "other", texts=["some other words " * 8], vocabulary=280, seed=0)
    with pytest.raises(
        ValueError, match=r"the teacher \(model.teacher .*\) has a tokenizer of 2\d\d tokens"
    ):
        assemble(tiny_plan(algorithm="kd", model={"teacher": str(other)}), tmp_path / "run")


def test_a_check_of_a_recipe_counts_the_teachers_memory(tmp_path: Path) -> None:
    assert check(tiny_plan(algorithm="kd")).memory.reference > 0


def test_a_teacher_is_asked_without_gradient(tmp_path: Path) -> None:
    plan = tiny_plan(algorithm="kd")
    training: Any = assemble(plan, tmp_path / "run")
    batch = training.source.source.next(1)[0]
    said = Teacher(teacher_of(plan, tmp_path / "run", training.model))(batch)["teacher_TV"]
    assert said.count == int(batch["loss_mask_T"].sum())
    assert not said.hidden_ND.requires_grad and not said.head.weight_VD.requires_grad
    assert torch.is_grad_enabled()
