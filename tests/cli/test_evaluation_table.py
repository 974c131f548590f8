"""What a person reads: every metric, its interval, and what could not be scored."""

from __future__ import annotations

import pytest

from ascent.api.evaluate import EvalResult
from ascent.cli.evaluation_table import print_evaluation
from ascent.maths.estimates import Estimate


def test_every_metric_and_every_failure_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    metrics = {"pass@1": Estimate(0.5, 0.25, 0.75, 12), "greedy/correct": Estimate(1.0, None, None, 1)}
    tokens = {"greedy": {"mean": 3.25, "median": 3.0, "max": 9.0}}
    print_evaluation(EvalResult("m", "[d].jsonl", "reward exact", 12, 4, {}, metrics, tokens, {"exact/no_gold": 2}))
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "m on [d].jsonl: 12 prompts, 4 samples each, scored by reward exact"
    assert "pass@1 0.500 0.250 to 0.750 12" in lines
    assert "greedy/correct 1.000 one prompt 1" in lines
    assert "greedy 3.2 3 9" in lines
    assert lines[-1] == "unscored, left out: 2 (exact/no_gold)"
