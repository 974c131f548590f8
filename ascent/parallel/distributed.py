"""Ranks on torch.distributed, from the variables that torchrun sets: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT.

Tensors are reduced by nccl on CUDA and by gloo on a CPU. Everything else (counts, metrics, rollouts) is gathered as
Python objects over gloo, pickled with the bytes of tensors as they are: torch's own pickle of a tensor is a zip file.
"""

from __future__ import annotations

import io
import itertools
import os
import pickle
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from ascent.parallel.ranks import Layout, Ranks
from ascent.parallel.watch import EXIT_STATUS, RankFailed, Watch

T = TypeVar("T")
TIMEOUT = "ASCENT_RANK_TIMEOUT"
SIZE_BYTES = 8  # the length of what a rank sends, before it
FIRST_BYTES = 8192  # most of what ranks exchange is no longer and takes one collective; the rest takes a second
_runs = itertools.count()  # a script may train several times; every rank counts the same
VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# torch 2.13 renamed both.
reduce_scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


@cache
def _key_value_store() -> Any:
    """The key-value store by which ranks find each other. One for all runs of this process: ranks of a second run that
    found a first one's keys, or a server that is about to close, would never meet."""
    return next(dist.rendezvous("env://", timeout=timedelta(seconds=_timeout() + 60)))[0]


class DistributedRanks(Ranks):
    """The process group of this process. `timeout` is how long a rank waits for the others, in seconds."""

    def __init__(self, rank: int, count: int, *, timeout: float, layout: Layout = "auto") -> None:
        super().__init__(layout)
        self.rank, self.count = rank, count
        if torch.cuda.is_available():
            torch.cuda.set_device(local_rank())
        # The watch ends a rank that waits too long, and says for whom; torch's own limit comes after it.
        limit = timedelta(seconds=timeout + 60)
        number = next(_runs)
        store = dist.PrefixStore(f"run {number}", _key_value_store())
        store.set_timeout(limit)
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=count, timeout=limit)
        self._objects = dist.new_group(backend="gloo", timeout=limit)
        self.watch = Watch(
            rank,
            count,
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            timeout=timeout,
            run=number,
        )

    def gather(self, own: T, what: str) -> list[T]:
        own = _on_cpu(own)
        data = dump(own)
        data = len(data).to_bytes(SIZE_BYTES, "little") + data
        with self.watch.waiting(what):
            found = self._gather_bytes(data[:FIRST_BYTES], FIRST_BYTES)
            ends = [SIZE_BYTES + int.from_bytes(each[:SIZE_BYTES], "little") for each in found]
            if max(ends) > FIRST_BYTES:
                more = self._gather_bytes(data[FIRST_BYTES:], max(ends) - FIRST_BYTES)
                found = [first + rest for first, rest in zip(found, more, strict=True)]
        pieces = [memoryview(each)[SIZE_BYTES:end] for each, end in zip(found, ends, strict=True)]
        return [
            own if rank == self.rank else pickle.loads(piece) for rank, piece in enumerate(pieces)
        ]

    def _gather_bytes(self, own: bytes, size: int) -> list[bytes]:
        """The bytes of every rank, each filled up to `size`."""
        found = torch.empty(self.count, size, dtype=torch.uint8)
        padded = torch.frombuffer(bytearray(own.ljust(size, b"\0")), dtype=torch.uint8)
        all_gather(found.view(-1), padded, group=self._objects)
        return [each.numpy().tobytes() for each in found]

    def reduce_scatter(self, chunks: Tensor, own: Tensor) -> None:
        with self.watch.waiting("the sum of the gradients"):
            if chunks.is_cuda:
                reduce_scatter(own, chunks)
                return
            received = torch.empty_like(chunks)  # gloo's reduce-scatter sends whole vectors
            dist.all_to_all_single(received, chunks)
        torch.sum(received.view(self.count, -1), 0, out=own)

    def all_gather(self, own: Tensor, chunks: Tensor, what: str) -> None:
        with self.watch.waiting(what):
            all_gather(chunks, own)

    @contextmanager
    def exchanging(self, what: str) -> Iterator[None]:
        with self.watch.noting(what):
            try:
                yield
            except RuntimeError as error:
                if isinstance(error, dist.DistError) or re.search(
                    "connection|gloo", str(error), re.IGNORECASE
                ):
                    raise RankFailed(
                        self.watch.find_lost() or f"rank {self.rank}: {error}"
                    ) from error
                raise

    def call_on_failure(self, function: Callable[[str], None]) -> None:
        self.watch.on_failure = function

    def close(self) -> None:
        """Leave the group."""
        self.watch.close()
        dist.destroy_process_group()

    def fail(self, error: BaseException) -> RankFailed | None:
        """Tell the other ranks. Returns the failure of another rank, where that is why this one fails."""
        own = f"{type(error).__name__}: {error}"
        first = self.watch.report(own)
        self.watch.close()
        self.watch.leave()
        if isinstance(error, RankFailed):
            return error
        return None if first.partition(": ")[2] == own else RankFailed(first)


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if type(value) is not Tensor:
            return NotImplemented
        if value.ndim == 0:  # most are: sums and counts of metrics
            return _load_scalar, (value.item(), value.dtype)
        data = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return _load_tensor, (data, value.dtype, tuple(value.shape))


def dump(value: Any) -> bytes:
    """`pickle.dumps`, with CPU tensors as their bytes."""
    written = io.BytesIO()
    _Pickler(written, pickle.HIGHEST_PROTOCOL).dump(value)
    return written.getvalue()


def _load_scalar(value: float, dtype: torch.dtype) -> Tensor:
    return torch.tensor(value, dtype=dtype)


def _load_tensor(data: bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    return (
        torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0, dtype=dtype)
    ).view(shape)


def _on_cpu(value: Any) -> Any:
    """Tensors in dicts, lists and tuples, ready to be sent."""
    if isinstance(value, Tensor):
        return value.detach().cpu()
    if isinstance(value, Mapping):
        return {name: _on_cpu(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_on_cpu(each) for each in value]
    if isinstance(value, tuple):
        return (
            type(value)(*map(_on_cpu, value))
            if hasattr(value, "_fields")
            else tuple(map(_on_cpu, value))
        )
    return value


def local_rank() -> int:
    """The number of this process on its machine, which is the number of its GPU."""
    return int(os.environ.get("LOCAL_RANK", os.environ.get("RANK", "0")))


def world_size() -> int:
    """How many processes the launcher started; 1 without one."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def _timeout() -> float:
    text = os.environ.get(TIMEOUT, "1800")
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < 10**7:
        raise ValueError(
            f"{TIMEOUT}={text!r}; it is the seconds that a rank waits for the others, above 0"
        )
    return seconds


def join(*, timeout: float, layout: Layout = "auto") -> Ranks:
    """The ranks of this run: those of the launcher that started this process, or this process alone."""
    if world_size() == 1:
        return Ranks(layout)
    missing = [name for name in VARIABLES if name not in os.environ]
    if missing:
        raise ValueError(
            f"WORLD_SIZE={world_size()}, but {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set; "
            "start the processes with torchrun, with --processes, or set torchrun's variables (docs/scale.md)"
        )
    if torch.cuda.is_available() and local_rank() >= torch.cuda.device_count():
        raise ValueError(
            f"LOCAL_RANK={local_rank()}, but {torch.cuda.device_count()} GPUs are visible; start one process for each "
            'GPU, or train on the CPU with CUDA_VISIBLE_DEVICES=""'
        )
    return DistributedRanks(int(os.environ["RANK"]), world_size(), timeout=timeout, layout=layout)


@contextmanager
def process_group(*, timeout: float | None = None, layout: Layout = "auto") -> Iterator[Ranks]:
    """The ranks of this run. A rank that fails ends all others; rank 0 raises the error of whoever failed first.

    `timeout` is how many seconds a rank waits for the others; by default ASCENT_RANK_TIMEOUT, or half an hour.
    """
    ranks = join(timeout=_timeout() if timeout is None else timeout, layout=layout)
    if not isinstance(ranks, DistributedRanks):
        yield ranks
        return
    try:
        yield ranks
        ranks.barrier("the end of the run")
    except BaseException as error:
        of_another = ranks.fail(error)
        if not ranks.is_first:
            if of_another is None and not isinstance(error, ValueError | OSError):
                traceback.print_exc()
            sys.stderr.flush()
            os._exit(EXIT_STATUS)  # leaving a group of which a rank is gone may take forever
        if of_another is None or of_another is error:
            raise
        raise of_another from error
    ranks.close()
