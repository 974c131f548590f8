"""An upload, against a stand-in of the hub that speaks its requests; every failure in one line, before work is done."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import ascent
from ascent.models.tiny import create
from tests.hub import Hub, serve_hub


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serve_hub() as found:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", found.address)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setenv("HF_TOKEN", found.token)
        yield found


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(create(tmp_path_factory.mktemp("models") / "tiny", seed=0))


def test_the_exported_folder_is_uploaded(hub: Hub, model: str, tmp_path: Path) -> None:
    lines: list[str] = []
    folder = ascent.export(
        model, tmp_path / "plain", push="lab/tiny", private=True, say=lines.append
    )
    assert "private" in json.dumps(hub.repositories["lab/tiny"])
    uploaded = hub.files["lab/tiny"]
    assert uploaded == {path.name: path.read_bytes() for path in folder.iterdir()}
    assert {"config.json", "model.safetensors", "README.md"} <= uploaded.keys()
    assert lines == [f"pushed to {hub.address}/lab/tiny"]


def test_a_wrong_name_or_login_is_refused_before_anything_is_written(
    hub: Hub, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, words in (
        ("tiny", "it has no owner"),
        ("a/b/c", "must look like OWNER/NAME"),
        ("x y/z", "OWNER/NAME"),
    ):
        with pytest.raises(ValueError, match=words):
            ascent.export(model, tmp_path / "plain", push=name)
    with pytest.raises(ValueError, match="private applies to the repository that push names"):
        ascent.export(model, tmp_path / "plain", private=True)
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(
        ValueError, match=r"push=lab/tiny needs a login on the hub .*hf auth login, or set HF_TOKEN"
    ):
        ascent.export(model, tmp_path / "plain", push="lab/tiny")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(
        ValueError, match=r"push=lab/tiny: the hub cannot be reached .*; export without push"
    ):
        ascent.export(model, tmp_path / "plain", push="lab/tiny")
    assert not (tmp_path / "plain").exists() and not hub.repositories


def test_a_failed_upload_leaves_the_folder_and_says_how_to_go_on(
    hub: Hub, model: str, tmp_path: Path
) -> None:
    hub.refuse_commits = True
    folder = tmp_path / "plain"
    with pytest.raises(
        ValueError,
        match=rf"the upload to lab/tiny failed .*; the model is in {folder}: .*hf upload lab/",
    ):
        ascent.export(model, folder, push="lab/tiny")
    assert (folder / "model.safetensors").is_file()
