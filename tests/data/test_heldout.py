"""A held-out share: by prompt, the same whatever the order, the seed and the rest of the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ascent.data.heldout import heldout_prompts, split
from ascent.data.load import LoadResult, load


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def pairs(count: int) -> list[dict[str, Any]]:
    return [{"prompt": f"{n}+1=", "chosen": str(n + 1), "rejected": str(n)} for n in range(count)]


def cut(loaded: LoadResult, share: float = 0.1) -> tuple[LoadResult, LoadResult]:
    return split(loaded, heldout_prompts(loaded, share))


def prompts(loaded: LoadResult) -> set[str]:
    return {record.prompt.messages[-1].content for record in loaded.records}  # type: ignore[union-attr]


def test_every_record_is_on_one_side_and_no_prompt_on_both(tmp_path: Path) -> None:
    rows = [
        row | {"rejected": f"{row['rejected']}{again}"} for row in pairs(500) for again in "abc"
    ]
    loaded = load(write(tmp_path / "a.jsonl", rows), "pairs")
    train, heldout = cut(loaded)
    both = (*train.places, *heldout.places)
    assert sorted(place.number for place in both) == [place.number for place in loaded.places]
    assert len(train.records) + len(heldout.records) == 1500
    assert not prompts(train) & prompts(heldout)
    assert 30 <= len(prompts(heldout)) <= 70 and len(heldout.records) == 3 * len(prompts(heldout))
    assert [place.number for place in heldout.places] == [
        place.number
        for place, record in zip(loaded.places, loaded.records, strict=True)
        if record in heldout.records
    ]


def test_white_space_makes_no_other_prompt(tmp_path: Path) -> None:
    rows = [row | {"prompt": f" {row['prompt']}\n", "rejected": "x"} for row in pairs(100)]
    train, heldout = cut(load(write(tmp_path / "a.jsonl", pairs(100) + rows), "pairs"))
    assert not {each.strip() for each in prompts(train)} & {
        each.strip() for each in prompts(heldout)
    }


def test_a_prompt_stays_held_out_whatever_else_is_in_the_file(tmp_path: Path) -> None:
    """In another order, in a longer file, for another kind of training."""
    few = cut(load(write(tmp_path / "a.jsonl", pairs(200)), "pairs"))[1]
    many = cut(load(write(tmp_path / "b.jsonl", pairs(400)[::-1]), "pairs"))[1]
    assert prompts(few) < prompts(many)
    asked = cut(load(str(tmp_path / "a.jsonl"), "prompts"))[1]
    assert {each.messages[-1].content for each in asked.records} == prompts(few)  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", ["examples", "prompts", "unpaired", "rankings"])
def test_pairs_read_as_another_kind_are_cut_in_the_same_place(kind: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", pairs(60))
    places = {place.number for place in cut(load(path, "pairs"))[1].places}
    assert {place.number for place in cut(load(path, kind))[1].places} == places


def test_plain_text_is_its_own_prompt(tmp_path: Path) -> None:
    train, heldout = cut(
        load(write(tmp_path / "a.jsonl", [{"text": f"text {n}"} for n in range(100)]), "examples")
    )
    assert 1 <= len(heldout.records) < 30 and len(train.records) + len(heldout.records) == 100


def test_at_least_one_and_never_all(tmp_path: Path) -> None:
    loaded = load(write(tmp_path / "a.jsonl", pairs(3)), "pairs")
    assert len(cut(loaded, 1e-9)[1].records) == 1
    assert len(cut(loaded, 1 - 1e-9)[0].records) == 1
    with pytest.raises(
        ValueError, match=r"b\.jsonl has 1 different prompts, too few .*data\.evaluate=null"
    ):
        heldout_prompts(load(write(tmp_path / "b.jsonl", pairs(1)), "pairs"), 0.05)
    unpaired = load(
        write(tmp_path / "c.jsonl", pairs(4)), "unpaired"
    )  # each is compared with another prompt's answer
    for share in (1e-9, 1 - 1e-9):
        assert [len(prompts(each)) for each in cut(unpaired, share)] == [2, 2]
