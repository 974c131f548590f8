"""LoRA through peft. With the adapter disabled, the model is its own reference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ascent.distribution import install_hint
from ascent.models import adapters, heads, layer_patching
from ascent.models.forward import Batch
from ascent.models.load import load
from ascent.models.model import LanguageModel

if TYPE_CHECKING:
    from peft import LoraConfig

ALL_LINEAR = "all-linear"


def attach(
    model: LanguageModel,
    *,
    rank: int = 16,
    alpha: float = 32.0,
    targets: Sequence[str] | str = ALL_LINEAR,
    dropout: float = 0.0,
    seed: int = 0,
) -> LanguageModel:
    """The model with an adapter; only that and a scalar head are trained.

    The second matrix of each pair starts at 0, so the model starts unchanged. Keep dropout 0 for RL: with it, log-probs
    of the same policy differ between forwards.
    """
    try:
        import torch.distributed.tensor  # peft reads it and does not import it
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise ImportError(
            f"LoRA needs the package peft; install it with: {install_hint('lora')}"
        ) from error
    if model.adapter is not None:
        raise ValueError(
            "the model already has a LoRA adapter; load it again before attaching another"
        )
    if rank < 1:
        raise ValueError(f"rank={rank} gives an adapter without weights; use >= 1")
    config: LoraConfig = LoraConfig(
        r=rank,
        lora_alpha=alpha,  # type: ignore[arg-type]
        target_modules=targets if isinstance(targets, str) else list(targets),
        exclude_modules=None if model.module.get_output_embeddings() is not None else ["score"],
        lora_dropout=dropout,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        adapter = get_peft_model(model.module, config)
    layer_patching.patch_layers(model.module)
    if model.module.get_output_embeddings() is None:
        heads.score_layer(model.module).weight.requires_grad_(True)
    return replace(model, adapter=adapter)


@contextmanager
def adapter_off(model: LanguageModel) -> Iterator[LanguageModel]:
    """The model without its adapter: the reference of a KL penalty or of DPO, without extra memory."""
    if model.adapter is None:
        raise ValueError(
            "the model has no LoRA adapter to switch off; load a second copy as the reference"
        )
    with model.adapter.disable_adapter():
        yield model


@dataclass(frozen=True)
class WithoutAdapter:
    """The model without its adapter as a frozen reference; it shares every weight."""

    model: LanguageModel

    def outputs(
        self, batch: Batch, want: frozenset[str], temperature: float = 1.0
    ) -> dict[str, Tensor]:
        with adapter_off(self.model) as base:
            return base.outputs(batch, want, temperature)

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        return self.model.module.named_parameters()

    def modules(self) -> Iterator[nn.Module]:
        return self.model.modules()

    def train(self, mode: bool = True) -> WithoutAdapter:
        self.model.train(mode)
        return self

    def eval(self) -> WithoutAdapter:
        return self.train(False)


def load_unmerged(
    folder: str | Path, *, dtype: str = "float32", device: str | torch.device = "cpu"
) -> LanguageModel:
    """A saved adapter beside its base: the forward is that of training, bit for bit, where a merged one rounds."""
    base = adapters.base_of(Path(folder))
    if base is None:
        raise ValueError(f"{folder} holds no LoRA adapter")
    adapters.check_base(Path(folder), base)
    model = load(base, dtype=dtype, device=device)
    adapter = adapters.attach(model.module, Path(folder))
    layer_patching.patch_layers(model.module)
    return replace(model, adapter=adapter)


def restore(model: LanguageModel, folder: str | Path) -> None:
    """Load the adapter and the heads that `save` wrote into `folder`, bit by bit.

    The caller must have loaded the base weights that the adapter was trained on.
    """
    if model.adapter is None:
        raise ValueError(
            "the model has no LoRA adapter to restore; attach one of the same rank first"
        )
    adapters.load_weights(model.adapter, Path(folder))
    if model.value_head is not None:
        heads.copy_head(Path(folder) / heads.VALUE_HEAD_FILE, model.value_head)
