"""Only the files of run folders are opened, and never through a link; a diagnosis and an output are shown."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ascent.advice import KeyChange
from ascent.diagnose.records import Diagnosis, Finding, from_json
from ascent.view.files import RunFiles
from ascent.view.library import Library
from ascent.view.page import page_app
from tests.view.browser import find_faults, serving
from tests.view.served import RLVR, at, point_at, texts
from tests.view.written import sample, write_run


def test_files_are_read(tmp_path: Path) -> None:
    files = RunFiles(write_run(tmp_path / "a"))
    assert files.json("inputs.json")["recipe"]["algorithm"] == "grpo"
    assert [each["step"] for each in files.records("metrics.jsonl")] == [1, 2, 3]
    assert (
        files.text("warnings.jsonl") == ""
        and files.json("changes.jsonl") is None
        and files.checkpoints() == []
    )


def test_links_pipes_and_folders_are_no_files(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text('{"step": 1, "password": "x"}\n')
    files = RunFiles(write_run(tmp_path / "a"))
    for name in ("config.yaml", "samples.jsonl", "metrics.jsonl"):
        (tmp_path / "a" / name).unlink()
    (tmp_path / "a/config.yaml").symlink_to(secret)
    os.mkfifo(tmp_path / "a/samples.jsonl")
    (tmp_path / "a/metrics.jsonl").mkdir()
    for name in ("config.yaml", "samples.jsonl", "metrics.jsonl"):
        assert files.text(name) == "", name


def test_a_folder_that_became_a_link_is_not_followed(tmp_path: Path) -> None:
    files = RunFiles(write_run(tmp_path / "runs/a"))
    write_run(tmp_path / "elsewhere/a")
    (tmp_path / "runs").rename(tmp_path / "old")
    (tmp_path / "runs").symlink_to(tmp_path / "elsewhere")
    assert files.text("config.yaml") == "" and files.checkpoints() == []


def test_the_output_of_a_sweep_is_read_from_beside_the_folder(tmp_path: Path) -> None:
    run = write_run(tmp_path / "sweep/seed=1")
    log = tmp_path / "sweep/seed=1.log"
    files = RunFiles(run, with_output=True)
    assert files.output() == ""
    log.write_bytes(b"first \xff\n" + b"x" * 70_000 + b"\nlast\n")
    assert (
        files.output() == "last\n" and RunFiles(run).output() == ""
    )  # the end, from a whole line on
    log.unlink()
    log.symlink_to(tmp_path / "sweep/seed=1/config.yaml")
    assert files.output() == ""


def test_no_other_name_is_opened(tmp_path: Path) -> None:
    with pytest.raises(AssertionError), RunFiles(tmp_path).open("../secret"):
        pass


def test_checkpoints(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a")
    for name in ("20", "7", ".saving"):
        (run / "checkpoints" / name).mkdir(parents=True)
    assert [each["step"] for each in RunFiles(run).checkpoints()] == [7, 20]


def test_a_diagnosis_is_read(tmp_path: Path) -> None:
    files = RunFiles(write_run(tmp_path / "a"))
    assert files.diagnosis() is None
    change = KeyChange("update.learning_rate", "lower")
    seen = ({"step": 7, "id": "p", "completion": "x"},)
    finding = Finding(
        "collapse",
        "It repeats itself.",
        7,
        0.9,
        ("entropy 0.01",),
        (change,),
        ("policy/entropy",),
        seen,
    )
    (tmp_path / "a/diagnosis.json").write_text(Diagnosis("a", 9, (finding,)).to_json())
    assert files.diagnosis() == {
        "step": 9,
        "findings": [
            {
                "cause": "collapse",
                "certainty": "sure",
                "summary": "It repeats itself.",
                "began": 7,
                "note": False,
                "metrics": ("policy/entropy",),
                "evidence": ("entropy 0.01",),
                "changes": ["update.learning_rate: lower"],
                "rollouts": [{"step": 7, "id": "p"}],
            }
        ],
    }
    odd = (replace(finding, confidence="high"), replace(finding, rollouts=("x",)))  # type: ignore[arg-type]
    wrong = [Diagnosis("a", 9, (each,)).to_json() for each in odd]
    for damaged in ("{", "[]", '{"format": 1}', '{"format": 1, "findings": [{"x": 1}]}', *wrong):
        (tmp_path / "a/diagnosis.json").write_text(damaged)
        assert files.diagnosis() is None, damaged


def test_a_run_shows_the_diagnosis_of_its_end(url: str, open_page: Any, trained: Path) -> None:
    page = open_page(at(url, RLVR, tab="diagnosis"))
    page.wait_for_selector("h2:has-text('Diagnosis after step 14')")
    found = from_json((trained / RLVR / "diagnosis.json").read_text())
    assert texts(page, ".finding .badge") == [
        each.cause.replace("_", " ") for each in found.findings
    ]
    assert found.findings or "Nothing found wrong" in page.inner_text("main")


def test_a_diagnosis_appears_with_its_evidence_as_plots(tmp_path: Path, open_page: Any) -> None:
    path = write_run(tmp_path / "a", steps=9, samples=[(4, sample())])
    change = KeyChange("update.learning_rate", "1e-06", "a third")
    evidence = ("reward/mean fell from 0.9 to 0.1", "<b>loss</b> rose")
    finding = Finding(
        "reward_collapse",
        "The reward fell.",
        4,
        0.9,
        evidence,
        (change,),
        ("reward/mean",),
        ({"step": 4},),
    )
    with serving(page_app(Library([tmp_path]))) as url:
        page = open_page(at(url, "a", tab="diagnosis"))
        page.wait_for_selector("text=Not diagnosed yet")
        (path / "diagnosis.json").write_text(Diagnosis("a", 9, (finding,)).to_json())
        page.wait_for_selector(
            ".finding .panel[data-title='reward/mean'] canvas"
        )  # without reloading
        assert texts(page, ".finding .evidence li") == list(evidence)
        assert texts(page, ".finding .fix li") == ["update.learning_rate: 1e-06 (a third)"]
        mark = page.wait_for_selector(".finding .mark")
        assert mark.get_attribute("aria-label") == "reward_collapse from step 4 on"
        assert page.inner_text(".tabs .count") == "1" and find_faults(page) == []
        point_at(page, page.locator(".finding .panel"), 3 / 8)
        assert "step 4" in page.inner_text(".finding .values") and "0.4" in page.inner_text(
            ".finding .values"
        )
        page.click("text=See the rollouts of step 4")
        page.wait_for_selector(".sample")


def test_the_runs_of_a_sweep_show_what_they_printed(tmp_path: Path, open_page: Any) -> None:
    for seed in (1, 2):
        write_run(tmp_path / f"sweep/seed={seed}", recipe={"seed": seed})
    printed = "\x1b[32mstep 1\x1b[0m\n 10%\r 50%\r100%\r\n<b>done</b>\n"
    (tmp_path / "sweep/seed=1.log").write_text(printed)
    with serving(page_app(Library([tmp_path]))) as url:
        page = open_page(f"{url}#/?group=folder")
        page.click("[aria-label='Compare the runs of sweep']")
        page.wait_for_selector(".legend li")
        assert texts(page, ".legend li") == ["sweep/seed=1 and 1 more seed"]
        page = open_page(at(url, "sweep/seed=1", tab="log"))
        page.wait_for_selector("pre.output")
        assert page.inner_text("pre.output").split("\n") == ["step 1", "100%", "<b>done</b>", ""]
        assert find_faults(page) == []
        other = open_page(at(url, "sweep/seed=2", tab="log"))
        other.wait_for_selector("table.log")
        assert other.locator("pre.output").count() == 0
