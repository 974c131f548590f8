"""A folder is locked during setup, restored where that fails, and never taken from another run."""

from __future__ import annotations

from pathlib import Path

import pytest

from ascent.runs.claim import FolderClaim, next_folder
from ascent.runs.folder import RunFolder, read_run
from ascent.runs.lock import FolderLockedError

CONFIG = "algorithm: sft\n"


def test_a_claim_becomes_a_run_or_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run"
    claim = FolderClaim(path, ["initial"], say=lambda text: None)
    with pytest.raises(FolderLockedError):
        FolderClaim(path, ["initial"], say=lambda text: None)
    (path / "initial").mkdir()
    claim.abandon()
    assert not path.exists()
    claim = FolderClaim(path, ["initial"], say=lambda text: None)
    with RunFolder.create(path, CONFIG, {}, lock=claim.lock):
        pass
    assert read_run(path).config == CONFIG
    with pytest.raises(
        ValueError, match="never writes over another; resume it, or name a new folder"
    ):
        FolderClaim(path, ["initial"])


def test_only_what_a_killed_start_leaves_is_cleared(tmp_path: Path) -> None:
    def left(name: str, *files: str) -> Path:
        for file in files:
            (tmp_path / name / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / file).write_text("x")
        return tmp_path / name

    said: list[str] = []
    ours = left("ours", "lock", "initial/config.json", "environment.json", ".config.yaml.writing")
    claim = FolderClaim(ours, ["initial"], say=said.append)
    assert [path.name for path in ours.iterdir()] == ["lock"]
    assert any("killed during setup" in line for line in said)
    claim.lock.release()
    for foreign in (
        left("no-lock", "initial/config.json"),
        left("theirs", "lock", "initial/config.json", "thesis.txt"),
        left("config", "lock", "config.yaml"),
    ):
        before = sorted(foreign.rglob("*"))
        with pytest.raises(ValueError, match="never writes over another"):
            FolderClaim(foreign, ["initial"], say=said.append)
        assert sorted(foreign.rglob("*")) == before
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is a file and not an empty folder"):
        FolderClaim(tmp_path / "file", [])


def test_the_next_folder_is_one_above_the_highest(tmp_path: Path) -> None:
    assert next_folder("dpo", tmp_path / "runs") == tmp_path / "runs/dpo-1"
    for name in ("dpo-2", "dpo-10", "dpo-x", "dpo", "dpo-best-11", "other-12"):
        (tmp_path / name).mkdir()
    assert next_folder("dpo", tmp_path) == tmp_path / "dpo-11"
