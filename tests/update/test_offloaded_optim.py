"""AdamW with its state in host memory: the bits of the AdamW beside it, for every way of cutting weights into buckets.

On a CPU both memories are the same, and copies are made at once; tests/gpu covers streams and pinning.
"""

from __future__ import annotations

import gc
import hashlib
import math
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ascent.algorithms import TABLE
from ascent.update import offloaded_optim
from ascent.update.learner import LocalLearner
from ascent.update.objective import objective_of
from ascent.update.offloaded_optim import ALIGNMENT, Bucket, OffloadedAdamW, Slot
from ascent.update.optim import Adam, AdamW
from ascent.update.schedule import Schedule
from tests.update.toy import Toy, batch_of

ADAM = Adam(beta1=0.8, beta2=0.95, eps=1e-6, weight_decay=0.3)
BUCKETS = [
    1,
    2 * ALIGNMENT,
    5 * ALIGNMENT,
    10**6,
]  # more than three buckets, and one; the largest weight has 299 values


def module_of(dtype: torch.dtype, *, full: Iterable[int] = ()) -> nn.Sequential:
    """Matrices and vectors with lengths that no vector register divides; the layers in `full` are float32."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = nn.Sequential(
            nn.Linear(13, 23), nn.LayerNorm(23), nn.Linear(23, 3), nn.Linear(3, 5)
        ).to(dtype)
    for index in full:
        module[index].float()
    return module


def accumulate(module: nn.Module, step: int, *, idle: Iterable[str] = ()) -> None:
    """Three backward passes, each of which uses every weight twice."""
    rng = torch.Generator().manual_seed(step)
    for _ in range(3):
        terms = []
        for name, weight in module.named_parameters():
            for _ in range(2):
                random = torch.randn(weight.shape, generator=rng).to(weight.dtype)
                if name not in idle and weight.requires_grad:
                    terms.append((weight * random).sum().float())
        sum(terms, torch.zeros(())).backward()


def train(
    optimizer: AdamW, module: nn.Module, steps: Iterable[int], *, idle: Iterable[str] = ()
) -> list[float]:
    norms = []
    for step in steps:
        accumulate(module, step, idle=idle)
        norm = optimizer.norm()
        optimizer.step(1e-2 / (1 + step), norm=norm, max_norm=20.0)
        optimizer.clear()
        norms.append(float(norm))
    return norms


def digest(module: nn.Module, optimizer: AdamW) -> str:
    """Of weights, masters, moments and counts."""
    found = hashlib.sha256()
    tensors = dict(module.named_parameters()) | optimizer.state()
    for name in sorted(tensors):
        found.update(
            name.encode() + tensors[name].detach().reshape(-1).view(torch.uint8).numpy().tobytes()
        )
    return found.hexdigest()


@pytest.mark.parametrize("bucket_size", BUCKETS)
@pytest.mark.parametrize(
    ("dtype", "full"), [(torch.bfloat16, ()), (torch.float32, ()), (torch.bfloat16, (1, 2))]
)
def test_it_has_the_bits_of_the_optimizer_on_the_device(
    dtype: torch.dtype, full: tuple[int], bucket_size: int
) -> None:
    ours, theirs = module_of(dtype, full=full), module_of(dtype, full=full)
    offloaded = OffloadedAdamW(ours.named_parameters(), ADAM, bucket_size=bucket_size)
    beside = AdamW(theirs.named_parameters(), ADAM)
    start = digest(theirs, beside)
    assert digest(ours, offloaded) == start
    assert train(offloaded, ours, range(5)) == train(beside, theirs, range(5))
    assert digest(ours, offloaded) == digest(theirs, beside) != start


def test_weights_are_cut_at_the_bounds_of_buckets() -> None:
    module = module_of(torch.bfloat16)
    optimizer = OffloadedAdamW(module.named_parameters(), bucket_size=2 * ALIGNMENT)
    spans = [span for bucket in optimizer._buckets for span in bucket.spans]
    for name, weight in module.named_parameters():
        bounds = [(span.start, span.stop) for span in spans if span.name == name]
        assert [start for start, _ in bounds] == [0, *(stop for _, stop in bounds[:-1])]
        assert bounds[-1][1] == weight.numel()
        assert all(start % ALIGNMENT == 0 for start, _ in bounds)
    assert (
        len([span for span in spans if span.name == "0.weight"]) == 3
    )  # 299 values, in buckets of 128
    assert len(optimizer._slots) == 3 and optimizer._slots[0].planes.shape == (3, 2 * ALIGNMENT)
    (alone,) = OffloadedAdamW(module_of(torch.bfloat16).named_parameters())._slots
    assert alone.planes.shape[1] < 1000  # no more than there is to stage


def test_the_state_is_in_host_memory_and_weights_stay_where_they_are() -> None:
    module = module_of(torch.bfloat16, full=(2,))
    addresses = [weight.data_ptr() for weight in module.parameters()]
    optimizer = OffloadedAdamW(module.named_parameters(), ADAM)
    train(optimizer, module, range(2))
    assert [weight.data_ptr() for weight in module.parameters()] == addresses
    assert optimizer.masters["2.weight"] is module[2].weight
    low, whole = 299 + 23 + 23 + 23 + 15 + 5, 69 + 3
    sizes = [buffer.values.numel() for buffer in optimizer._host]
    assert low <= sizes[0] <= low + 6 * ALIGNMENT
    assert sizes[1] == sizes[2] and low + whole <= sizes[1] <= low + whole + 8 * ALIGNMENT
    storages = [buffer.values.untyped_storage().data_ptr() for buffer in optimizer._host]
    for name, tensor in optimizer.state().items():
        kind = name.partition(".")[0]
        if kind != "count":
            assert (
                tensor.untyped_storage().data_ptr()
                == storages[["master", "mean", "square"].index(kind)]
            ), name


@pytest.mark.parametrize("to_offloaded", [False, True])
@pytest.mark.parametrize("from_offloaded", [False, True])
def test_a_run_resumes_with_the_same_bits_with_either_optimizer(
    from_offloaded: bool, to_offloaded: bool
) -> None:
    def make(offloaded: bool, module: nn.Module) -> AdamW:
        named = module.named_parameters()
        return (
            OffloadedAdamW(named, ADAM, bucket_size=ALIGNMENT) if offloaded else AdamW(named, ADAM)
        )

    whole, first, second = (module_of(torch.bfloat16, full=(1,)) for _ in range(3))
    through, before, after = (
        make(False, whole),
        make(from_offloaded, first),
        make(to_offloaded, second),
    )
    train(through, whole, range(6))
    train(before, first, range(3))
    saved = {name: tensor.clone() for name, tensor in before.state().items()}
    train(after, second, [7, 8])  # whatever it remembers must be gone
    accumulate(second, 9)
    second.load_state_dict(first.state_dict())
    after.load_state(saved)
    assert digest(second, after) == digest(first, before)
    train(after, second, range(3, 6))
    assert digest(second, after) == digest(whole, through)


def test_a_weight_without_a_gradient_has_no_moments_and_stays() -> None:
    idle = ["0.weight", "3.bias"]
    ours, theirs = module_of(torch.bfloat16), module_of(torch.bfloat16)
    offloaded = OffloadedAdamW(ours.named_parameters(), ADAM, bucket_size=ALIGNMENT)
    beside = AdamW(theirs.named_parameters(), ADAM)
    before = ours[0].weight.detach().clone()
    for optimizer, module in ((offloaded, ours), (beside, theirs)):
        train(optimizer, module, range(2), idle=idle)
    assert "count.0.weight" not in offloaded.state() and "mean.0.bias" in offloaded.state()
    assert torch.equal(ours[0].weight.detach(), before)
    assert digest(ours, offloaded) == digest(theirs, beside)
    saved = {name: tensor.clone() for name, tensor in offloaded.state().items()}
    for optimizer, module in ((offloaded, ours), (beside, theirs)):
        train(optimizer, module, range(2, 4))
    assert digest(ours, offloaded) == digest(theirs, beside)  # counts of 2 and 4 in one bucket
    offloaded.load_state(saved)
    assert set(offloaded.state()) == set(saved)
    beside.load_state(saved)
    for optimizer, module in ((offloaded, ours), (beside, theirs)):
        train(optimizer, module, range(4, 6))
    assert digest(ours, offloaded) == digest(theirs, beside)  # moments begin again at 0


def test_frozen_weights_are_left_out_and_a_step_without_gradients_changes_nothing() -> None:
    module = module_of(torch.bfloat16)
    module[0].requires_grad_(False)
    optimizer = OffloadedAdamW(module.named_parameters(), ADAM)
    assert "0.weight" not in optimizer.masters
    before = digest(module, optimizer)
    optimizer.step(1.0, norm=optimizer.norm(), max_norm=1.0)
    assert digest(module, optimizer) == before
    train(optimizer, module, [0])
    assert digest(module, optimizer) != before
    module.requires_grad_(False)
    with pytest.raises(ValueError, match="no weight to train"):
        OffloadedAdamW(module.named_parameters())


def test_gradients_add_up_in_float32_and_closing_ends_that() -> None:
    """In bfloat16, 256 + 1 is 256."""
    weight = nn.Parameter(torch.zeros(1, dtype=torch.bfloat16))
    optimizer = OffloadedAdamW([("w", weight)])
    for grad in (256.0, *[1.0] * 16):
        (weight * grad).sum().backward()
    assert optimizer.gradients()["w"].dtype == torch.float32
    assert float(optimizer.norm()) == 272.0
    optimizer.close()
    (weight * 2.0).sum().backward()
    assert weight.grad is not None and weight.grad.dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_learner_skips_the_same_steps_and_reports_the_same(dtype: torch.dtype) -> None:
    objective = objective_of(TABLE["grpo"])
    ends = []
    for offload in (False, True):
        model = Toy(dtype=dtype)
        adam = Adam(weight_decay=0.1, offload=offload)
        learner = LocalLearner(model, Schedule(1e-2), adam=adam, max_grad_norm=0.1)
        assert type(learner.optimizer) is (OffloadedAdamW if offload else AdamW)
        metrics = []
        for step in range(4):
            handle = (
                model.norm.weight.register_hook(lambda grad: grad * math.inf) if step == 1 else None
            )
            found = learner.step([batch_of(step), batch_of(step + 10)], objective)
            metrics.append(
                {name: each.value() for name, each in found.items() if not name.startswith("time/")}
            )
            if handle is not None:
                handle.remove()
        assert [each["optim/skipped"] for each in metrics] == [0, 1, 0, 0]
        state = learner.state()
        ends.append(
            (repr(metrics), digest(model, learner.optimizer), state["weights"], state["skipped"])
        )
    assert ends[0] == ends[1]


@dataclass(eq=False)
class Work:
    """Work given to a stream, with all work that is done before it."""

    kind: str
    slot: object
    bucket: object
    before: set[Work]


class Traced(OffloadedAdamW):
    """Keeps what its streams and events order; the work itself is done at once."""

    def trace(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.works: list[Work] = []
        latest: dict[object, Work] = {}  # by stream, and by event
        current, self._loads, self._stores = (
            SimpleNamespace(synchronize=lambda: None) for _ in range(3)
        )
        kinds = {id(self._loads): "load", id(self._stores): "store", id(current): "update"}
        for slot in self._slots:
            slot.loaded, slot.stepped, slot.stored = object(), object(), object()

        @contextmanager
        def ordered(stream: object, after: object, then: object) -> Iterator[None]:
            (slot,) = (
                each for each in self._slots if after in (each.loaded, each.stepped, each.stored)
            )
            direct = [latest[each] for each in (id(stream), after) if each in latest]
            before = {each for work in direct for each in (work, *work.before)}
            work = latest[id(stream)] = latest[then] = Work(kinds[id(stream)], slot, None, before)
            self.works.append(work)
            yield
            work.bucket = self.bucket

        monkeypatch.setattr(offloaded_optim, "_ordered", ordered)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current)

    def _pairs(self, bucket: Bucket, slot: Slot) -> Iterator[tuple[Tensor, Tensor]]:
        self.bucket = bucket
        return super()._pairs(bucket, slot)

    def _update(self, bucket: Bucket, *rest: Any) -> None:
        self.bucket = bucket
        super()._update(bucket, *rest)


@pytest.mark.parametrize(
    "bucket_size", [ALIGNMENT, 3 * ALIGNMENT, 4 * ALIGNMENT, 8 * ALIGNMENT, 10**6]
)
def test_streams_and_events_leave_no_race(
    bucket_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What uses the same slot, or writes what another reads on the host, is ordered, in one step and across steps."""
    module = module_of(torch.bfloat16)
    optimizer = Traced(module.named_parameters(), ADAM, bucket_size=bucket_size)
    optimizer.trace(monkeypatch)
    optimizer._load_first()
    train(optimizer, module, range(3))
    works, kinds = optimizer.works, {"load": 0, "update": 0, "store": 0}
    for place, later in enumerate(works):
        kinds[later.kind] += 1
        for earlier in works[:place]:
            pair = {earlier.kind, later.kind}
            if earlier.slot is later.slot or (
                earlier.bucket is later.bucket and pair == {"load", "store"}
            ):
                assert earlier in later.before, (earlier.kind, later.kind)
    buckets, slots = len(optimizer._buckets), len(optimizer._slots)
    assert kinds == {"load": 3 * buckets + slots, "update": 3 * buckets, "store": 3 * buckets}
    stores = [work for work in works if work.kind == "store"]
    loads = [work for work in works if work.kind == "load"]
    if (
        buckets > 3
    ):  # the second bucket is loaded while the first one is stepped and stored, not after that
        assert loads[1] not in stores[0].before and stores[1] not in loads[3].before


def test_too_little_host_memory_and_other_precisions_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weight = nn.Parameter(torch.zeros(3 * 2**20, dtype=torch.bfloat16))
    monkeypatch.setattr(offloaded_optim, "available_bytes", lambda: 36 * 2**20)
    OffloadedAdamW([("w", weight)]).close()
    monkeypatch.setattr(offloaded_optim, "available_bytes", lambda: 36 * 2**20 - 1)
    with pytest.raises(
        ValueError,
        match=r"optimizer_offload keeps 0.0 GiB .* of which 0.0 GiB are available; use a",
    ):
        OffloadedAdamW([("w", weight)])
    OffloadedAdamW([("w", nn.Parameter(weight.detach().float()))])  # without masters there is room
    monkeypatch.setattr(offloaded_optim, "available_bytes", lambda: None)
    with pytest.raises(
        ValueError, match=r"'w' is torch.float64; update.optimizer_offload .* or turn it off"
    ):
        OffloadedAdamW([("w", nn.Parameter(torch.zeros(1, dtype=torch.float64)))])


def test_a_state_of_another_model_is_refused() -> None:
    state = OffloadedAdamW(module_of(torch.float32).named_parameters()).state()
    with pytest.raises(
        ValueError, match=r"no float32 master of '0.weight', a torch.bfloat16 weight"
    ):
        OffloadedAdamW(module_of(torch.bfloat16).named_parameters()).load_state(state)


def test_host_memory_is_freed_with_the_optimizer() -> None:
    """At once, not by the garbage collector at some later time: `Policy.load` makes another one."""
    module = module_of(torch.bfloat16)
    optimizer = OffloadedAdamW(module.named_parameters())
    train(optimizer, module, range(2))
    views = [
        optimizer.masters["0.weight"],
        optimizer._moments("0.weight")["exp_avg"],
        optimizer._host[2].values,
    ]
    watched = [weakref.ref(each) for each in (*views, optimizer._torch)]
    del views
    gc.collect()
    gc.disable()
    try:
        del optimizer
        assert [each() for each in watched] == [None] * 4
    finally:
        gc.enable()
