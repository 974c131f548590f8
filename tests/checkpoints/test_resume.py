"""The newest whole checkpoint is taken; damage of any kind is found, told and stepped over."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from ascent.checkpoints.manifest import CheckpointError
from ascent.checkpoints.resume import newest, read_state
from ascent.checkpoints.save import save
from tests.checkpoints.crashing import mark_found, save_mark


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(bytes(content))


def truncate(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-7])


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "byte": (
        lambda folder: flip(folder / "optimizer.safetensors", 200),
        "optimizer.safetensors does not match",
    ),
    "model byte": (
        lambda folder: flip(folder / "model/weights.safetensors", 0),
        "model/weights.safetensors does not match",
    ),
    "truncated": (
        truncate("state.json"),
        r"state.json has \d+ bytes, the manifest says \d+: it is truncated",
    ),
    "missing": (lambda folder: (folder / "state.json").unlink(), "state.json is missing"),
    "missing folder": (
        lambda folder: shutil.rmtree(folder / "model"),
        "model/config.json is missing",
    ),
    "no manifest": (lambda folder: (folder / "manifest.json").unlink(), "it has no manifest.json"),
    "half a manifest": (truncate("manifest.json"), "manifest.json cannot be read"),
    "empty manifest": (
        lambda folder: (folder / "manifest.json").write_bytes(b""),
        "manifest.json cannot be read",
    ),
    "another manifest": (
        lambda folder: (folder / "manifest.json").write_text("[]"),
        "manifest.json cannot be read",
    ),
    "empty": (lambda folder: (shutil.rmtree(folder), folder.mkdir()), "it has no manifest.json"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_named_and_the_one_before_is_taken(tmp_path: Path, damage: str) -> None:
    for step in (10, 20):
        save_mark(tmp_path, step, step, keep=2)
    inflict, words = DAMAGE[damage]
    inflict(tmp_path / "20")
    found = newest(tmp_path)
    assert found is not None
    assert (found.step, found.folder) == (10, tmp_path / "10")
    assert [each.folder.name for each in found.rejected] == ["20"]
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(found.lines()[0])
    assert found.lines()[0].startswith("checkpoint 20 is not used: ")
    assert found.lines()[1] == "continuing from the checkpoint of step 10"
    assert mark_found(tmp_path) == 10


def test_any_flipped_bit_of_the_manifest_is_found(tmp_path: Path) -> None:
    save_mark(tmp_path, 10, 10, keep=2)
    save(tmp_path, 20, {"a": 1}, {})
    path = tmp_path / "20/manifest.json"
    whole = path.read_bytes()
    for place in range(len(whole)):
        flip(path, place)
        found = newest(tmp_path)
        # A flip may only touch the blanks between the words, which say nothing.
        assert found is not None and (
            found.step == 10 or whole[place : place + 1] in (b" ", b"\n")
        ), place
        path.write_bytes(whole)


def test_when_none_verifies_it_is_an_error_and_not_a_fresh_start(tmp_path: Path) -> None:
    assert newest(tmp_path) is None
    assert newest(tmp_path / "nowhere") is None
    save_mark(tmp_path, 10, 10, keep=1)
    flip(tmp_path / "10/state.json", 3)
    with pytest.raises(
        CheckpointError, match=r"no checkpoint in .* can be used \(10: state.json does not match"
    ):
        newest(tmp_path)


def test_unfinished_and_foreign_names_are_not_looked_at(tmp_path: Path) -> None:
    save_mark(tmp_path, 10, 10, keep=1)
    for name in (".20.writing", ".30.removing", "latest", "40.bak"):
        shutil.copytree(tmp_path / "10", tmp_path / name)
    found = newest(tmp_path)
    assert found is not None and found.folder.name == "10" and not found.rejected


def test_a_checkpoint_moved_aside_by_a_killed_save_is_found(tmp_path: Path) -> None:
    save_mark(tmp_path, 9, 9, keep=2)
    save_mark(tmp_path, 10, 10, keep=2)
    (tmp_path / "10").rename(tmp_path / ".10.replaced")
    assert mark_found(tmp_path) == 10


def test_steps_are_ordered_as_numbers(tmp_path: Path) -> None:
    for step in (9, 10, 100):
        save_mark(tmp_path, step, step, keep=3)
    assert mark_found(tmp_path) == 100


def test_a_state_comes_back_exactly(tmp_path: Path) -> None:
    state = {
        "source": {"epoch": 2, "order": [3, 1, 2], "best": float("-inf")},
        "x": torch.tensor([1.5, float("nan")]),
    }
    save(
        tmp_path,
        1,
        {**state, "half": torch.ones(2, dtype=torch.bfloat16), "one": torch.tensor(3)},
        {},
    )
    found = read_state(tmp_path / "1")
    assert found["source"] == state["source"]
    assert torch.equal(found["x"].view(torch.int32), state["x"].view(torch.int32))
    assert found["half"].dtype == torch.bfloat16
    assert found["one"].shape == ()
