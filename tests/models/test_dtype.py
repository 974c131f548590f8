"""The default dtype, and the line about a slow one before anything is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ascent.api.check import check
from ascent.api.train import resume_run, train_plan
from ascent.models import dtype
from ascent.models.dtype import default_dtype, describe_slow_dtype, product_seconds
from ascent.plan import load_config, resolve
from tests.setup.runs import tiny_plan

RECIPE = {"algorithm": "sft", "model": "tiny:llama", "data": "arithmetic:8"}


def resolved(*overrides: str) -> str:
    return resolve(load_config(RECIPE, overrides)).config.model.dtype


@pytest.mark.parametrize(
    ("gpu", "bfloat16", "expected"),
    [(True, True, "bfloat16"), (True, False, "float32"), (False, True, "float32")],
)
def test_the_default_is_what_the_device_computes_in_fast(
    gpu: bool, bfloat16: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(
        torch.cuda,
        "is_bf16_supported",
        lambda including_emulation: bfloat16 and not including_emulation,
    )
    assert default_dtype() == resolved() == resolved("model.dtype=auto") == expected
    for given in ("float32", "bfloat16"):
        assert resolved(f"model.dtype={given}") == given


def test_a_dtype_is_slow_by_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    assert describe_slow_dtype(default_dtype()) == ""
    assert 0 < product_seconds("float32") < 10
    other = {"float32": "bfloat16", "bfloat16": "float32"}[default_dtype()]
    monkeypatch.setattr(dtype, "product_seconds", {other: 30.0, default_dtype(): 1.0}.__getitem__)
    assert describe_slow_dtype(other).startswith(
        f"model.dtype={other} is slow here: a matrix product takes 30 times"
    )
    monkeypatch.setattr(dtype, "product_seconds", {other: 2.9, default_dtype(): 1.0}.__getitem__)
    assert describe_slow_dtype(other) == ""


def test_a_slow_dtype_is_the_first_thing_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before any work: also where the data cannot be read at all."""
    monkeypatch.setattr(dtype, "default_dtype", lambda: "float32")
    monkeypatch.setattr(dtype, "product_seconds", {"bfloat16": 30.0, "float32": 1.0}.__getitem__)
    plan = tiny_plan(
        model={"dtype": "bfloat16"}, run={"steps": 1, "save_every": 1, "evaluate_every": 1}
    )
    said: list[str] = []
    train_plan(plan, tmp_path / "run", progress=False, say=said.append)
    assert said[0].startswith("model.dtype=bfloat16 is slow here")
    config = tmp_path / "run" / "config.yaml"
    config.write_text(config.read_text().replace("steps: 1", "steps: 2"))
    said.clear()
    resume_run(tmp_path / "run", progress=False, say=said.append)
    assert any(line.startswith("model.dtype=bfloat16 is slow here") for line in said)
    said.clear()
    with pytest.raises(ValueError, match="no file or folder at"):
        check(
            tiny_plan(model={"dtype": "bfloat16"}, data={"train": "absent.jsonl"}),
            progress=False,
            say=said.append,
        )
    assert len(said) == 1 and "is slow here" in said[0]
    said.clear()
    train_plan(
        tiny_plan(run={"steps": 1, "save_every": 1}),
        tmp_path / "fast",
        progress=False,
        say=said.append,
    )
    assert not [line for line in said if "is slow here" in line]
