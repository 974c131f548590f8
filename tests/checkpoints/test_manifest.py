"""Manifests of another format, and what they list."""

from __future__ import annotations

from pathlib import Path

import pytest

from ascent.checkpoints import manifest


def written(folder: Path) -> Path:
    (folder / "deep/er").mkdir(parents=True)
    (folder / "deep/er/file").write_bytes(b"abc")
    (folder / manifest.NAME).write_text(manifest.describe(folder, step=3, score=None))
    return folder


def test_files_are_listed_with_size_and_hash(tmp_path: Path) -> None:
    content = manifest.verify(written(tmp_path))
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-2's own example
    assert content == {
        "format": 2,
        "step": 3,
        "score": None,
        "files": {"deep/er/file": {"bytes": 3, "sha256": digest}},
    }


def test_a_file_nobody_listed_is_no_damage(tmp_path: Path) -> None:
    (written(tmp_path) / "note.txt").write_text("mine")
    assert manifest.verify(tmp_path)["step"] == 3


def test_another_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "FORMAT", 1)
    written(tmp_path)
    monkeypatch.undo()
    with pytest.raises(manifest.CheckpointError, match="it has format 1, this version reads 2"):
        manifest.verify(tmp_path)


def test_weights_that_were_read_are_those_that_were_saved(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/a.safetensors").write_bytes(b"abc")
    (tmp_path / manifest.NAME).write_text(manifest.describe(tmp_path, step=3, score=None))
    saved = manifest.sha256(tmp_path / "model/a.safetensors")
    manifest.check_weights(
        tmp_path / "model", {"a.safetensors": saved, "b.safetensors": "unlisted"}
    )
    with pytest.raises(manifest.CheckpointError, match="does not match its sha256 in"):
        manifest.check_weights(tmp_path / "model", {"a.safetensors": "of other bytes"})
