"""A LoRA model after two large steps, shared by the tests of LoRA, of adapters on disk and of quantized bases."""

import torch

from ascent.models.load import load
from ascent.models.lora import attach
from tests.models.packing import batch_of

WANT = frozenset({"logprobs_T"})


def logprobs(model):
    return model.outputs(batch_of(), WANT)["logprobs_T"].detach()


def trained(folder, **numbers):
    """An adapter after one large step, so that it does something."""
    model = attach(load(folder, **numbers), rank=4)
    want = model.offers & {"logprobs_T", "scores_B"}
    for _ in range(2):
        loss = torch.stack([x.nansum() for x in model.outputs(batch_of(), want).values()]).sum()
        grads = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for weight, grad in zip(model.parameters(), grads, strict=True):
                weight += 0.05 * grad / (grad.norm() + 1e-6)
    return model
