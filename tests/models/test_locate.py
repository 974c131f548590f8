"""Folders, runs and hub names are told apart before anything is loaded."""

import time
from pathlib import Path

import pytest
from huggingface_hub import constants

from ascent.models.locate import check_hub, resolve
from tests.wall_clock import wall_clock


def model_folder(folder: Path, weights: str = "model.safetensors") -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / weights).write_text("")
    return folder


def test_a_model_folder_is_itself(tmp_path):
    assert resolve(model_folder(tmp_path / "m")) == tmp_path / "m"
    assert resolve(str(tmp_path / "m")) == tmp_path / "m"


def test_a_run_is_its_newest_checkpoint_by_number_not_by_name(tmp_path):
    model_folder(tmp_path / "model")
    for step in ("9", "000100", "step-20"):
        model_folder(tmp_path / "checkpoints" / step / "model")
    model_folder(tmp_path / "checkpoints" / "000200.tmp" / "model")  # being written
    (tmp_path / "checkpoints" / "300").mkdir()  # has no model
    assert resolve(tmp_path) == tmp_path / "checkpoints" / "000100" / "model"
    assert resolve(tmp_path / "checkpoints" / "9") == tmp_path / "checkpoints" / "9" / "model"


def test_a_run_without_checkpoints_is_its_model(tmp_path):
    model_folder(tmp_path / "model")
    assert resolve(tmp_path) == tmp_path / "model"


@pytest.mark.parametrize(
    "name", ["gpt2", "HuggingFaceTB/SmolLM2-135M-Instruct", "Qwen/Qwen2.5-0.5B"]
)
def test_hub_names_pass_through(name):
    assert resolve(name) == name


@pytest.mark.parametrize("name", ["./gone", "/gone", "a/b/c", "~/gone", "runs/one/", "a b"])
def test_a_path_that_does_not_exist_is_not_taken_for_a_hub_name(name):
    with pytest.raises(ValueError, match="does not exist; give a folder"):
        resolve(name)


def test_a_name_in_a_folder_that_is_here_is_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert resolve("runs/gone") == "runs/gone"
    (tmp_path / "runs").mkdir()
    with pytest.raises(ValueError, match="because there is a folder 'runs' here; correct the path"):
        resolve("runs/gone")
    assert resolve("gone") == "gone"  # every name has a folder around it


@pytest.fixture
def unreachable(tmp_path, monkeypatch):
    """A hub behind a port that nobody listens on, and an empty cache."""
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@wall_clock
def test_without_a_network_a_hub_name_is_refused_at_the_first_attempt(unreachable):
    begun = time.monotonic()
    with pytest.raises(
        ValueError,
        match="'owner/name' is no folder here and was never downloaded, and the hub cannot",
    ):
        check_hub("owner/name")
    assert (
        time.monotonic() - begun < 5
    )  # downloading would try six times, with 23 seconds between them


def test_without_a_network_what_was_downloaded_is_used(unreachable):
    kept = unreachable / "models--owner--name"
    folder = model_folder(kept / "snapshots" / ("a" * 40))
    (kept / "refs").mkdir()
    (kept / "refs" / "main").write_text("a" * 40)
    assert check_hub("owner/name") == folder
    assert check_hub(folder) == folder


def test_what_holds_no_model_is_refused(tmp_path):
    with pytest.raises(ValueError, match="holds no model"):
        resolve(tmp_path)
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ValueError, match="is a file"):
        resolve(tmp_path / "adapter_config.json")


def test_an_adapter_is_a_model_whose_base_is_elsewhere(tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    (tmp_path / "adapter_model.bin").write_text("")
    with pytest.raises(ValueError, match=r"adapter_model\.bin; only safetensors are loaded"):
        resolve(tmp_path)
    (tmp_path / "adapter_model.safetensors").write_text("")
    assert resolve(tmp_path) == tmp_path


def test_pickles_are_refused_and_safetensors_beside_them_are_fine(tmp_path):
    folder = model_folder(tmp_path / "m", "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"pytorch_model\.bin; only safetensors are loaded"):
        resolve(folder)
    (folder / "model.safetensors").write_text("")
    assert resolve(folder) == folder


def test_a_folder_without_weights_is_refused(tmp_path):
    folder = model_folder(tmp_path / "m")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="no weights"):
        resolve(folder)
