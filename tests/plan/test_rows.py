"""Rows of one's own: the documented example trains, resolves to itself and takes its numbers from recipes."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from ascent.algorithms import TABLE
from ascent.api.train import resume_run, train_plan
from ascent.config import yaml_text
from ascent.config.show import as_yaml
from ascent.config.validate import validate
from ascent.plan import find_row, resolve
from ascent.plan import rows as found_rows
from ascent.runs.folder import read_run
from tests.setup.runs import tiny_plan, weights_of

HEAD = "from dataclasses import replace\nfrom ascent.algorithms import TABLE\n"
DOCS = Path(__file__).parents[2] / "docs" / "algorithms.md"


@pytest.fixture
def mine(tmp_path: Path) -> str:
    """The example of docs/algorithms.md, as a file."""
    (example,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    (tmp_path / "mine.py").write_text(example)
    return f"{tmp_path / 'mine.py'}:COOL"


def test_the_documented_row_is_found_and_resolves_to_itself(mine: str) -> None:
    plan = tiny_plan(algorithm=mine, cells={"loss": {"power": 0.3}})
    assert (plan.row.name, plan.row.loss.name) == ("cool", "cooled_nll")  # type: ignore[union-attr]
    assert plan.row.loss.numbers == {"power": 0.3}  # type: ignore[union-attr]
    text = as_yaml(plan.config)
    assert f"algorithm: {mine}" in text and "use: cooled_nll" in text
    assert resolve(validate(yaml_text.read(text, "again"))) == plan


def test_its_numbers_are_checked_like_any_others(mine: str) -> None:
    with pytest.raises(
        ValueError, match=r"cells.loss.pover has no effect: cooled_nll has no number 'pover'"
    ):
        tiny_plan(algorithm=mine, cells={"loss": {"pover": 0.3}})


def test_the_documented_row_trains_and_resumes(mine: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert train_plan(tiny_plan(algorithm=mine), run, say=lambda text: None) == 4
    assert "eval/cooled_nll" in read_run(run).metrics[-1]
    final = weights_of(run, 4)
    assert final != weights_of(run, 2)
    shutil.rmtree(run / "checkpoints" / "4")
    assert resume_run(run, say=lambda text: None) == 4
    assert weights_of(run, 4) == final


def test_a_file_that_changed_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "rows.py"
    for title in ("first", "second"):
        path.write_text(
            "from dataclasses import replace\nfrom ascent.algorithms import TABLE\n"
            f"ROW = replace(TABLE['dpo'], name='mine', title='{title}')\n"
        )
        assert find_row(f"{path}:ROW").title == title


@pytest.mark.parametrize(
    ("text", "name", "says"),
    [
        ("ROW = 3", "ROW", "is a int, not a Row"),
        (
            "from ascent.algorithms import TABLE\nROW = TABLE['dpo']",
            "RWO",
            "defines no RWO; its rows are ROW",
        ),
        (
            HEAD + "ROW = replace(TABLE['grpo'], policy_loss=None)",
            "ROW",
            "must fill advantage, advantage_norm, rollout_correction, ratio, policy_loss, aggregation and leave loss "
            "empty; it has no policy_loss",
        ),
        (
            HEAD + "ROW = replace(TABLE['dpo'], loss=None)",
            "ROW",
            r"learns from pairs and has no loss",
        ),
        (HEAD + "ROW = replace(TABLE['dpo'], formula='')", "ROW", "says nothing under formula"),
    ],
)
def test_rows_that_are_not_whole_are_refused(
    tmp_path: Path, text: str, name: str, says: str
) -> None:
    (tmp_path / "rows.py").write_text(text)
    with pytest.raises(ValueError, match=says):
        find_row(f"{tmp_path / 'rows.py'}:{name}")


def test_a_missing_file_and_an_unknown_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no file"):
        find_row(f"{tmp_path / 'none.py'}:ROW")
    with pytest.raises(
        ValueError, match=r"did you mean dpo or.*A row of your own is written file.py:ROW"
    ):
        find_row("dpoo")


def test_an_entry_point_is_an_algorithm(monkeypatch: pytest.MonkeyPatch) -> None:
    row = replace(TABLE["dpo"], name="theirs", title="A row that another package brings")

    class Entry:
        name = "theirs"

        def load(self) -> object:
            return row

    monkeypatch.setattr(
        importlib.metadata,
        "entry_points",
        lambda group: [Entry()] if group == found_rows.GROUP else [],
    )
    assert find_row("theirs") is row
    assert found_rows.installed_rows() == [row]


def test_rare_numbers_belong_in_a_row_of_ones_own(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError,
        match=r"cells.policy_loss.power_positive is no key of recipes; write a row of your own",
    ):
        resolve(
            validate(
                {
                    "algorithm": "vespo",
                    "model": {"policy": "p"},
                    "data": {"train": "t"},
                    "rewards": [{"use": "exact"}],
                    "cells": {"policy_loss": {"power_positive": 1.0}},
                }
            )
        )
    (tmp_path / "rows.py").write_text(
        "from dataclasses import replace\nfrom ascent.algorithms import TABLE\nfrom ascent.cells import cell\nfrom "
        "ascent.losses import sequence_policy_losses\nROW = replace(TABLE['vespo'], name='mine', "
        "policy_loss=cell(sequence_policy_losses.vespo, power_positive=1.0))\n"
    )
    recipe = {
        "algorithm": f"{tmp_path / 'rows.py'}:ROW",
        "model": {"policy": "p"},
        "data": {"train": "t"},
    }
    plan = resolve(validate({**recipe, "rewards": [{"use": "exact"}]}))
    assert plan.row.policy_loss.numbers["power_positive"] == 1.0  # type: ignore[union-attr]
    assert (
        resolve(plan.config).row == plan.row
    )  # the resolved config does not spell it out, and keeps it
