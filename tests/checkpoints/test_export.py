"""An exported folder is plain: transformers loads it with no Ascent in sight."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import ascent
from ascent.checkpoints.export import copy_writer, export
from ascent.checkpoints.manifest import CheckpointError

LOADS = """
import sys
sys.modules["ascent"] = None  # any import of it fails
import torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
print(float(model(torch.tensor([[1, 2, 3]])).logits.double().sum()))
"""


def test_transformers_loads_it_without_ascent(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    folder = export(lambda path: model.save_pretrained(path), tmp_path / "first")
    copied = export(copy_writer(folder), tmp_path / "deep/second")
    with torch.no_grad():
        expected = float(model(torch.tensor([[1, 2, 3]])).logits.double().sum())
    done = subprocess.run(
        [sys.executable, "-c", LOADS, str(copied)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[-1]) == pytest.approx(expected, rel=1e-6)


def plain(folder: Path) -> None:
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"x")


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    assert sorted(path.name for path in export(plain, tmp_path / "out").iterdir()) == [
        "config.json",
        "model.safetensors",
    ]

    def full(folder: Path) -> None:
        plain(folder)
        raise OSError(28, "No space left on device")

    with pytest.raises(CheckpointError, match=r"could not be exported to .*No space left"):
        export(full, tmp_path / "other")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_an_existing_folder_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    export(plain, tmp_path / "mine")  # empty: fine
    with pytest.raises(CheckpointError, match="exists and is not an empty folder"):
        export(plain, tmp_path / "mine")


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("config.json", None, "has no config.json"),
        ("model.safetensors", None, "has no .safetensors file"),
        ("pytorch_model.bin", "x", r"pickled files \['pytorch_model.bin'\]"),
        (
            "config.json",
            '{"auto_map": {"AutoModel": "ascent.models--X"}}',
            "auto_map points into ascent",
        ),
    ],
)
def test_what_would_not_load_is_refused(
    tmp_path: Path, name: str, text: str | None, words: str
) -> None:
    def write(folder: Path) -> None:
        plain(folder)
        (folder / name).unlink(missing_ok=True)
        if text is not None:
            (folder / name).write_text(text)

    with pytest.raises(CheckpointError, match=words):
        export(write, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("cut", [False, True])
def test_a_damaged_checkpoint_is_not_exported(tmp_path: Path, cut: bool) -> None:
    recipe = {
        "algorithm": "sft",
        "model": "tiny:llama",
        "data": "sort_digits:8",
        "data.batch_size": 4,
        "run.steps": 1,
    }
    recipe |= {"data.evaluate": None, "data.epochs": None}
    ascent.train(recipe, run=tmp_path / "run", progress=False, say=lambda line: None)
    weights = tmp_path / "run/checkpoints/1/model/model.safetensors"
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.write_bytes(content[:100] if cut else content)
    with pytest.raises(
        ValueError, match=r"checkpoints/1 cannot be exported: model/model\.safetensors"
    ):
        ascent.export(tmp_path / "run", tmp_path / "exported")
    assert not (tmp_path / "exported").exists()
