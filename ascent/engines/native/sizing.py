"""Default sizes of the batch and of the KV cache."""

from __future__ import annotations

import os

import torch

from ascent.engines.native.block_manager import BlockManager
from ascent.engines.native.cpu_graph import supports_cpu_graph
from ascent.models.model import LanguageModel
from ascent.models.probe import attention_calls

SMALL_MODEL_SEQS, SMALL_MODEL_BYTES = (
    256,
    2**27,
)  # rows of a small model on a CPU, and the limit of their KV cache
CUDA_SEQS, MANY_SEQS, MANY_SEQS_FRAC = (
    512,
    1024,
    0.25,
)  # rows on a GPU; more if their KV cache is this share of it

LayerShape = tuple[int, int, int]  # key/value heads, size of a key, size of a value


def layer_shapes(model: LanguageModel) -> list[LayerShape]:
    """What each layer stores for a token, measured on the model."""
    calls = attention_calls(model.module)
    layers = [call.layer for call in calls]
    if layers != list(range(len(calls))):
        raise ValueError(
            f"{type(model.module).__name__} runs its layers in the order {layers}; a KV cache needs each of them once"
        )
    return [call.heads for call in calls]


def default_max_num_seqs(model: LanguageModel, layers: list[LayerShape], max_model_len: int) -> int:
    """On CUDA 512, or 1,024 if they fit. On a CPU a step of a small model is mostly overhead, whatever the batch size:
    256 if they fit, otherwise 64."""
    sequence_bytes = max_model_len * _token_bytes(model, layers)
    if model.device.type == "cuda":
        return cuda_max_num_seqs(
            sequence_bytes, torch.cuda.get_device_properties(model.device).total_memory
        )
    fits = SMALL_MODEL_SEQS * sequence_bytes <= SMALL_MODEL_BYTES
    return SMALL_MODEL_SEQS if supports_cpu_graph(model) and fits else 64


def cuda_max_num_seqs(sequence_bytes: int, total_bytes: int) -> int:
    """By the GPU's whole memory, not by what is free of it: without exact arithmetic, batches decide the last bits, and
    a run that is resumed beside other work should have the same."""
    return MANY_SEQS if MANY_SEQS * sequence_bytes <= MANY_SEQS_FRAC * total_bytes else CUDA_SEQS


def create_block_manager(
    model: LanguageModel,
    layers: list[LayerShape],
    *,
    num_blocks: int | None,
    block_size: int | None,
    max_tokens: tuple[int, int],
    memory_fraction: float,
) -> BlockManager:
    """By default enough blocks for `max_tokens` (sequences, tokens of each), as far as the free memory allows."""
    block_size = block_size or (64 if model.device.type == "cuda" else 16)
    if num_blocks:
        return BlockManager(num_blocks, block_size)
    free, block_bytes = _free_bytes(model.device), _token_bytes(model, layers) * block_size
    sequences, length = max_tokens
    num_blocks = min(
        1 + sequences * -(-length // block_size), int(memory_fraction * free) // block_bytes
    )
    if num_blocks < 2:
        raise ValueError(
            f"{free / 2**20:.0f} MiB are free, {memory_fraction:.0%} of which hold no KV cache block of {block_bytes} "
            "bytes; free some memory, or raise memory_fraction"
        )
    return BlockManager(num_blocks, block_size)


def _token_bytes(model: LanguageModel, layers: list[LayerShape]) -> int:
    return sum(heads * (key + value) for heads, key, value in layers) * model.module.dtype.itemsize


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
