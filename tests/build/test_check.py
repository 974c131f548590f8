"""One step, looked at and thrown away."""

from __future__ import annotations

import math

import pytest

from ascent.build.check import check
from tests.build.runs import tiny_plan


def test_it_shows_what_is_trained_and_what_a_step_costs() -> None:
    found = check(tiny_plan())
    assert [trained for _, trained in found.sample] == [False, True]
    assert found.sample[0][0].endswith("=") and found.sample[1][0].endswith("<eos>")
    assert 0 < found.trained < found.tokens
    assert math.isfinite(found.loss) and found.grad_norm > 0 and found.seconds > 0
    assert found.memory.total > found.memory.weights > 0


def test_bad_data_is_found_before_a_run(tmp_path) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text('{"prompt": "a", "chosen": "x", "rejected": "x"}\n')
    with pytest.raises(ValueError, match=r"pairs\.jsonl.*1"):
        check(tiny_plan(algorithm="dpo", data={"train": str(file)}))
