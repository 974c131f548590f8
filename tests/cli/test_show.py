import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ascent.algorithms import TABLE
from ascent.cli.main import app
from ascent.config.show import as_yaml
from ascent.metrics import REGISTRY, markdown
from ascent.plan import resolve
from ascent.plan.load import load_config


def shown(*arguments):
    done = CliRunner().invoke(app, ["show", *arguments], catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def test_algorithms_piped_has_a_line_for_every_row():
    lines = [line.split() for line in shown("algorithms").splitlines()]
    for name in TABLE:
        assert sum(bool(line) and line[0] == name for line in lines) == 1, name


def test_algorithms_on_a_terminal_fits_100_columns(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    text = shown("algorithms")
    for line in text.replace("\x1b[1m", "").replace("\x1b[0m", "").splitlines():
        assert len(line) <= 100
    assert "…" not in text


def test_one_algorithm_tells_all(monkeypatch):
    text = shown("algorithm", "dapo")
    row = TABLE["dapo"]
    for words in (row.title, row.paper, row.formula, row.origin, *row.pitfalls, *row.defaults):
        assert words in text
    for _, cell in row.cells():
        assert cell.name in text
        assert cell.summary in text
    assert "max_length 20480, cache 4096" in text


def test_config_prints_the_resolved_config():
    expected = as_yaml(resolve(load_config("rlvr", ["rollouts.group_size=4"])).config)
    assert shown("config", "rlvr", "rollouts.group_size=4") == expected


def test_schema_is_json_with_every_algorithm():
    assert json.loads(shown("schema"))["properties"]["algorithm"]["anyOf"][0]["enum"] == sorted(
        TABLE
    )


def test_the_page_in_docs_is_current():
    page = Path(__file__).parents[2] / "docs" / "algorithms.md"
    text = shown("algorithms", "--markdown")
    assert page.exists(), "make it with: ascent show algorithms --markdown > docs/algorithms.md"
    assert page.read_text() == text, (
        "make it again with: ascent show algorithms --markdown > docs/algorithms.md"
    )


def test_metrics_have_a_line_each():
    lines = shown("metrics").splitlines()
    assert lines[0].split() == ["name", "unit", "healthy", "meaning"]
    assert [line.split()[0] for line in lines[2:]] == [each.name for each in REGISTRY]


def test_the_metrics_page_in_docs_is_current():
    page, text = Path(__file__).parents[2] / "docs" / "metrics.md", shown("metrics", "--markdown")
    assert text == markdown()
    assert page.read_text() == text, (
        "make it again with: ascent show metrics --markdown > docs/metrics.md"
    )


def test_an_unknown_algorithm_is_an_error():
    with pytest.raises(ValueError, match="no algorithm named 'nope'"):
        shown("algorithm", "nope")


def test_rows_are_found_by_words():
    lines = shown("algorithms", "--like", "entropy bonus").splitlines()
    assert lines[0].split() == ["name", "what", "it", "is", "found", "in"]
    assert lines[2].split()[0] == "skywork_or1"
    assert "No row and no cell holds" in shown("algorithms", "--like", "zzzz")


def test_cells_that_no_row_uses_are_found_by_words():
    lines = shown("algorithms", "--like", "icepop").splitlines()
    assert lines[0].split("  ")[1] == "in a recipe"
    assert lines[2].split("  ")[1:3] == [
        "cells.rollout_correction.use: token_mask",
        "low 0.5 (at least 0), high 5 (above 0)",
    ]
    assert len(lines) == 3


def test_cells_are_shown_after_the_rows():
    text = shown("algorithms", "--like", "entropy bonus")
    assert text.index("skywork_or1") < text.index("cells.entropy_bonus.use: adaptive_bonus")


def test_a_row_of_ones_own_is_shown(tmp_path):
    (tmp_path / "rows.py").write_text(
        "from dataclasses import replace\nfrom ascent.algorithms import TABLE\n"
        "ROW = replace(TABLE['dpo'], name='mine', title='Mine alone')\n"
    )
    assert "mine: Mine alone" in shown("algorithm", f"{tmp_path / 'rows.py'}:ROW")
