"""Names in a recipe's data section: built-in tasks, their splits and counts, files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ascent.build.records import loaded
from ascent.records import Example, Judged, Pair, Ranking


@pytest.mark.parametrize(
    ("want", "kind"), [("examples", Example), ("pairs", Pair), ("rankings", Ranking), ("unpaired", Judged)]
)
def test_a_task_gives_records_of_the_wanted_kind(want: str, kind: type) -> None:
    found = loaded("sort_digits@heldout:5", want, seed=0)  # type: ignore[arg-type]
    assert len(found.records) == 5
    assert all(isinstance(record, kind) for record in found.records)


def test_defaults_and_seeds() -> None:
    assert len(loaded("arithmetic", "examples", seed=0).records) == 2048
    first, second = (loaded("arithmetic:20", "examples", seed=seed).records for seed in (0, 1))
    assert first != second
    assert first == loaded("arithmetic:20", "examples", seed=0).records


def test_a_split_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="splits train and heldout, not 'test'"):
        loaded("arithmetic@test", "examples", seed=0)


def test_anything_else_is_a_file(tmp_path: Path) -> None:
    file = tmp_path / "data.jsonl"
    file.write_text(json.dumps({"prompt": "2+2=", "completion": "4"}) + "\n")
    assert len(loaded(str(file), "examples", seed=0).records) == 1
    with pytest.raises(ValueError, match="no file or folder at"):
        loaded(str(tmp_path / "missing.jsonl"), "examples", seed=0)
