"""A model that no rank holds whole: FSDP2's `fully_shard`.

Every layer is divided over the ranks, and gathered for its forward and its backward pass, or once for all micro-batches
of a step where there is room for that. The shards are the float32 masters; a low-precision layer is rounded as it is
gathered. Everything that reads a weight runs inside the forward of one root module, because FSDP gathers weights in the
hooks of modules: heads are read without calling their layer.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from ascent.maths.batch import PackedBatch
from ascent.models.fused_logprobs import CUDA_BUDGET_BYTES
from ascent.models.layer_patching import merge_products
from ascent.models.model import LanguageModel
from ascent.parallel.ranks import Ranks
from ascent.update.optim import FULL


class Root(nn.Module):
    """All weights of a model. Its forward is the model's.

    One that `keeps_weights` keeps them gathered in training mode, in which all micro-batches of a step are run. The
    optimizer steps after it, and changes the shards alone.
    """

    def __init__(self, model: LanguageModel, *, keeps_weights: bool) -> None:
        super().__init__()
        self._keeps_weights = keeps_weights
        self.module = model.module
        if model.value_head is not None:
            self.value_head = model.value_head
        self._run = model.run

    def forward(
        self, batch: PackedBatch, want: frozenset[str], temperature: float
    ) -> dict[str, Any]:
        return self._run(batch, want, temperature)

    def train(self, mode: bool = True) -> Root:
        super().train(mode)
        if self._keeps_weights:
            for each in self.modules():
                if isinstance(each, FSDPModule):
                    each.set_reshard_after_forward(not mode, recurse=False)
                    each.set_reshard_after_backward(not mode, recurse=False)
                    if not mode:
                        each.reshard()
        return self


def shard(
    model: LanguageModel, ranks: Ranks, device: torch.device, *, keeps_weights: bool = False
) -> None:
    """Divide a model that was loaded whole, layer by layer, so that no device holds more than one layer of it.

    `keeps_weights`: in a step, a device gathers the compute weights once and holds all of them.
    """
    if not dist.is_initialized():  # one process
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    mesh = init_device_mesh(device.type, (ranks.count,))
    compute = next(model.parameters()).dtype
    policy = MixedPrecisionPolicy(cast_forward_inputs=False)
    if compute not in FULL:
        policy = MixedPrecisionPolicy(
            param_dtype=compute, reduce_dtype=torch.float32, cast_forward_inputs=False
        )
        for weight in model.parameters():
            weight.data = weight.data.to(torch.float32)
    if device.type == "cuda":  # as a model that was loaded there, and not on the CPU
        merge_products(model.module, copies=True)
        model.budget_bytes = max(model.budget_bytes, CUDA_BUDGET_BYTES)
    root = Root(model, keeps_weights=keeps_weights)
    names = set(model.module._no_split_modules or ())
    # Layers that were patched have a class of their own, below the one that transformers names.
    layers = [
        each for each in root.modules() if names & {base.__name__ for base in type(each).__mro__}
    ]
    for module in (*layers, root):
        _shard_one(module, mesh, policy)
    model.root = root


def _shard_one(module: nn.Module, mesh: DeviceMesh, policy: MixedPrecisionPolicy) -> None:
    divided = fully_shard(module, mesh=mesh, mp_policy=policy)
    # The loss is divided by counts over all ranks, so gradients are added and not averaged. On one rank a factor would
    # cost a division of all gradients in every micro-batch.
    if mesh.size() > 1:
        divided.set_gradient_divide_factor(1.0)
    divided.set_force_sum_reduction_for_comms(True)
