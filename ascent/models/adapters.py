"""LoRA adapters on disk, in peft's layout: `adapter_model.safetensors`, and `adapter_config.json`, naming the base.

The base's weights are not copied. The trained score head of a reward model is stored as peft stores such modules
(`modules_to_save`), so peft loads reward models too. Our folders also hold the tokenizer and `adapter_training.json`:
the dtype and quantization of the base while the adapter was trained, the tokens at which a merged model stops, and
what a reward model has in its config. There is no config.json: transformers takes a folder that has one for a complete
model.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from ascent.distribution import install_hint
from ascent.models import heads, quantize
from ascent.models.locate import ADAPTER_CONFIG, resolve

if TYPE_CHECKING:
    from peft import PeftModel

WEIGHTS, TRAINING = "adapter_model.safetensors", "adapter_training.json"
PIECES, PIECE_BYTES = (
    64,
    2**14,
)  # of a weights file, hashed to notice a changed base in milliseconds
CONFIG_KEYS = (heads.NORMALIZATION, heads.STEPS)
STOP_IDS = (
    "eos_token_id"  # of the base's generation config, with the tokens at which trained answers end
)
SCORE = "base_model.model.score.weight"


def save(adapter: PeftModel, folder: Path, base: str) -> None:
    """Write the adapter and the model's config. `base` is the folder or hub name of the base."""
    from peft import get_peft_model_state_dict

    module: Any = adapter.get_base_model()
    weights = get_peft_model_state_dict(adapter)
    config: Any = copy(adapter.peft_config[adapter.active_adapter])
    config.inference_mode, config.task_type = True, "CAUSAL_LM"
    config.base_model_name_or_path = base or config.base_model_name_or_path
    config.target_modules = sorted(
        config.target_modules
    )  # a set: its order changes from process to process
    if module.get_output_embeddings() is None:
        weights[SCORE] = heads.score_layer(module).weight
        config.task_type, config.modules_to_save, config.exclude_modules = (
            "SEQ_CLS",
            ["score"],
            None,
        )
    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: each.detach().cpu().contiguous() for name, each in weights.items()}, folder / WEIGHTS
    )
    config.save_pretrained(str(folder))
    facts = {name: getattr(module.config, name, None) for name in CONFIG_KEYS}
    facts[STOP_IDS] = module.generation_config.eos_token_id if module.can_generate() else None
    facts |= {
        "dtype": str(module.dtype).removeprefix("torch."),
        "quantize": quantize.scheme_of(module),
    }
    facts["base_sample"] = sample_hash(Path(base)) if base and Path(base).is_dir() else None
    (folder / TRAINING).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def load_weights(adapter: PeftModel, folder: Path) -> None:
    """Load what `save` wrote into an adapter of the same shape, bit by bit, and where its answers end."""
    from peft import get_peft_model_state_dict, set_peft_model_state_dict

    file = folder / WEIGHTS
    if not file.exists():
        raise ValueError(f"{folder} holds no LoRA adapter ({file.name}); it was saved without LoRA")
    saved, here = load_file(file), get_peft_model_state_dict(adapter)
    score = None if SCORE in here else saved.pop(SCORE, None)
    wrong = [name for name in {**here, **saved} if _shape(here, name) != _shape(saved, name)]
    if wrong:
        raise ValueError(
            f"{file} does not fit this adapter in {len(wrong)} weights, first {wrong[0]}: {_shape(saved, wrong[0])} "
            f"there, {_shape(here, wrong[0])} here; use the rank and the model it was saved with"
        )
    set_peft_model_state_dict(adapter, saved)
    module: Any = adapter.get_base_model()
    ends = training_of(folder)[STOP_IDS]
    if ends is not None and module.can_generate():
        module.generation_config.eos_token_id = ends
    if score is not None:
        with torch.no_grad():
            heads.score_layer(module).weight.copy_(score)


def merge(module: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """The base with the adapter of `folder` added to its weights."""
    merged: PreTrainedModel = attach(module, folder).merge_and_unload()
    return merged.requires_grad_(True)


def attach(module: PreTrainedModel, folder: Path) -> Any:
    """The base with the adapter of `folder` beside its weights, a `PeftModel`."""
    kind = _read_config(folder).get("peft_type")
    if kind != "LORA":
        raise ValueError(
            f"{folder} is an adapter of type {kind}; only LoRA can be merged into its base"
        )
    try:
        import torch.distributed.tensor  # peft reads it and does not import it
        from peft import PeftConfig, get_peft_model
    except ImportError as error:
        raise ImportError(
            f"{folder} is a LoRA adapter, which needs the package peft; install it with: {install_hint('lora')}"
        ) from error
    config: Any = PeftConfig.from_pretrained(str(folder))
    # A critic may start from the adapter of a policy, and a base may have moved.
    config.task_type = config.base_model_name_or_path = None
    with torch.random.fork_rng(devices=[]):  # its random weights are replaced at once
        adapter: Any = get_peft_model(module, config)
    load_weights(adapter, folder)
    return adapter


def base_of(folder: Path | str) -> Path | str | None:
    """The base of an adapter folder: a folder or a hub name; None for a model with weights of its own."""
    if not isinstance(folder, Path) or not (folder / ADAPTER_CONFIG).is_file():
        return None
    name = _read_config(folder).get("base_model_name_or_path") or ""
    tail = Path(
        *Path(name).parts[-2:]
    )  # a base inside the run folder is still found when the folder has moved
    moved = [each / tail for each in folder.absolute().parents if (each / tail).is_dir()]
    try:
        return resolve(moved[0] if moved and not Path(name).is_dir() else name)
    except ValueError as error:
        raise ValueError(
            f"{folder} is a LoRA adapter, and its base is gone: {error}; put the base back there, or correct "
            f"base_model_name_or_path in {folder / ADAPTER_CONFIG}"
        ) from error


def chain(folder: Path | str) -> list[Path | str]:
    """The folder, and if it is an adapter its base, which may be an adapter too."""
    found: list[Path | str] = [folder]
    while (base := base_of(found[-1])) is not None:
        if base in found:
            raise ValueError(
                f"{folder} is a LoRA adapter that is its own base; correct its {ADAPTER_CONFIG}"
            )
        found.append(base)
    return found


def training_of(folder: Path) -> dict[str, Any]:
    """What `save` noted of the training; all None for an adapter that another program wrote."""
    file = folder / TRAINING
    facts: dict[str, Any] = dict.fromkeys(
        ("dtype", "quantize", "base_sample", STOP_IDS, *CONFIG_KEYS)
    )
    return facts | (json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {})


def layout_of(folder: Path) -> tuple[dict[str, Any], str | None]:
    """Two adapters with the same layout differ in nothing but their weights; None stands for an unknown base."""
    return _read_config(folder), training_of(folder)["base_sample"]


def check_base(folder: Path, base: Path | str) -> None:
    """ValueError if the base's weights are not those that the adapter was trained on, as far as samples show."""
    sample = training_of(folder)["base_sample"]
    if sample is not None and isinstance(base, Path) and sample_hash(base) != sample:
        raise ValueError(
            f"{base} has other weights than when the adapter {folder} was trained on it; put the old ones back, or "
            f"remove base_sample from {folder / TRAINING} if they are the same in another layout"
        )


def sample_hash(folder: Path) -> str:
    """Of the weights in a folder, from samples of its files: milliseconds, where a whole hash takes seconds."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}".encode())
        with path.open("rb") as file:
            for piece in range(PIECES):
                file.seek(size * piece // PIECES)
                digest.update(file.read(PIECE_BYTES))
    return digest.hexdigest()


def update_config(config: PreTrainedConfig, folder: Path) -> None:
    """Replace in the base's config what a reward model's training decided."""
    facts = training_of(folder)
    for name in CONFIG_KEYS:
        vars(config).pop(name, None)
        if facts[name] is not None:
            setattr(config, name, facts[name])


def has_score(folder: Path) -> bool:
    with safe_open(folder / WEIGHTS, framework="pt") as file:
        return SCORE in file.keys()  # noqa: SIM118


def _read_config(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / ADAPTER_CONFIG).read_text(encoding="utf-8"))
    return found


def _shape(weights: Mapping[str, Tensor], name: str) -> tuple[int, ...] | None:
    return tuple(weights[name].shape) if name in weights else None
