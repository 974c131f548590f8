"""`ascent runs` and `ascent show run`: names of nested runs, times as times."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ascent.cli.main import app
from ascent.cli.runs import format_metric
from ascent.runs.folder import RunFolder


def call(*arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def make_run(path: Path) -> Path:
    with RunFolder.create(
        path, "algorithm: sft\n", {"python": "3.11", "system": "x", "command": []}
    ) as folder:
        folder.log(1, {"loss/total": 2.5, "time/step": 3725.4, "time/update": 0.01234})
        folder.finish("finished", 1)
    return path


def test_nested_runs_are_listed_by_their_path(tmp_path: Path) -> None:
    make_run(tmp_path / "iterated/round-1/policy")
    make_run(tmp_path / "a")
    lines = call("runs", str(tmp_path)).splitlines()
    assert [line.split()[:4] for line in lines] == [
        ["a", "finished", "step", "1"],
        ["iterated/round-1/policy", "finished", "step", "1"],
    ]
    assert all(line.endswith("loss/total 2.5") for line in lines)


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("utc")
def test_times_are_printed_as_times(tmp_path: Path) -> None:
    pairs = [
        line.split(maxsplit=1) for line in call("show", "run", str(make_run(tmp_path))).splitlines()
    ]
    shown = {pair[0]: pair[1] for pair in pairs if len(pair) == 2}
    assert (
        shown["time/step"] == "1:02:05"
        and shown["time/update"] == "0.0123 s"
        and shown["loss/total"] == "2.5"
    )
    assert shown["timestamp"].startswith(time.strftime("%Y-%m-%d ")) and shown[
        "timestamp"
    ].endswith(" UTC")
    assert format_metric("timestamp", 0.0) == "1970-01-01 00:00:00 UTC"
    assert (
        format_metric("time/step", 59.94) == "59.9 s"
        and format_metric("time/step", math.nan) == "nan"
    )
    assert format_metric("eval/reward/mean", 1234567.0) == "1.23457e+06"
