"""Objects in place of names: rows as lines of JSON, labels, and where they are missing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ascent.data.rows import read_lines
from ascent.setup import objects
from ascent.setup.objects import code_of, label_of, refuse_missing, rows_of

ROWS: list[dict[str, Any]] = [{"prompt": "1+1=", "answer": 2}, {"prompt": "é", "answer": None}]


def test_rows_are_those_of_the_jsonl_file(tmp_path: Any) -> None:
    numpy, datasets = pytest.importorskip("numpy"), pytest.importorskip("datasets")
    found = rows_of("data.train", ROWS)
    assert [json.loads(line) for line in found.value.lines] == ROWS
    same = [
        rows_of("data.train", each).content
        for each in (
            tuple(ROWS),
            datasets.Dataset.from_list(ROWS),
            lambda: iter(ROWS),
            [dict(row) for row in ROWS],
        )
    ]
    assert all(each == found.content for each in same)
    assert (
        rows_of("data.train", [{"answer": numpy.int64(2), "prompt": "1+1="}, ROWS[1]]).content
        != found.content
    )
    assert rows_of("data.train", ROWS[::-1]).content != found.content  # the order counts
    assert json.loads(rows_of("d", [{"x": numpy.arange(2), "y": (1, 2)}]).value.lines[0]) == {
        "x": [0, 1],
        "y": [1, 2],
    }


def test_places_and_ids_of_rows() -> None:
    first, second = read_lines(rows_of("data.train", ROWS).value.lines, "data.train")
    assert (
        str(second.place) == "data.train row 2"
        and second.id == "train.jsonl:2"
        and first.fields == ROWS[0]
    )


def test_data_that_never_end_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "MAX_ROWS", 10)

    def forever() -> Any:
        while True:
            yield ROWS[0]

    with pytest.raises(ValueError, match=r"data\.train: forever gave 10 rows and has not ended"):
        rows_of("data.train", forever)


def test_names_and_labels() -> None:
    def brief(rollout: Any) -> float:
        return 1.0

    found = code_of("rewards[0]", brief)
    assert found.name.startswith("python:brief[") and label_of(found.name) == "brief"
    assert code_of("rewards[0]", lambda rollout: 1.0).label == "lambda"
    values = {"data.train": "python:list[0]", "rewards[0].use": found.name, "seed": 0}
    with pytest.raises(
        ValueError,
        match=r"data\.train is python:list\[0\]; pass them from Python: f\(x, data=\.\.\.\)",
    ):
        refuse_missing(values, {found.name: found}, "f(x")
