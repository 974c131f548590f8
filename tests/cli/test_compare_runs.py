"""The tables of `ascent compare-runs` fit 80 columns; runs have numbers, groups of seeds letters."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from ascent.cli.main import app
from ascent.maths.estimates import estimate
from tests.api.test_compare_runs import make_run


def call(*arguments: str) -> list[str]:
    done = CliRunner().invoke(
        app, ["compare-runs", *arguments], catch_exceptions=False, env={"COLUMNS": "80"}
    )
    assert done.exit_code == 0
    return done.stdout.splitlines()


def test_runs_and_groups_of_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for rate in ("1e-05", "3e-06"):
        for seed in (1, 2, 3):
            curve = {step: {"eval/reward/mean": 0.01 * step * seed} for step in range(0, 60, 2)}
            answers = {58: [(None, 0.25 * n) for n in range(4)]}
            make_run(
                Path(f"s/{rate}-{seed}"),
                f"seed: {seed}\nupdate: {{learning_rate: {rate}}}\n",
                curve,
                answers,
            )
    lines = call("s", "--plot", "c.png")
    assert max(map(len, lines)) <= 80
    assert "A  learning_rate=1e-05: mean over the seeds of runs 1, 2, 3" in lines
    scores = [line.split() for line in lines[lines.index("eval/reward/mean (higher is better)") :]]
    first = next(words for words in scores if words[:1] == ["1"])
    bounds = estimate([0.0, 0.25, 0.5, 0.75])
    assert first[2:] == [
        "0.58",
        *(interval := [f"{bounds.low:.3g}", "to", f"{bounds.high:.3g}"]),
        "0.58",
        *interval,
        "58",
    ]
    assert len(first[1]) == 16 and first[1].startswith("▁") and first[1].endswith("█")
    group = next(words for words in scores if words[:1] == ["B"])
    assert group[2:6] == ["1.16", "-0.281", "to", "2.6"]  # 1.16 +- 4.3027 * 0.58 / sqrt(3)
    assert lines[-1] == "curves: c.png" and Path("c.png").is_file()


def test_many_differences_are_rows_and_a_missing_metric_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make_run(Path("a"), "".join(f"k{n}: {n}\n" for n in range(5)), {1: {"eval/loss/total": 1.0}})
    make_run(
        Path("b"), "".join(f"k{n}: '[red] :100:'\n" for n in range(5)), {1: {"loss/total": 1.0}}
    )
    lines = [" ".join(line.split()) for line in call("a", "b")]
    assert "k4 4 [red] :100:" in lines and "differs 1 2" in lines
    assert "2 not logged" in lines and "1 ▅ 1 - 1 - 1" in lines
    make_run(Path("c"), "".join(f"k{n}: {n}\n" for n in range(5)), {1: {"eval/loss/total": 1.0}})
    assert "the settings are the same" in call("a", "c")
