"""Several runs beside each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ascent.runs.folder import read_run
from ascent.view.comparison import compare_curves, differing_settings, group_runs
from ascent.view.library import RunReader
from tests.view.browser import wait_for
from tests.view.served import OTHER, RLVR, point_at, shown, texts
from tests.view.written import write_run

OPTIONS = {"axis": "step", "window": 1, "points": 100}


def readers(tmp_path: Path) -> list[RunReader]:
    settings = {"a": (1, 0.1), "b": (2, 0.1), "c": (1, 0.5)}
    found = []
    for name, (seed, rate) in settings.items():
        steps = {"a": 3, "b": 2, "c": 3}[name]
        run = write_run(
            tmp_path / name, steps=steps, recipe={"seed": seed, "update.learning_rate": rate}
        )
        found.append(RunReader(name, run))
        found[-1].metrics.refresh()
    return found


def test_settings_that_differ(tmp_path: Path) -> None:
    found = {row["key"]: row["values"] for row in differing_settings(readers(tmp_path))}
    assert found == {"seed": [1, 2, 1], "update.learning_rate": [0.1, 0.1, 0.5]}


def test_runs_without_recorded_settings_are_not_folded(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (write_run(tmp_path / name) / "inputs.json").unlink()
    runs = [RunReader(name, tmp_path / name) for name in ("a", "b")]
    assert len(group_runs(runs, fold=True)) == 2


def test_seeds_are_folded_into_mean_and_band(tmp_path: Path) -> None:
    runs = readers(tmp_path)
    found = compare_curves(runs, ["reward/mean", "loss/total"], fold=True, **OPTIONS)
    assert [group["runs"] for group in found["groups"]] == [["a", "b"], ["c"]]
    band, line = found["curves"]["reward/mean"]
    assert (band["x"], band["y"], band["low"], line["y"]) == (
        [1, 2],
        [0.1, 0.2],
        [0.1, 0.2],
        [0.1, 0.2, 0.3],
    )
    assert "low" not in line and found["curves"]["loss/total"] == []
    assert len(compare_curves(runs, [], fold=False, **OPTIONS)["groups"]) == 3


BAND = """canvas => {
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  let count = 0;
  for (let i = 3; i < data.length; i += 4) count += data[i] > 30 && data[i] < 60; // of a color in 18 of 100
  return count;
}"""


def test_two_runs_are_compared_by_keyboard_alone(url: str, open_page: Any, trained: Path) -> None:
    page = open_page(url)
    for seed in (1, 2):
        page.wait_for_selector(f"tr[data-run='sort/rlvr/seed-{seed}'] input")
        page.focus(f"tr[data-run='sort/rlvr/seed-{seed}'] input")
        page.keyboard.press("Space")
    page.focus("button.primary")
    page.keyboard.press("Enter")
    page.wait_for_selector(".legend li")
    assert texts(page, ".legend li") == ["sort/rlvr/seed-1 and 1 more seed"]  # folded
    assert [row.split("\t") for row in texts(page, "table.settings tbody tr")] == [
        ["seed", "1", "2"]
    ]
    first, second = (
        {
            each["step"]: each["reward/mean"]
            for each in read_run(trained / name).metrics
            if "reward/mean" in each
        }
        for name in (RLVR, OTHER)
    )
    panel = page.locator(".panel[data-title='reward/mean']")
    panel.locator("canvas").wait_for()
    point_at(page, panel, 6 / 14)
    assert shown((first[6] + second[6]) / 2) in panel.locator(".values").inner_text()
    folded = panel.locator("canvas").evaluate(BAND)
    page.click("text=Every run")
    wait_for(page, "document.querySelectorAll('.legend li').length === 2")
    assert texts(page, ".legend li") == ["sort/rlvr/seed-1", "sort/rlvr/seed-2"]
    panel = page.locator(".panel[data-title='reward/mean']")
    panel.locator("canvas").wait_for()
    point_at(page, panel, 6 / 14)
    values = panel.locator(".values").inner_text()
    assert (
        shown(first[6]) in values
        and shown(second[6]) in values
        and panel.locator("canvas").evaluate(BAND) < folded / 3
    )
