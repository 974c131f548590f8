"""AdamW whose masters and moments are divided over ranks.

`ReplicatedAdamW` (ZeRO stage 1) is for weights that every rank holds whole. The weights of one precision form one long
vector, of which every rank owns an equal range: it gets the sum of all ranks' gradients there, steps it, and sends the
new weights to the others. So the optimizer's memory falls as 1/N, and an optimizer step sends one reduce-scatter and
one all-gather. `ShardedAdamW` (stage 3) is for weights that FSDP divides (`update.fsdp`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from ascent.checkpoints.tensor_pieces import Saved, TensorPiece, read_range
from ascent.parallel.ranks import Ranks
from ascent.update.offloaded_optim import OffloadedAdamW
from ascent.update.optim import FULL, MOMENTS, Adam, AdamW, add_gradient, make_master, master_dtype

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


class Range(NamedTuple):
    """A rank's range of a flattened weight."""

    start: int
    stop: int


class PiecewiseAdamW(AdamW):
    """Steps a range of every weight. `ranges` are this rank's; a weight that others step alone is not among `masters`.

    How gradients get to `masters` and how new weights get to the others is up to the subclass.
    """

    ranges: dict[str, Range]

    def __init__(
        self, named: Iterable[tuple[str, Tensor]], adam: Adam | None, ranks: Ranks
    ) -> None:
        self._ranks = ranks
        self._stepped: set[str] = set()  # weights with moments, on whatever rank
        self._latest: set[str] = (
            set()
        )  # weights with a gradient in this optimizer step, on whatever rank
        super().__init__(named, adam)

    def clear(self) -> None:
        for tensor in (*self.weights.values(), *self.masters.values()):
            tensor.grad = None
        self._latest = set()

    def step(self, learning_rate: float, *, norm: Tensor, max_norm: float) -> None:
        self._stepped |= self._latest
        super().step(learning_rate, norm=norm, max_norm=max_norm)

    def norm(self, before: Mapping[str, Tensor | None] | None = None) -> Tensor:
        own = super().norm(before)
        if self._ranks.count == 1:
            return own
        norms = own.new_empty(self._ranks.count)
        self._ranks.all_gather(own.reshape(1), norms, "the norm of the gradient")
        return torch.linalg.vector_norm(norms)

    def non_finite_gradients(self) -> list[str]:
        found = {
            name
            for names in self._ranks.gather(super().non_finite_gradients(), "the gradient")
            for name in names
        }
        return [name for name in self.weights if name in found]

    def _own(self, name: str, values: Tensor) -> Tensor:
        return values.view(-1)[slice(*self.ranges[name])].view(self.masters[name].shape)

    def state(self) -> dict[str, Any]:
        """This rank's pieces, under the names of whole tensors."""
        found: dict[str, Any] = {}
        for name in self.weights:
            if self.has_master(name):
                found[f"master.{name}"] = self._piece(name, self.masters.get(name))
            if name in self._stepped:
                own = self._torch.state[self.masters[name]] if name in self.masters else {}
                for theirs, ours in MOMENTS.items():
                    found[f"{ours}.{name}"] = self._piece(
                        name, own.get(theirs), scalar=ours == "count"
                    )
        return found

    def _piece(self, name: str, values: Tensor | None, *, scalar: bool = False) -> TensorPiece:
        shape = () if scalar else tuple(self.weights[name].shape)
        if values is None:
            return TensorPiece(torch.empty(0), 0, shape)
        start = 0 if scalar else self.ranges[name].start
        return TensorPiece(values.detach().reshape(-1).to("cpu", copy=True), start, shape)

    @torch.no_grad()
    def load_state(self, state: Mapping[str, Saved]) -> None:
        self._check(state)
        self.clear()
        self._stepped = {name for name in self.weights if f"count.{name}" in state}
        for name, master in self.masters.items():
            own = self.ranges[name]
            if f"master.{name}" in state:
                master.copy_(read_range(state[f"master.{name}"], *own).view(master.shape))
            self._torch.state.pop(master, None)
            if name in self._stepped:
                moments = {
                    theirs: read_range(state[f"{ours}.{name}"], *own)
                    for theirs, ours in MOMENTS.items()
                    if ours != "count"
                }
                self._torch.state[master] = {
                    theirs: values.to(master.device, copy=True).view(master.shape)
                    for theirs, values in moments.items()
                } | {
                    "step": read_range(state[f"count.{name}"], 0, 1)
                    .reshape(())
                    .to(master.device, copy=True)
                }
        self._write_weights()


class ReplicatedAdamW(PiecewiseAdamW):
    """For whole weights on every rank."""

    _flat: dict[
        torch.dtype, Tensor
    ]  # the sum of this rank's gradients, in the precision of the masters
    _places: dict[str, int]  # where each weight begins in the vector of its precision

    def _make_masters(self) -> dict[str, Tensor]:
        self.ranges, self._flat, self._places = {}, {}, {}
        self._sizes: dict[torch.dtype, int] = {}  # values of a rank in the vector of each precision
        masters: dict[str, Tensor] = {}
        for dtype in dict.fromkeys(weight.dtype for weight in self.weights.values()):
            own = {name: weight for name, weight in self.weights.items() if weight.dtype is dtype}
            starts = [*accumulate((weight.numel() for weight in own.values()), initial=0)]
            size = self._sizes[dtype] = -(-starts[-1] // self._ranks.count)
            low, high = size * self._ranks.rank, size * (self._ranks.rank + 1)
            for (name, weight), start in zip(own.items(), starts, strict=False):
                self._places[name] = start
                first, last = max(low - start, 0), min(high - start, weight.numel())
                if first < last:
                    self.ranges[name] = Range(first, last)
                    piece = weight.detach().view(-1)[first:last]
                    masters[name] = make_master(name, piece)
        return masters

    def _add_hooks(self) -> list[RemovableHandle]:
        self._touched: set[str] = (
            set()
        )  # weights with a gradient on this rank, since the last reduction
        return [
            weight.register_post_accumulate_grad_hook(partial(self._collect, name))
            for name, weight in self.weights.items()
        ]

    def _collect(self, name: str, weight: Tensor) -> None:
        """Add a weight's gradient to the vector as soon as a backward pass has it."""
        if weight.grad is None:
            return
        if weight.dtype not in self._flat:
            length = self._sizes[weight.dtype] * self._ranks.count
            self._flat[weight.dtype] = torch.zeros(
                length, dtype=master_dtype(weight), device=weight.device
            )
        add_gradient(self._view(name, self._flat[weight.dtype]), weight.grad)
        self._touched.add(name)
        weight.grad = None

    def _view(self, name: str, flat: Tensor) -> Tensor:
        """A weight's part of the vector of its precision."""
        weight, start = self.weights[name], self._places[name]
        return flat[start : start + weight.numel()].view(weight.shape)

    def unreduced(self) -> set[str]:
        return self._touched

    @torch.no_grad()
    def reduce(self, names: Iterable[str]) -> None:
        touched = set(names)
        for dtype in dict.fromkeys(
            self.weights[name].dtype for name in self.weights if name in touched
        ):
            same_type = [name for name in self.weights if self.weights[name].dtype is dtype]
            size, first = self._sizes[dtype], self.weights[same_type[0]]
            own = torch.empty(size, dtype=master_dtype(first), device=first.device)
            chunks = self._flat.pop(dtype, None)
            if chunks is None:  # this rank had nothing to train
                chunks = torch.zeros(size * self._ranks.count, dtype=own.dtype, device=own.device)
            self._ranks.reduce_scatter(chunks, own)
            for name in [name for name in same_type if name in touched and name in self.masters]:
                start = self._places[name] + self.ranges[name].start - size * self._ranks.rank
                gradient, master = (
                    own[start : start + self.masters[name].numel()],
                    self.masters[name],
                )
                master.grad = gradient if master.grad is None else master.grad.add_(gradient)
        self._touched = set()
        self._latest |= touched

    def clear(self) -> None:
        super().clear()
        self._flat, self._touched = {}, set()

    @torch.no_grad()
    def _write_weights(self) -> None:
        """Every rank sends its range of the weights to all others."""
        for dtype, size in self._sizes.items():
            names = [name for name in self.weights if self.weights[name].dtype is dtype]
            pieces = [self.masters[name].to(dtype) for name in names if name in self.masters]
            first = self.weights[names[0]]
            own = torch.zeros(size, dtype=dtype, device=first.device)
            if pieces:
                own[: sum(piece.numel() for piece in pieces)] = torch.cat(pieces)
            whole = torch.empty(size * self._ranks.count, dtype=dtype, device=first.device)
            self._ranks.all_gather(own, whole, "the updated weights")
            weights = [self.weights[name] for name in names]
            torch._foreach_copy_(weights, [self._view(name, whole) for name in names])


class ShardedAdamW(PiecewiseAdamW):
    """For weights that FSDP divides along their first axis. The shards are the masters."""

    def __init__(
        self,
        named: Iterable[tuple[str, Tensor]],
        adam: Adam | None,
        ranks: Ranks,
        compute: torch.dtype,
    ) -> None:
        self._compute = compute
        super().__init__(named, adam, ranks)

    def has_master(self, name: str) -> bool:
        return self._compute not in FULL

    def _rounded_dtype(self, name: str) -> torch.dtype:
        return self._compute

    def _make_masters(self) -> dict[str, Tensor]:
        self.ranges = {}
        masters = {}
        for name, weight in self.weights.items():
            own = _local(weight)
            rows = -(-weight.shape[0] // self._ranks.count)
            start = min(rows * self._ranks.rank, weight.shape[0]) * (
                weight.numel() // weight.shape[0]
            )
            if own.numel():
                self.ranges[name], masters[name] = Range(start, start + own.numel()), own
        return masters

    def _add_hooks(self) -> list[RemovableHandle]:
        return []

    @torch.no_grad()
    def reduce(self, names: Iterable[str]) -> None:
        """FSDP has summed the gradients."""
        for name, weight in self.weights.items():
            if weight.grad is None:
                continue
            self._latest.add(name)
            gradient, master = _local(weight.grad), self.masters.get(name)
            if master is not None:
                master.grad = gradient if master.grad is None else master.grad.add_(gradient)
            weight.grad = None

    def _write_weights(self) -> None:
        """The shards are the weights."""

    def compute_shards(self) -> dict[str, Tensor]:
        """This rank's shards as they are gathered."""
        return {name: _local(weight).to(self._compute) for name, weight in self.weights.items()}

    def gather(self) -> Iterator[tuple[str, Tensor]]:
        """The whole weights, one after the other. All ranks call it together."""
        for name, weight in self.weights.items():
            yield name, cast("DTensor", weight.detach()).full_tensor().to(self._compute)


def _local(tensor: Tensor) -> Tensor:
    return cast("DTensor", tensor.detach()).to_local()


def make_optimizer(
    named: Iterable[tuple[str, Tensor]],
    adam: Adam | None,
    ranks: Ranks,
    sharded: torch.dtype | None,
) -> AdamW:
    """For one process, for whole weights on several ranks, or for divided weights, which are `sharded` in this type."""
    offload = adam is not None and adam.offload
    if offload and (ranks.count > 1 or sharded is not None):
        raise ValueError(
            "update.optimizer_offload=true keeps the optimizer of one process in host memory; over several ranks it is "
            "divided instead: set it to false"
        )
    if sharded is not None:
        return ShardedAdamW(named, adam, ranks, sharded)
    if ranks.count > 1:
        return ReplicatedAdamW(named, adam, ranks)
    return OffloadedAdamW(named, adam) if offload else AdamW(named, adam)
