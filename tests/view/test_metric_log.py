"""Metrics as columns: read once, line by line, thinned without losing a spike, merged over seeds; and their curves."""

from __future__ import annotations

import json
import math
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ascent.metrics import REGISTRY
from ascent.runs.folder import RunFolder, read_run
from ascent.runs.jsonl import drop_after
from ascent.view import metric_log
from ascent.view.files import RunFiles
from ascent.view.library import Library
from ascent.view.metric_log import Curve, MetricLog, merge, smooth, thin
from ascent.view.page import page_app
from tests.view.browser import serving, wait_for
from tests.view.served import RLVR, at, point_at, shown, texts
from tests.view.written import write_run


def curve(y: Any, x: Any = None) -> Curve:
    y = np.array(y, float)
    return Curve(np.arange(len(y), dtype=float) if x is None else np.array(x, float), y, 0)


def append(path: Path, *records: dict[str, Any] | bytes) -> None:
    with (path / "metrics.jsonl").open("ab") as file:
        file.writelines(
            each if isinstance(each, bytes) else json.dumps(each).encode() + b"\n"
            for each in records
        )


def test_lines_are_read_as_they_come(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", evaluate_every=2)
    log = MetricLog(RunFiles(path))
    log.refresh()
    assert log.complete and log.columns.curve("reward/mean").y.tolist() == [0.1, 0.2, 0.3]
    assert log.columns.curve("eval/reward/correct").x.tolist() == [2.0]
    assert log.columns.curve("reward/mean", "tokens").x.tolist() == [100.0, 200.0, 300.0]
    before = log.revision
    log.refresh()
    assert log.revision == before
    append(path, {"step": 4, "reward/mean": 0.4}, b'{"step": 5, "rew')
    log.refresh()
    assert log.columns.last("reward/mean") == 0.4 and log.revision != before
    append(path, b'ard/mean": 0.5}\n')
    log.refresh()
    assert log.columns.steps.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_damaged_lines_and_numbers_that_are_none(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a")
    append(
        path,
        b"not json\n",
        b"[1]\n",
        {"loss/total": 1},
        {"step": 4, "reward/mean": "NaN", "word": "x"},
    )
    log = MetricLog(RunFiles(path))
    log.refresh()
    found = log.columns.curve("reward/mean")
    assert (log.columns.unreadable, found.non_finite, found.y.tolist()) == (3, 1, [0.1, 0.2, 0.3])
    assert log.columns.curve("none").y.tolist() == [] and log.columns.last("none") is None


def test_a_resumed_run_is_read_again(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a")
    log = MetricLog(RunFiles(path))
    log.refresh()
    drop_after(path / "metrics.jsonl", 1)
    append(path, {"step": 2, "reward/mean": 0.9})
    log.refresh()
    assert log.columns.curve("reward/mean").y.tolist() == [0.1, 0.9]
    (path / "metrics.jsonl").unlink()
    log.refresh()
    assert log.columns.metrics == {} and log.complete


def test_a_long_file_opens_at_once_and_is_then_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_run(tmp_path / "a", steps=2000)
    monkeypatch.setattr(metric_log, "LONG", 1000)
    monkeypatch.setattr(metric_log, "SPREAD", 100)
    log = MetricLog(RunFiles(path))
    log.refresh()
    rough = log.columns.curve("reward/mean")
    assert not log.complete and log.share < 1 and 90 <= len(rough.x) <= 101
    assert (rough.x[0], rough.x[-1]) == (1, 2000)
    assert log.columns.curve("reward/mean", "tokens").x[-1] == pytest.approx(200_000, rel=0.05)
    while not log.complete:
        log.refresh(seconds=0.01)
    assert len(log.columns.curve("reward/mean").x) == 2000


def test_thinning_keeps_ends_and_spikes() -> None:
    y = np.sin(np.arange(10_007) / 500)
    y[777], y[9_001] = 50, -50
    found = thin(curve(y), 400)
    assert len(found.y) <= 410 and found.y.max() == 50 and found.y.min() == -50
    assert (found.x[0], found.x[-1]) == (0, 10_006) and (np.diff(found.x) > 0).all()
    assert thin(curve([1, 2, 3]), 3).y.tolist() == [1, 2, 3]
    assert len(thin(curve(range(5)), 2).y) <= 4


def test_smoothing_is_the_mean_of_neighbors() -> None:
    assert smooth(curve([0, 3, 6, 3]), 3).y.tolist() == [1.5, 3.0, 4.0, 4.5]
    assert smooth(curve([1, 2]), 1).y.tolist() == [1, 2] and smooth(curve([]), 5).y.tolist() == []


def test_seeds_merge_where_all_have_the_step() -> None:
    one, two = curve([1, 2, 3], [1, 2, 3]), curve([3, 6], [2, 3])
    mean, low, high = merge([one, two], [one, two])
    assert (mean.x.tolist(), mean.y.tolist()) == ([2, 3], [2.5, 4.5])
    assert (low.tolist(), high.tolist()) == ([2, 3], [3, 6])
    times = [one._replace(x=np.array([10.0, 20, 30])), two._replace(x=np.array([24.0, 34]))]
    assert merge(times, [one, two])[0].x.tolist() == [22, 32]


def test_time_starts_at_the_first_line(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "a", "algorithm: sft\n", {}) as run:
        run.log(1, {"loss/total": 1.0})
    append(tmp_path / "a", {"step": 2, "loss/total": 2.0})  # without a time
    log = MetricLog(RunFiles(tmp_path / "a"))
    log.refresh()
    assert log.columns.curve("loss/total", "time").x.tolist() == [0.0]
    assert log.columns.curve("loss/total").x.tolist() == [1.0, 2.0]
    assert math.isnan(array("d", log.columns.times)[1])


def test_the_cursor_shows_the_logged_numbers(url: str, open_page: Any, trained: Path) -> None:
    metrics = {row["step"]: row for row in read_run(trained / RLVR).metrics}
    page = open_page(at(url, RLVR))
    panel = page.locator(".panel[data-title='reward/mean']")
    panel.locator("canvas").wait_for()
    assert (
        shown(metrics[14]["reward/mean"]) in panel.locator(".values").inner_text()
    )  # the last one
    point_at(page, panel, 6 / 14)
    values = panel.locator(".values").inner_text()
    assert (
        "step 6" in values
        and shown(metrics[6]["reward/mean"]) in values
        and shown(metrics[6]["eval/reward/mean"]) in values
    )
    other = page.locator(
        ".panel[data-title='loss/total'] .values"
    ).inner_text()  # the cursor is shared
    assert "step 6" in other and shown(metrics[6]["loss/total"]) in other
    page.mouse.move(5, 5)
    panel.locator(".plot").focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    assert "step 1" in panel.locator(".values").inner_text()
    assert shown(metrics[1]["reward/mean"]) in page.locator("#announce").text_content()


def test_axes_smoothing_search_and_phases(url: str, open_page: Any, trained: Path) -> None:
    metrics = read_run(trained / RLVR).metrics
    tokens = sum(row.get("tokens/run", 0) for row in metrics)
    page = open_page(at(url, RLVR))
    page.wait_for_selector(".panel canvas")
    page.click("text=Tokens")
    total = f"{float(f'{tokens / 1000:.3g}'):g}k"
    wait_for(
        page,
        f"document.querySelector('.plot').getAttribute('aria-label').includes('tokens {total}')",
    )
    page.focus("input[type=range]")
    page.keyboard.press("ArrowRight")
    assert "mean of 3" in page.inner_text(".controls")
    page.fill("input[aria-label='Find a metric']", "grad_norm")
    wait_for(page, "document.querySelectorAll('.panel').length === 1")
    page.fill("input[aria-label='Find a metric']", "by phase")
    page.wait_for_selector(".panel[data-title='time by phase'] canvas")
    page.click("text=Step")
    wait_for(page, "document.querySelector('.plot').getAttribute('aria-label').includes('step 14')")
    point_at(page, page.locator(".panel[data-title='time by phase']"), 5 / 13)
    words = page.inner_text(".panel .values").split()
    (step,) = [row for row in metrics if row["step"] == int(words[-1])]
    for phase in ("sample", "update"):  # each phase says its own seconds, not those of the stack
        assert words[words.index(phase) + 1] == shown(step[f"time/{phase}"])


def test_sections_are_the_groups_of_the_registry(url: str, open_page: Any, trained: Path) -> None:
    page = open_page(at(url, RLVR))
    page.wait_for_selector(".panel canvas")
    logged = {
        name.removeprefix("eval/")
        for row in read_run(trained / RLVR).metrics
        for name in row
        if "/" in name
    }
    main = [
        each.name
        for each in sorted(REGISTRY, key=lambda each: each.plot or 0)
        if each.plot and each.name in logged
    ]
    titles = [
        each.get_attribute("data-title") for each in page.query_selector_all("details[open] .panel")
    ]
    assert titles[: len(main)] == main and titles[-1] == "time by phase"
    groups = {name.partition("/")[0] for name in logged - set(titles)}
    assert page.locator("details.section > summary h2").all_inner_texts()[0] == "Main"
    assert set(texts(page, "details.section > summary h2")[1:]) == groups
    page.click("summary:has-text('tokens')")
    page.wait_for_selector(".panel[data-title='tokens/run'] canvas")
    page.click("text=Time")
    seconds = [row["timestamp"] for row in read_run(trained / RLVR).metrics]
    wanted = f"time {round(seconds[-1] - seconds[0])} s"
    wait_for(
        page, f"document.querySelector('.plot').getAttribute('aria-label').includes('{wanted}')"
    )


def test_warnings_are_marks_on_the_curve(tmp_path: Path, open_page: Any) -> None:
    path = write_run(tmp_path / "a", steps=9)
    record = {
        "step": 4,
        "name": "low",
        "reads": "reward/mean",
        "value": 0.4,
        "low": 0.5,
        "high": "Infinity",
        "why": "Too low.",
        "fix": "Raise it.",
    }
    (path / "warnings.jsonl").write_text(json.dumps(record) + "\n")
    with serving(page_app(Library([tmp_path]))) as url:
        page = open_page(at(url, "a"))
        mark = page.wait_for_selector(".panel[data-title='reward/mean'] .mark")
        assert mark.get_attribute("aria-label") == "step 4, low: Too low. Raise it."
        page.click("text=Diagnosis")
        page.wait_for_selector(".warning")
        assert page.inner_text(".tabs .count") == "1"
        assert "Try: Raise it." in page.inner_text(".warning") and "below 0.5" in page.inner_text(
            ".warning"
        )
        page.click("text=See the curve")
        page.wait_for_selector(".panel .mark")
