"""AdamW whose float32 masters and moments are in host memory.

A bfloat16 weight takes 2 bytes on the GPU, the sum of its gradients 4, its master and its moments 12. Here these 12 are
in pinned host memory. A step brings them to the GPU bucket by bucket, runs the fused AdamW of `optim` on them there, so
with the same bits, writes the weights, and takes them back. A float32 weight is its own master and stays on the GPU;
its moments do not.

Loads, arithmetic and stores of three buckets overlap, each in a stream of its own, so a step takes as long as its
copies in one direction. The first buckets are loaded already when a step begins, behind the forward and backward passes
before it. Loading more of them early would gain nothing: a store must wait for the norm of the whole gradient, and the
stores take as long as the loads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_
from torch.optim.adamw import adamw
from torch.utils.hooks import RemovableHandle

from ascent.models.host_memory import HostBuffer, available_bytes
from ascent.models.memory import OFFLOAD_BUCKET, OFFLOAD_SLOTS
from ascent.update.optim import FULL, MOMENTS, Adam, AdamW, Unrounded, decays

ALIGNMENT = 64  # values; a weight is cut at multiples of it only, so that vectorized loops have the same remainder


class Span(NamedTuple):
    """Values `start` to `stop` of a flattened weight, and the place in their bucket where they begin."""

    name: str
    start: int
    stop: int
    place: int


@dataclass
class Bucket:
    """A range of the host buffers, and the parts of weights in it."""

    start: int
    stop: int
    spans: list[Span] = field(default_factory=list)


class Slot:
    """Device memory for the masters, means and squares of a bucket, and the events that order its use."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.planes = torch.empty(3, size, device=device)
        self.loaded, self.stepped, self.stored = (
            torch.cuda.Event() if device.type == "cuda" else None for _ in range(3)
        )
        if self.stored is not None:  # a first load must wait for whoever used this memory before
            self.stored.record(torch.cuda.current_stream(device))


class OffloadedAdamW(AdamW):
    """`AdamW` with the same results, for models whose optimizer state does not fit on the GPU."""

    def __init__(
        self,
        named: Iterable[tuple[str, Tensor]],
        adam: Adam | None = None,
        *,
        bucket_size: int = OFFLOAD_BUCKET,
    ) -> None:
        self._bucket_size = -(-bucket_size // ALIGNMENT) * ALIGNMENT
        self._adam = Adam() if adam is None else adam
        super().__init__(named, adam)
        self._flat = {name: weight.detach().view(-1) for name, weight in self.weights.items()}
        size = min(self._bucket_size, self._buckets[-1].stop)
        self._slots = [Slot(size, self._device) for _ in self._buckets[:OFFLOAD_SLOTS]]
        self._loads = self._stores = None
        if self._device.type == "cuda":
            self._loads, self._stores = (
                torch.cuda.Stream(self._device),
                torch.cuda.Stream(self._device),
            )
            for slot in (
                self._slots
            ):  # their memory is not used again before these streams are done with it
                slot.planes.record_stream(self._loads)
                slot.planes.record_stream(self._stores)
        self._load_first()

    @torch.no_grad()
    def _make_masters(self) -> dict[str, Tensor]:
        self._device = next(iter(self.weights.values())).device
        for name, weight in self.weights.items():
            if weight.dtype not in (torch.float32, torch.bfloat16, torch.float16):
                raise ValueError(
                    f"weight {name!r} is {weight.dtype}; update.optimizer_offload keeps float32 state of float32 and "
                    "16-bit weights: use model.dtype float32 or bfloat16, or turn it off"
                )
        self._starts, masters_end, end = _place(self.weights)
        _check_room(4 * (masters_end + 2 * end))
        self._host = [HostBuffer(size, self._device) for size in (masters_end, end, end)]
        self._buckets = _cut(self.weights, self._starts, end, self._bucket_size)
        masters = {}
        for name, weight in self.weights.items():
            masters[name] = (
                weight if weight.dtype in FULL else self._host_view(0, name).copy_(weight)
            )
        return masters

    def _host_view(self, plane: int, name: str) -> Tensor:
        start, weight = self._starts[name], self.weights[name]
        return self._host[plane].values[start : start + weight.numel()].view(weight.shape)

    def _add_hooks(self) -> list[RemovableHandle]:
        """Sums of gradients stay on the weights: masters are on another device."""
        low = [weight for weight in self.weights.values() if weight.dtype not in FULL]
        for weight in low:
            weight.grad_dtype = None  # its gradient may have another precision than the weight
        return [weight.register_post_accumulate_grad_hook(_widen) for weight in low]

    def gradients(self) -> dict[str, Tensor]:
        return {
            name: weight.grad for name, weight in self.weights.items() if weight.grad is not None
        }

    def close(self) -> None:
        super().close()
        self._wait(self._loads, self._stores)
        for weight in self.weights.values():
            weight.grad_dtype = weight.dtype

    @torch.no_grad()
    def step(self, learning_rate: float, *, norm: Tensor, max_norm: float) -> None:
        clip_grads_with_norm_(self.weights.values(), max_norm, norm)
        gradients = {name: grad.reshape(-1) for name, grad in self.gradients().items()}
        if not gradients:
            return
        counts = [self._moments(name)["step"] for name in gradients]
        steps = dict(zip(gradients, torch.stack(counts).to(self._device).unbind(), strict=True))
        current = None if self._loads is None else torch.cuda.current_stream(self._device)
        for index, bucket in enumerate(self._buckets):
            slot = self._slots[index % OFFLOAD_SLOTS]
            with _ordered(current, slot.loaded, slot.stepped):
                self._update(bucket, slot.planes, gradients, steps, learning_rate)
            self._store(bucket, slot)
            if index + OFFLOAD_SLOTS < len(self._buckets):
                self._load(self._buckets[index + OFFLOAD_SLOTS], slot)
        for count in counts:
            count += 1
        self._load_first()
        self._wait(self._stores)

    def _moments(self, name: str) -> dict[str, Tensor]:
        """A weight's moments and count. It has none before its first gradient."""
        state = self._torch.state[self.masters[name]]
        if not state:
            state |= {"exp_avg": self._host_view(1, name), "exp_avg_sq": self._host_view(2, name)}
            state["step"] = torch.zeros(())
        return state

    def _update(
        self,
        bucket: Bucket,
        planes: Tensor,
        gradients: Mapping[str, Tensor],
        steps: Mapping[str, Tensor],
        learning_rate: float,
    ) -> None:
        """Step what is in a bucket and has a gradient."""
        master, mean, square = planes
        for weight_decay in {self._adam.weight_decay, 0.0}:
            spans = [
                each
                for each in bucket.spans
                if each.name in gradients and self._decay(each) == weight_decay
            ]
            places = [slice(each.place, each.place + each.stop - each.start) for each in spans]
            weights = [self._flat[each.name][each.start : each.stop] for each in spans]
            own = [
                weight if weight.dtype in FULL else master[place]
                for weight, place in zip(weights, places, strict=True)
            ]
            adamw(
                own,
                [gradients[each.name][each.start : each.stop] for each in spans],
                [mean[place] for place in places],
                [square[place] for place in places],
                [],
                [
                    steps[each.name].clone() for each in spans
                ],  # AdamW counts each up, a weight may have several
                fused=True,
                amsgrad=False,
                maximize=False,
                lr=learning_rate,
                beta1=self._adam.beta1,
                beta2=self._adam.beta2,
                eps=self._adam.eps,
                weight_decay=weight_decay,
            )
            for weight, stepped in zip(weights, own, strict=True):
                if weight is not stepped:
                    weight.copy_(stepped)

    def _decay(self, span: Span) -> float:
        return self._adam.weight_decay if decays(span.name, self.weights[span.name]) else 0.0

    def _load_first(self) -> None:
        for bucket, slot in zip(self._buckets, self._slots, strict=False):
            self._load(bucket, slot)

    def _load(self, bucket: Bucket, slot: Slot) -> None:
        with _ordered(self._loads, slot.stored, slot.loaded):
            for there, here in self._pairs(bucket, slot):
                here.copy_(there, non_blocking=True)

    def _store(self, bucket: Bucket, slot: Slot) -> None:
        with _ordered(self._stores, slot.stepped, slot.stored):
            for there, here in self._pairs(bucket, slot):
                there.copy_(here, non_blocking=True)

    def _pairs(self, bucket: Bucket, slot: Slot) -> Iterator[tuple[Tensor, Tensor]]:
        """A bucket's masters, means and squares, on the host and in a slot; masters as far as there are any."""
        for host, plane in zip(self._host, slot.planes, strict=True):
            there = host.values[bucket.start : bucket.stop]
            yield there, plane[: len(there)]

    @staticmethod
    def _wait(*streams: torch.cuda.Stream | None) -> None:
        """For stores, before host memory is read; for loads too, before it is written."""
        for stream in streams:
            if stream is not None:
                stream.synchronize()

    def start_from(self, unrounded: Unrounded) -> None:
        self._wait(self._loads, self._stores)
        super().start_from(unrounded)
        self._load_first()

    def state(self) -> dict[str, Tensor]:
        """The state itself, not copies, for which the host may have no room: save it before the next step."""
        return self._live_state()

    @torch.no_grad()
    def load_state(self, state: Mapping[str, Tensor]) -> None:
        self._check(state)
        self.clear()
        self._wait(self._loads, self._stores)
        for name, master in self.masters.items():
            if master is not self.weights[name]:
                master.copy_(state[f"master.{name}"])
            for plane in (1, 2):
                self._host_view(plane, name).zero_()
            self._torch.state.pop(master, None)
            if f"count.{name}" in state:
                for theirs, values in self._moments(name).items():
                    values.copy_(state[f"{MOMENTS[theirs]}.{name}"])
        self._write_weights()
        self._load_first()


@contextmanager
def _ordered(
    stream: torch.cuda.Stream | None, after: torch.cuda.Event | None, then: torch.cuda.Event | None
) -> Iterator[None]:
    """Work of a CUDA stream after one event, recorded as another. Without streams, work is done in the order it is
    written."""
    if stream is None or after is None or then is None:
        yield
        return
    with torch.cuda.stream(stream):
        stream.wait_event(after)
        yield
        then.record(stream)


def _widen(weight: Tensor) -> None:
    """Make a low-precision weight's first gradient float32; autograd adds the next ones to it in place."""
    if weight.grad is not None:
        weight.grad = weight.grad.to(torch.float32)


def _place(weights: Mapping[str, Tensor]) -> tuple[dict[str, int], int, int]:
    """Where each weight begins in the host buffers, where the last with a master ends, and where the last one ends."""
    starts, masters_end, end = {}, 0, 0
    for name in sorted(
        weights, key=lambda name: weights[name].dtype in FULL
    ):  # those with a master come first
        starts[name] = end
        end += -(-weights[name].numel() // ALIGNMENT) * ALIGNMENT
        if weights[name].dtype not in FULL:
            masters_end = end
    return starts, masters_end, end


def _cut(
    weights: Mapping[str, Tensor], starts: Mapping[str, int], end: int, size: int
) -> list[Bucket]:
    """Buckets of equal size; a weight may be in several."""
    buckets = [Bucket(start, min(start + size, end)) for start in range(0, end, size)]
    for name, start in starts.items():
        stop = start + weights[name].numel()
        for bucket in buckets[start // size : -(-stop // size)]:
            first, last = max(start, bucket.start), min(stop, bucket.stop)
            bucket.spans.append(Span(name, first - start, last - start, first - bucket.start))
    return buckets


def _check_room(needed: int) -> None:
    available = available_bytes()
    if available is not None and needed > available:
        raise ValueError(
            f"update.optimizer_offload keeps {needed / 2**30:.1f} GiB of optimizer state in host memory, of which "
            f"{available / 2**30:.1f} GiB are available; use a machine with more, a smaller model, or model.lora"
        )
