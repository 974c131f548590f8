"""What the bits of a model's outputs depend on besides its weights: device, dtype, torch and the kind of CPU."""

from __future__ import annotations

import platform

import torch

from ascent.models.model import LanguageModel


def describe_numerics(model: LanguageModel) -> str:
    """Two processes with the same text compute the same bits, on a CPU in float32."""
    dtype = str(model.module.dtype).removeprefix("torch.")
    cpu = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()} {torch.get_num_threads()} threads"
    return f"{model.device.type} {dtype}, torch {torch.__version__}, {cpu}"


def is_reproducible(model: LanguageModel) -> bool:
    """Whether sampling and training compute the same log-probs, bit for bit."""
    return model.device.type == "cpu" and model.module.dtype == torch.float32
