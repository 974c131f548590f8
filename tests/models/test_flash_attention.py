"""The flag by which torch's flash kernel adds in a fixed order: set for that kernel alone, and restored."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ascent.models import flash_attention
from ascent.models.flash_attention import flash_backward
from tests.engines.native.test_sampling import logits, many, sample_tokens

STATES = [(False, False), (True, False), (True, True)]


def flags() -> tuple[bool, bool]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    enabled, warns = flags()
    yield
    torch.use_deterministic_algorithms(enabled, warn_only=warns)


class Kernel:
    """In place of the kernel, which a CPU does not have."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[tuple[bool, bool]] = []
        self.called, self.may_end = threading.Event(), threading.Event()
        monkeypatch.setattr(flash_attention.torch.ops.aten, "_flash_attention_backward", self)

    def __call__(self, *args: Any, **options: Any) -> tuple[Any, ...]:
        self.seen.append(flags())
        self.called.set()
        assert self.may_end.wait(30)
        if args == ("fails",):
            raise RuntimeError("no kernel")
        return args


@pytest.mark.parametrize("before", STATES)
def test_the_flag_is_set_for_the_kernel_and_restored(
    before: tuple[bool, bool], monkeypatch: Any
) -> None:
    kernel = Kernel(monkeypatch)
    kernel.may_end.set()
    torch.use_deterministic_algorithms(before[0], warn_only=before[1])
    assert flash_backward("gradient") == ("gradient",)
    with pytest.raises(RuntimeError, match="no kernel"):
        flash_backward("fails")
    assert kernel.seen == [(True, False)] * 2 and flags() == before


class Watch(TorchDispatchMode):
    """The flag at every sum of floats, which on CUDA raises while it is set."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[bool] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is torch.ops.aten.cumsum.default and args[0].is_floating_point():
            self.seen.append(torch.are_deterministic_algorithms_enabled())
        return function(*args, **(kwargs or {}))


def test_a_thread_that_samples_with_top_p_meanwhile_waits_for_the_flag(monkeypatch: Any) -> None:
    kernel, found = Kernel(monkeypatch), []
    watch = Watch()

    def sample() -> None:
        with watch:
            found.append(sample_tokens(logits(), many(4, top_p=0.5)).tokens_B.tolist())

    trains = threading.Thread(target=flash_backward, args=("gradient",))
    trains.start()
    assert kernel.called.wait(30)
    samples = threading.Thread(target=sample)
    samples.start()
    samples.join(0.5)
    assert samples.is_alive() and not watch.seen
    kernel.may_end.set()
    for each in (trains, samples):
        each.join(30)
    assert watch.seen == [False] and found == [
        sample_tokens(logits(), many(4, top_p=0.5)).tokens_B.tolist()
    ]
