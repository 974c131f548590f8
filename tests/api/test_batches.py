"""Records for a loop of one's own, in a recipe's order."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import datasets
import pytest

import ascent
from ascent.data.mix import Mixture, Stream


def test_batches_have_the_order_of_a_recipe() -> None:
    mixture = Mixture([Stream("prompts", 5)], seed=3)
    want = [draw.record for draw in mixture.take(12)]
    found = list(islice(ascent.batches(range(5), 4, seed=3), 3))
    assert [each for batch in found for each in batch] == want
    assert sorted(want[:5]) == sorted(want[5:10]) == list(range(5)) and want[:5] != want[5:10]


def test_without_a_shuffle_the_order_is_kept() -> None:
    assert list(islice(ascent.batches("abc", 2, shuffle=False), 3)) == [
        ["a", "b"],
        ["c", "a"],
        ["b", "c"],
    ]


def test_records_of_a_kind() -> None:
    assert [type(each).__name__ for each in ascent.load_data("sort_digits:2")] == [
        "Prompt",
        "Prompt",
    ]
    assert isinstance(ascent.load_data("sort_digits:1", "pairs")[0], ascent.Pair)


def test_rows_of_python_are_read_as_a_file_is(tmp_path: Path) -> None:
    rows = [
        {"prompt": "1+1=", "chosen": "2", "rejected": "3"},
        {"prompt": "1+2=", "chosen": "3", "rejected": "4"},
    ]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for data in (rows, datasets.Dataset.from_list(rows), lambda: iter(rows)):
        assert ascent.load_data(data, "pairs") == ascent.load_data(
            tmp_path / "train.jsonl", "pairs"
        )
        prompts = ascent.load_data(data)
        assert [each.id for each in prompts if isinstance(each, ascent.Prompt)] == [
            "train.jsonl:1",
            "train.jsonl:2",
        ]


def test_wrong_calls() -> None:
    with pytest.raises(ValueError, match="size=0, but a batch has at least 1 record"):
        next(ascent.batches([1], 0))
    with pytest.raises(ValueError, match="a row is a dict such as"):
        ascent.load_data(["1+1="])
    with pytest.raises(ValueError, match="has no records"):
        next(ascent.batches([], 2))
