"""AdamW over float32 masters.

At RL learning rates a step is smaller than the spacing of bfloat16 numbers, so adding it to a bfloat16 weight changes
nothing (about 99% of weights). Here the optimizer owns a float32 master of every low-precision weight, adds up the
micro-batches' gradients in float32, steps the master, and writes its rounding into the weight IN PLACE: CUDA graphs and
the sampler hold the same tensor, so nothing is copied to them. A float32 or float64 weight is its own master.

The arithmetic is torch's fused AdamW: one pass over memory, element by element, so the same bits every time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.utils.hooks import RemovableHandle

Unrounded: TypeAlias = Mapping[
    str, Sequence[Callable[[], Tensor]]
]  # float32 values of weights by name, best first
FULL = (torch.float32, torch.float64)
FUSED_ELEMENTS = 2**20  # on CUDA: smaller gradients are not worth the launch of a kernel of our own
# torch's names for the state of AdamW, and those in our files.
MOMENTS = {"exp_avg": "mean", "exp_avg_sq": "square", "step": "count"}


@dataclass(frozen=True)
class Adam:
    """The hyperparameters of AdamW, except for the learning rate; `offload` keeps its state in host memory."""

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    offload: bool = False


def decays(name: str, weight: Tensor) -> bool:
    """Whether weight decay applies: to matrices, not to biases and the gains of norms."""
    return weight.ndim >= 2 and not name.endswith("bias")


class AdamW:
    """One optimizer over the named weights that require a gradient."""

    def __init__(self, named: Iterable[tuple[str, Tensor]], adam: Adam | None = None) -> None:
        adam = Adam() if adam is None else adam
        self.weights = {name: weight for name, weight in named if weight.requires_grad}
        if not self.weights:
            raise ValueError(
                "there is no weight to train: every parameter has requires_grad=False; unfreeze some"
            )
        self.masters = self._make_masters()
        self._hooks = self._add_hooks()
        groups: dict[bool, list[Tensor]] = {True: [], False: []}
        for name, master in self.masters.items():
            groups[decays(name, self.weights[name])].append(master)
        self._torch = torch.optim.AdamW(
            [
                {"params": members, "weight_decay": adam.weight_decay if decayed else 0.0}
                for decayed, members in groups.items()
                if members
            ],
            betas=(adam.beta1, adam.beta2),
            eps=adam.eps,
            fused=True,
        )

    def _make_masters(self) -> dict[str, Tensor]:
        return {name: make_master(name, weight) for name, weight in self.weights.items()}

    def _add_hooks(self) -> list[RemovableHandle]:
        return [
            weight.register_post_accumulate_grad_hook(partial(_collect, self.masters[name]))
            for name, weight in self.weights.items()
            if self.masters[name] is not weight
        ]

    def gradients(self) -> dict[str, Tensor]:
        """The sums of the gradients since `clear`, in the precision of the masters; not of weights that got none."""
        return {
            name: master.grad for name, master in self.masters.items() if master.grad is not None
        }

    def has_master(self, name: str) -> bool:
        """Whether a weight has a float32 master besides itself."""
        return self.weights[name].dtype not in FULL

    def unreduced(self) -> set[str]:
        """The weights of which this rank has a gradient that others must be told of."""
        return set()

    def reduce(self, names: Iterable[str]) -> None:
        """Sum the gradients of all ranks into the masters'; `names` are what any rank's `unreduced` gave. One process
        has nothing to do."""

    def clear(self) -> None:
        """Set all gradients to None."""
        for name, weight in self.weights.items():
            weight.grad = None
            self.masters[name].grad = None

    def close(self) -> None:
        """Leave the gradients of later backward passes on the weights."""
        self.clear()
        for hook in self._hooks:
            hook.remove()

    def norm(self, before: Mapping[str, Tensor | None] | None = None) -> Tensor:
        """The norm of the gradient, or of its difference to the gradient `before`."""
        found = [(grad, (before or {}).get(name)) for name, grad in self.gradients().items()]
        return get_total_norm(
            [grad if earlier is None else grad - earlier for grad, earlier in found]
        )

    def non_finite_gradients(self) -> list[str]:
        """Names of the weights whose gradient is not finite."""
        return [
            name for name, grad in self.gradients().items() if not bool(torch.isfinite(grad).all())
        ]

    @torch.no_grad()
    def step(self, learning_rate: float, *, norm: Tensor, max_norm: float) -> None:
        """Scale the gradient down to `max_norm` where its `norm` is larger, step the masters, write the weights."""
        clip_grads_with_norm_(self.masters.values(), max_norm, norm)
        for group in self._torch.param_groups:
            group["lr"] = learning_rate
        self._torch.step()
        self._write_weights()

    def _write_weights(self) -> None:
        for name, weight in self.weights.items():
            if self.masters[name] is not weight:
                weight.copy_(self.masters[name])

    @torch.no_grad()
    def start_from(self, unrounded: Unrounded) -> None:
        """Masters become the float32 values that the weights are roundings of. What does not round to its weight is
        not used, so the weights stay as they are."""
        for name, master in self.masters.items():
            dtype = self._rounded_dtype(name)
            for read in unrounded.get(name, ()) if self.has_master(name) else ():
                values = read()
                if values.numel() != self.weights[name].numel():
                    continue
                own = self._own(name, values).to(master.device, master.dtype)
                if torch.equal(own.to(dtype), master.to(dtype)):
                    master.copy_(own)
                    break

    def _own(self, name: str, values: Tensor) -> Tensor:
        """The values of a whole weight that this process steps, in the shape of its master."""
        return values.view(self.weights[name].shape)

    def _rounded_dtype(self, name: str) -> torch.dtype:
        """Of the weight in a forward pass."""
        return self.weights[name].dtype

    def state(self) -> dict[str, Tensor]:
        """Copies on the CPU: moments and counts of every weight, masters of low-precision ones."""
        return {key: tensor.to("cpu", copy=True) for key, tensor in self._live_state().items()}

    def _live_state(self) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for name, master in self.masters.items():
            if master is not self.weights[name]:
                found[f"master.{name}"] = master.detach()
            for theirs, ours in MOMENTS.items():
                if master in self._torch.state:
                    found[f"{ours}.{name}"] = self._torch.state[master][theirs]
        return found

    @torch.no_grad()
    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Put a state back, exactly; low-precision weights are written from their masters."""
        self._check(state)
        self.clear()
        for name, master in self.masters.items():
            if master is not self.weights[name]:
                master.copy_(state[f"master.{name}"])
            self._torch.state.pop(master, None)
            if f"count.{name}" in state:
                self._torch.state[master] = {
                    theirs: state[f"{ours}.{name}"].to(master.device, copy=True)
                    for theirs, ours in MOMENTS.items()
                }
        self._write_weights()

    def _check(self, state: Mapping[str, Any]) -> None:
        for key, saved in state.items():
            kind, _, name = key.partition(".")
            weight = self.weights.get(name)
            if weight is None:
                raise ValueError(
                    f"the optimizer's state holds {key!r}, but no trained weight is called {name!r} (there are "
                    f"{len(self.weights)}, first {next(iter(self.weights))!r}); use the model this state was saved with"
                )
            dtype = master_dtype(weight)
            if kind != "count" and (saved.shape, saved.dtype) != (weight.shape, dtype):
                raise ValueError(
                    f"the optimizer's state holds {key!r} as {saved.dtype} {tuple(saved.shape)}, but the weight is "
                    f"{dtype} {tuple(weight.shape)}; use the model and model.dtype it was saved with"
                )
        for name in self.weights:
            if self.has_master(name) and f"master.{name}" not in state:
                raise ValueError(
                    f"the optimizer's state has no float32 master of {name!r}, a {self.weights[name].dtype} weight; "
                    "it was saved with model.dtype float32: use that again"
                )


def master_dtype(weight: Tensor) -> torch.dtype:
    return weight.dtype if weight.dtype in FULL else torch.float32


def make_master(name: str, weight: Tensor) -> Tensor:
    """The weight itself, or a float32 copy of a low-precision one."""
    if weight.dtype in FULL:
        return weight
    if not weight.dtype.is_floating_point:
        raise ValueError(
            f"weight {name!r} is {weight.dtype}; only floating-point weights can be trained"
        )
    return weight.detach().to(torch.float32).requires_grad_()


def add_gradient(total: Tensor, gradient: Tensor) -> None:
    """total += gradient."""
    if total.is_cuda and gradient.dtype != total.dtype and total.numel() >= FUSED_ELEMENTS:
        from ascent.update.accumulate_cuda import accumulate  # triton exists on CUDA machines only

        accumulate(total, gradient)
    else:
        total.add_(gradient)


def _collect(master: Tensor, weight: Tensor) -> None:
    """Move a low-precision weight's gradient to its master's, in float32, as soon as a backward pass has it."""
    if weight.grad is None:
        return
    if master.grad is None:
        master.grad = weight.grad.to(master.dtype)
    else:
        add_gradient(master.grad, weight.grad)
    weight.grad = None
