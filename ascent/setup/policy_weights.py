"""What servers get of a policy in training: folders with the whole model, or with its LoRA adapter alone."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from ascent.checkpoints.export import export
from ascent.checkpoints.manifest import CheckpointError
from ascent.engines.fleet import BASE, FleetServer, WeightFolders
from ascent.models import adapters
from ascent.models.load import load
from ascent.models.model import LanguageModel

HEAD = "lm_head.safetensors"


@dataclass(frozen=True)
class PolicyWeights:
    """`folder` is where the weights are written; `lora_sync` is the recipe's key."""

    model: LanguageModel
    folder: Path
    lora_sync: str = "auto"

    @property
    def lora_rank(self) -> int | None:
        adapter = self.model.adapter
        config: Any = None if adapter is None else adapter.peft_config[adapter.active_adapter]
        return None if config is None else int(config.r)

    def sends_adapter(self, servers: Sequence[FleetServer]) -> bool:
        """Whether these servers, or one that is started, get the adapter alone."""
        stale = [
            each.url
            for each in servers
            if each.model.keeps_head and _tied_head(self.model) is not None
        ]
        if stale:
            raise ValueError(
                f"the server {stale[0]} is vLLM on a CPU, where a tied output head keeps its old weights when new ones "
                "come; leave out rollouts.servers, or serve a copy that has a head of its own (docs/samplers.md)"
            )
        if self.model.adapter is None or self.lora_sync == "merged":
            return False
        without = [each.url for each in servers if not each.model.takes_adapters]
        if without and self.lora_sync == "adapter":
            raise ValueError(
                f"rollouts.lora_sync=adapter, but the server {without[0]} takes no adapters; start vLLM with "
                f"--enable-lora --max-lora-rank {self.lora_rank} and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, or set "
                "rollouts.lora_sync=merged"
            )
        return not without

    def folders(self, *, adapter: bool, own_head: bool = False) -> WeightFolders:
        """With `own_head` the output head is written too, where it is tied to the embeddings."""
        if not adapter:
            return WeightFolders(self.folder, partial(write_weights, self.model, own_head=own_head))
        write = partial(write_adapter, self.model, str(self.folder / BASE))
        return WeightFolders(self.folder, write, partial(write_base, self.model, own_head=own_head))


def write_weights(model: LanguageModel, target: Path, *, own_head: bool = False) -> None:
    """The policy as a plain Hugging Face folder; a LoRA adapter is merged."""

    def write(folder: Path) -> None:
        if model.adapter is None:
            _save(model, folder, own_head)
            return
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".adapter-") as adapter:
            model.save(adapter)
            _save(load(adapter, dtype=_dtype(model)), folder, own_head)

    _export(write, target)


def write_adapter(model: LanguageModel, base: str, target: Path) -> None:
    """The adapter of the policy, which names `base`."""

    def write(folder: Path) -> None:
        assert model.adapter is not None
        adapters.save(model.adapter, folder, base)
        model.tokenizer.save_pretrained(folder)

    _export(write, target, adapter=True)


def write_base(model: LanguageModel, target: Path, *, own_head: bool = False) -> None:
    """What the policy's adapter was attached to."""
    _export(lambda folder: _save(load(model.origin, dtype=_dtype(model)), folder, own_head), target)


def _save(model: LanguageModel, folder: Path, own_head: bool) -> None:
    model.save(folder)
    name = _tied_head(model)
    if name is None or not own_head:
        return
    weight: Any = model.module.get_output_embeddings().weight
    save_file(
        {f"{name}.weight": weight.detach().cpu().contiguous()},
        folder / HEAD,
        metadata={"format": "pt"},
    )
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(
        json.dumps(config | {"tie_word_embeddings": False}, indent=1)
    )
    index = folder / "model.safetensors.index.json"
    if index.exists():
        content = json.loads(index.read_text(encoding="utf-8"))
        content["weight_map"][f"{name}.weight"] = HEAD
        index.write_text(json.dumps(content))


def _tied_head(model: LanguageModel) -> str | None:
    """The name of the output head, if it is tied to the embeddings."""
    head: Any = model.module.get_output_embeddings()
    tied = head is not None and head.weight is getattr(
        model.module.get_input_embeddings(), "weight", None
    )
    return (
        next(name for name, each in model.module.named_modules() if each is head) if tied else None
    )


def _dtype(model: LanguageModel) -> str:
    return str(model.module.dtype).removeprefix("torch.")


def _export(write: Callable[[Path], None], target: Path, *, adapter: bool = False) -> None:
    """Whole or not at all."""
    try:
        export(write, target, adapter=adapter)
    except (OSError, CheckpointError) as error:
        raise CheckpointError(
            f"the weights for the servers could not be written: {error}; free some space, or set "
            "rollouts.weights_folder, then resume the run"
        ) from error
