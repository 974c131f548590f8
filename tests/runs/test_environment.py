"""What is written down about the machine."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

import ascent
from ascent.runs.environment import describe, git_state, versions


def test_it_names_versions_hardware_and_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET_TOKEN", "swordfish")
    found = describe(devices=["NVIDIA H200"], command=["ascent", "train"])
    assert found["command"] == ["ascent", "train"]
    assert found["hardware"]["devices"] == ["NVIDIA H200"]
    assert found["hardware"]["memory_bytes"] > 2**28
    assert found["packages"]["torch"] and found["packages"]["ascent"] == ascent.__version__
    assert "swordfish" not in json.dumps(found)


def test_packages_that_are_not_there_are_left_out() -> None:
    assert list(versions(["numpy", "no-such-package-anywhere"])) == ["numpy"]


def test_the_commit_and_whether_files_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git_state(tmp_path) is None
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false"]
    (tmp_path / "file").write_text("one")
    for words in (
        ["init", "-q"],
        ["add", "file"],
        [*identity, "commit", "-q", "--no-verify", "-m", "first"],
    ):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    found = git_state(tmp_path)
    assert found is not None and len(found["commit"]) == 40 and found["changed"] is False
    (tmp_path / "file").write_text("two")
    assert git_state(tmp_path) == {"commit": found["commit"], "changed": True}
    assert git_state(tmp_path / "nowhere") is None
