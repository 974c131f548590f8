"""Fan-out, TensorBoard read back with TensorBoard's own reader, W&B by the calls it gets."""

from __future__ import annotations

import json
import math
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from ascent.runs.trackers import NEEDS, MultiTracker, TensorBoard, WeightsAndBiases, require


class Seen:
    def __init__(self, fails: bool = False) -> None:
        self.steps: list[int] = []
        self.closed, self.fails = False, fails

    def log(self, step: int, metrics: Any) -> None:
        if self.fails:
            raise ConnectionError("server away")
        self.steps.append(step)

    def close(self) -> None:
        if self.fails:
            raise ConnectionError("still away")
        self.closed = True


def test_a_tracker_that_fails_is_told_and_left_out_while_the_rest_goes_on() -> None:
    said: list[str] = []
    record, good, bad = Seen(), Seen(), Seen(fails=True)
    tracker = MultiTracker(record, [bad, good], say=said.append)
    for step in (1, 2):
        tracker.log(step, {})
    tracker.close()
    assert record.steps == good.steps == [1, 2]
    assert record.closed and good.closed
    assert len(said) == 1
    assert "Seen failed at step 1 (ConnectionError: server away)" in said[0]


def test_a_failing_record_ends_the_run_and_a_failing_close_is_told() -> None:
    with pytest.raises(ConnectionError):
        MultiTracker(Seen(fails=True), []).log(1, {})
    said: list[str] = []
    record = Seen()
    MultiTracker(record, [Seen(fails=True)], say=said.append).close()
    assert record.closed and "could not be closed" in said[0]


@pytest.mark.filterwarnings("ignore")  # TensorBoard's reader warns about its own dependencies
def test_tensorboard_reads_what_was_written_and_forgets_what_was_run_again(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    first = TensorBoard(tmp_path)
    for step in (1, 2, 3):
        first.log(step, {"loss": 1.0 * step, "bad": math.nan})
    first.close()
    second = TensorBoard(tmp_path, resumed_at=1)
    second.log(2, {"loss": 20.0})
    second.close()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert len(names) == 2
    reader = EventAccumulator(str(tmp_path))
    reader.Reload()
    assert [(event.step, event.value) for event in reader.Scalars("loss")] == [(1, 1.0), (2, 20.0)]


RECORDS = [
    {
        "prompt": "1 | 2",
        "completion": "a\nb",
        "reward": None,
        "parts": {"r/a": None},
        "stop": "eos",
    },
    {
        "prompt": "3",
        "completion": "c",
        "reward": 0.25,
        "parts": {"r/a": 1.0, "r/b": 0.5},
        "stop": "length",
    },
]
COLUMNS = ["prompt", "completion", "reward", "r/a", "r/b", "stop"]
ROWS = [["1 | 2", "a\nb", None, None, None, "eos"], ["3", "c", 0.25, 1.0, 0.5, "length"]]


def log_tables(tracker: TensorBoard | WeightsAndBiases) -> None:
    """Evaluations before the first step and after step 4; eleven steps."""
    for step in range(12):
        tracker.log(
            step, {"loss/total": 1.0, **({"eval/reward/mean": 0.5} if step in (0, 4) else {})}
        )
    tracker.close()


@pytest.mark.filterwarnings("ignore")
def test_tensorboard_shows_samples_as_tables(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    long = [RECORDS[1]] * 40
    log_tables(TensorBoard(tmp_path, samples=lambda: RECORDS, answers=lambda: long))
    reader = EventAccumulator(str(tmp_path))
    reader.Reload()
    assert reader.PluginTagToContent("text").keys() == {"samples", "answers"}
    found = {
        tag: {e.step: e.tensor_proto.string_val[0].decode() for e in reader.Tensors(tag)}
        for tag in ("samples", "answers")
    }
    assert list(found["samples"]) == [1, 4, 10] and list(found["answers"]) == [0, 4]
    assert found["samples"][1].splitlines() == [
        "| prompt | completion | reward | r/a | r/b | stop |",
        "| --- | --- | --- | --- | --- | --- |",
        "| 1 \\| 2 | a b |  |  |  | eos |",
        "| 3 | c | 0.25 | 1 | 0.5 | length |",
    ]
    assert len(found["answers"][0].splitlines()) == 2 + 16  # the first rows only
    assert len(reader.Scalars("loss/total")) == 12


def test_weights_and_biases_gets_samples_as_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[Any] = []
    fake: Any = types.ModuleType("wandb")
    fake.Table = lambda columns, data: {"columns": columns, "data": data}
    run = types.SimpleNamespace(
        log=lambda values, step: logged.append((step, values)), finish=lambda: None
    )
    fake.init = lambda **options: run
    monkeypatch.setitem(sys.modules, "wandb", fake)
    log_tables(
        WeightsAndBiases(
            tmp_path, project="p", name="r", config={}, samples=lambda: RECORDS, answers=lambda: []
        )
    )
    tables = [(step, values) for step, values in logged if "loss/total" not in values]
    assert [step for step, _ in tables] == [1, 4, 10]  # no table of no answers
    assert tables[0][1] == {"samples": {"columns": COLUMNS, "data": ROWS}}


@pytest.mark.filterwarnings("ignore")
def test_weights_and_biases_itself_writes_the_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed; the test above has a stand-in")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    log_tables(
        WeightsAndBiases(tmp_path, project="p", name="r", config={}, samples=lambda: RECORDS)
    )
    files = sorted(
        tmp_path.rglob("samples_*.table.json"), key=lambda path: int(path.name.split("_")[1])
    )
    assert [int(path.name.split("_")[1]) for path in files] == [1, 4, 10]
    assert json.loads(files[0].read_text()) == {"columns": COLUMNS, "data": ROWS}


def test_weights_and_biases_gets_the_run_and_no_nan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    run = types.SimpleNamespace(
        log=lambda values, step: calls.append((step, values)), finish=lambda: calls.append("finish")
    )
    fake: Any = types.ModuleType("wandb")
    fake.init = lambda **options: calls.append(options) or run
    monkeypatch.setitem(sys.modules, "wandb", fake)
    tracker = WeightsAndBiases(tmp_path, project="p", name="run-1", config={"seed": 0})
    tracker.log(3, {"loss": 1.0, "accuracy": math.nan})
    tracker.close()
    options = {
        "project": "p",
        "name": "run-1",
        "id": "run-1",
        "resume": "allow",
        "config": {"seed": 0},
    }
    assert calls == [{"dir": str(tmp_path), **options}, (3, {"loss": 1.0}), "finish"]


@pytest.mark.parametrize(
    ("module", "make"),
    [
        ("wandb", lambda path: WeightsAndBiases(path, project="p", name="n", config={})),
        ("tensorboard.summary.writer.event_file_writer", TensorBoard),
    ],
)
def test_a_missing_package_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, make: Any
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    package = module.partition(".")[0]
    with pytest.raises(
        ImportError,
        match=rf"the package '{package}' cannot be imported .*pip install 'ascent-posttrain\[track\]'",
    ):
        make(tmp_path)


@pytest.mark.parametrize("name", NEEDS)
def test_a_missing_package_can_be_found_out_beforehand(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, NEEDS[name][1], None)
    require([each for each in NEEDS if each not in (name, "wandb")])
    with pytest.raises(ImportError, match=r"pip install 'ascent-posttrain\[track\]'"):
        require([name])


def test_others_are_closed_once_and_the_record_stays_open() -> None:
    record, other = Seen(), Seen()
    tracker = MultiTracker(record, [])
    tracker.add(other)
    tracker.close_others()
    tracker.close_others()
    tracker.log(1, {})
    assert other.closed and not record.closed and (record.steps, other.steps) == ([1], [])
