"""The engine as its callers see it: add requests, step, collect completions; or all at once through `sample`.

What a request gets depends on the model, the request and nothing else: not on its neighbours, not on the order, not on
the size of pages or batches. The weights are the learner's own tensors, read where they lie at every step.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray

from ascent.engines.counter_rng import words
from ascent.engines.native.batch_state import MOST_STOPS, BatchState
from ascent.engines.native.block_manager import BlockManager
from ascent.engines.native.cpu_graph import worth_recording
from ascent.engines.native.output_buffer import OutputBuffer
from ascent.engines.native.runner import FEWEST_ROWS, Runner, Stored
from ascent.engines.native.scheduler import Admission, Move, Scheduler, Sequence
from ascent.models.model import LanguageModel, longest
from ascent.models.paged_attention import allocate
from ascent.models.probe import embedding_rows, layer_calls
from ascent.protocols import Weights
from ascent.records import Completion, Request, RoutedExperts, Stop

AHEAD = 256  # tokens: on a CPU a few short prompts take hardly longer than one, so the next ones come along
MEMORY = 0.5  # share of the free memory that the pool may take
UNBOUNDED = 32768  # tokens of a row where the model names no limit
MANY, MANY_BYTES = 256, 2**27  # rows of a small model on a CPU, and what their pool may take


@dataclass(frozen=True)
class Stats:
    """What an engine did since it was made."""

    pages: int  # that can be used
    page: int  # tokens of one
    pool_bytes: int
    used: int  # pages, now
    most_used: int
    most_shared: int  # pages that more than one sequence held at once
    preemptions: int
    requests: int  # completed
    tokens: int  # sampled and kept
    prefilled: int  # prompt tokens computed
    seconds: float
    kept: float  # share of computed tokens that were prompts' or kept; the rest filled batches up or was drawn in vain

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0


class NativeEngine:
    """Implements `protocols.Sampler` on the learner's own modules. `stop_ids` end a completion and belong to it.

    `rows` sequences run at once (512 on CUDA; elsewhere 64, or 256 of a small model: see `_rows`). The pool has `pages`
    pages of `page` tokens (64 on CUDA, elsewhere 16); unless given, it is sized once, from what is free, to hold at
    most `rows` sequences of `longest_sequence` tokens. The host looks at the device every `steps` tokens; on a CPU
    earlier, once enough rows have ended.
    """

    def __init__(
        self,
        model: LanguageModel,
        stop_ids: Iterable[int],
        *,
        rows: int | None = None,
        page: int | None = None,
        pages: int | None = None,
        longest_sequence: int | None = None,
        memory: float = MEMORY,
        steps: int | None = None,
    ) -> None:
        self.model, self.stop_ids, self.version = model, frozenset(stop_ids), 0
        self.steps = 16 if steps is None else steps
        self.longest = min(longest_sequence or UNBOUNDED, longest(model.module.config) or UNBOUNDED)
        self._refuse(rows, memory)
        self._layers = _cached(model)
        self._token = sum(heads * (key + value) for heads, key, value in self._layers) * model.module.dtype.itemsize
        self.rows = self._rows() if rows is None else rows
        self._pages = self._sized(page, pages, memory)
        self._scheduler = Scheduler(self._pages, self.rows, 0 if model.device.type == "cuda" else AHEAD)
        self._history = OutputBuffer(max(self.rows, FEWEST_ROWS), self._route())
        self._runner: Runner | None = None
        self._computed = self._prefilled = self._tokens = self._requests = self._most_used = self._most_shared = 0
        self._seconds = 0.0
        self._known: set[tuple[str, int]] = set()

    def _route(self) -> NDArray[Any] | None:
        """How the experts of one token look; None where they are not recorded."""
        routes = self.model.routes
        return None if routes is None else torch.zeros(routes[:2], dtype=routes.dtype).numpy()

    def _rows(self) -> int:
        """On a CPU a step of a small model is mostly beginnings, whatever its size: many rows share one if they fit."""
        if self.model.device.type == "cuda":
            return 512
        many = worth_recording(self.model) and MANY * self.longest * self._token <= MANY_BYTES
        return MANY if many else 64

    def _sized(self, page: int | None, pages: int | None, memory: float) -> BlockManager:
        page = page or (64 if self.model.device.type == "cuda" else 16)
        free, token = _free_bytes(self.model.device), self._token
        count = pages or min(1 + self.rows * -(-self.longest // page), int(memory * free) // (token * page))
        if pages is None and count < 2:
            raise ValueError(
                f"{free / 2**20:.0f} MiB are free, {memory:.0%} of which hold no page of {token * page} bytes; free "
                "some memory, or raise memory="
            )
        return BlockManager(count, page)

    def _refuse(self, rows: int | None, memory: float) -> None:
        if "logprobs_T" not in self.model.offers:
            raise ValueError("this model has no token head, so nothing can be sampled; load it with head='tokens'")
        if not self.stop_ids:
            raise ValueError("a sampler without stop ids runs every completion to its budget; give the EOS id")
        if (rows is not None and rows < 1) or self.steps < 1:
            raise ValueError(f"rows={rows}, steps={self.steps}: both count from 1")
        if not 0 < memory < 1:
            raise ValueError(f"memory={memory} is a share of what is free; it must lie between 0 and 1")

    def sample(self, requests: Iterable[Request]) -> Iterator[Completion]:
        """All completions, as they finish, larger budgets first. A bad request is refused before anything runs."""
        if not self._scheduler.idle:
            raise RuntimeError("requests are still on their way; collect them with step(), or close() the engine first")
        try:
            # Started last, the longest would run on alone. Where budgets are equal, as is usual, the order stays.
            for request in sorted(requests, key=lambda each: -each.max_new_tokens):
                self.add(request)
            while self._known:
                yield from self.step()
        finally:
            self._forget()

    def add(self, request: Request) -> None:
        """Queue one request; an impossible one is refused here and leaves the others alone."""
        owner, total = f"request {request.prompt_id!r}/{request.sample}", len(request.tokens) + request.max_new_tokens
        if total > self.longest:
            raise ValueError(
                f"{owner}: {len(request.tokens)} prompt tokens and max_new_tokens={request.max_new_tokens} make "
                f"{total}, but a sequence holds {self.longest}; shorten the prompt or lower max_new_tokens"
            )
        if self._pages.needed(total) > self._pages.usable:
            raise ValueError(
                f"{owner}: {total} tokens need {self._pages.needed(total)} pages of {self._pages.size}, but the whole "
                f"pool has {self._pages.usable}; give more memory, or lower max_new_tokens"
            )
        vocabulary = embedding_rows(self.model.module)
        strange = [token for token in request.tokens if not 0 <= token < vocabulary]
        if strange:
            raise ValueError(f"{owner}: token {strange[0]} in a vocabulary of {vocabulary}; render with this model")
        stops = len(self.stop_ids.union(request.stop_ids))
        if stops > MOST_STOPS:
            raise ValueError(f"{owner}: {stops} stop ids, but at most {MOST_STOPS} are watched; use stop texts instead")
        if (request.prompt_id, request.sample) in self._known:
            raise ValueError(f"{owner} is on its way already; number the samples of a prompt apart")
        self._known.add((request.prompt_id, request.sample))
        self._history.reserve(request.max_new_tokens)
        self._scheduler.add(request)

    @torch.no_grad()
    def step(self) -> list[Completion]:
        """Start whoever can start, draw up to `steps` tokens for all who run, and return those that finished."""
        began = time.perf_counter()
        runner, scheduler = self._ready(), self._scheduler
        with _evaluating(self.model):
            old = len(scheduler.running)
            self._start(runner, scheduler.admit(), old)
            first = np.ones(len(scheduler.running), dtype=np.int64)
            first[old:] = 0
            stopped = scheduler.grow(runner.rows.host("stored").tolist(), self.steps)
            if stopped:
                first = self._preempt(runner, stopped, first)
            self._list_pages(runner)
            if scheduler.running:
                cut = any(each.request.truncates for each in scheduler.running)
                texts = any(each.request.stop for each in scheduler.running)  # only the host can tell when they come
                enough = len(scheduler.running) if texts else scheduler.enough
                runner.decode(len(scheduler.running), cut=cut, enough=enough)
            self._most_used = max(self._most_used, self._pages.used)
            done = self._collect(runner, first)
        self._seconds += time.perf_counter() - began
        return done

    def set_weights(self, version: int, tensors: Weights) -> None:
        """The tensors are the model's own. Prompts that wait in the pool were computed with the old ones: they go."""
        self.version = version
        self._scheduler.clear_prefix_cache()

    def release_kv_cache(self) -> None:
        """Give the pool's memory back until the next request; on CUDA the graphs go with it and are captured anew."""
        if not self._scheduler.idle:
            raise RuntimeError("the pool cannot be lent while requests are on their way")
        self._runner = None

    def close(self) -> None:
        self._forget()
        self._runner = None

    def stats(self) -> Stats:
        computed = self._computed + (self._runner.computed if self._runner else 0)
        useful = self._prefilled + self._tokens
        return Stats(
            pages=self._pages.usable, page=self._pages.size, pool_bytes=self._runner.pool.bytes if self._runner else 0,
            used=self._pages.used, most_used=self._most_used, most_shared=self._most_shared,
            preemptions=self._scheduler.preemptions, requests=self._requests, tokens=self._tokens,
            prefilled=self._prefilled, seconds=self._seconds, kept=min(1.0, useful / computed) if computed else 1.0,
        )  # fmt: skip

    def _ready(self) -> Runner:
        if self._runner is None:
            device, dtype = self.model.device, self.model.module.dtype
            pool = allocate(self._layers, self._pages.count, self._pages.size, dtype=dtype, device=device)
            rows = BatchState(max(self.rows, FEWEST_ROWS), self._pages.needed(self.longest), device)
            self._runner = Runner(self.model, pool, rows, self.steps)
        return self._runner

    def _start(self, runner: Runner, admission: Admission, old: int) -> None:
        """Prefill what is new, copy what is shared and written to, draw first tokens."""
        for row, (sequence, _) in enumerate(admission.started, start=old):
            request = sequence.request
            key = words(request.seed, request.prompt_id, request.sample)
            runner.rows.start(row, request, self.stop_ids, key, len(sequence.made))
            sequence.listed = 0
            self._history.start(row, sequence)
        runner.rows.push()
        if not admission.started:
            return
        prompts = [Stored(prefix.tokens, prefix.pages) for prefix in admission.prefilled]
        self._prefilled += sum(len(prompt.tokens) for prompt in prompts)
        for prefix, read in zip(admission.prefilled, runner.prefill(prompts), strict=True):
            prefix.last = read.hidden_D
            if read.experts_TLC is not None:
                prefix.experts, prefix.last_experts = read.experts_TLC[:-1].tobytes(), read.experts_TLC[-1]
        if admission.copies:
            runner.pool.copy_pages(*(list(pages) for pages in zip(*admission.copies, strict=True)))
        self._most_shared = max(self._most_shared, self._pages.shared)
        cut = any(sequence.request.truncates for sequence, _ in admission.started)
        rows = range(old, old + len(admission.started))
        for sequence, prefix in admission.started:
            if not sequence.made:  # one that was preempted keeps those it was sampled with
                sequence.prompt_experts = prefix.experts
        prefixes = [prefix for _, prefix in admission.started]
        runner.first([each.last for each in prefixes], [each.last_experts for each in prefixes], rows, cut=cut)

    def _list_pages(self, runner: Runner) -> None:
        """Write into the table what the rows were given."""
        for row, sequence in enumerate(self._scheduler.running):
            if sequence.listed < len(sequence.pages):
                runner.rows.table[row, sequence.listed : len(sequence.pages)] = sequence.pages[sequence.listed :]
                sequence.listed = len(sequence.pages)
        runner.rows.push_table()

    def _preempt(self, runner: Runner, stopped: list[int], first: NDArray[np.int64]) -> NDArray[np.int64]:
        """Save what the stopped rows drew and close the gaps; returns `first` for the rows that go on."""
        self._note(runner, first)
        # One that ended with its first token needs no pages any more: it is collected with the others.
        stopped = [row for row in stopped if not runner.rows.host("done")[row]]
        for row in stopped:
            self._history.save(row, self._scheduler.running[row])
        self._close(runner, self._scheduler.preempt(stopped))
        return np.ones(len(self._scheduler.running), dtype=np.int64)

    def _collect(self, runner: Runner, first: NDArray[np.int64]) -> list[Completion]:
        """Bring home what was drawn; end and return the rows that are done."""
        self._note(runner, first)
        running, ended, completions = self._scheduler.running, [], []
        done = runner.rows.host("done")
        for row in range(len(running)):
            if done[row] or running[row].request.stop:
                completion = self._finished(row, running[row], bool(done[row]))
                if completion is not None:
                    ended.append(row)
                    completions.append(completion)
        if ended:
            self._close(runner, self._scheduler.finish(ended))
        self._requests += len(completions)
        self._tokens += sum(len(each.tokens) for each in completions)
        self._known -= {(each.prompt_id, each.sample) for each in completions}
        return completions

    def _note(self, runner: Runner, first: NDArray[np.int64]) -> None:
        """Move what the device drew since the last look into the history."""
        runner.rows.pull()
        counts = runner.rows.host("position")[: len(first)] - self._history.made[: len(first)]
        self._history.append(runner.drawn(), first, counts, self.version)

    def _close(self, runner: Runner, moves: list[Move]) -> None:
        for move in moves:
            runner.rows.move(*move)
            self._history.move(*move)
        runner.rows.clear(range(len(self._scheduler.running), runner.rows.count))
        runner.rows.push()

    def _finished(self, row: int, sequence: Sequence, done: bool) -> Completion | None:
        """The completion of a row that has ended, by its stop ids, its stop texts or its budget."""
        request, tokens = sequence.request, self._history.tokens(row)
        keep = _until_text(self.model, tokens, request) if request.stop else None
        if keep is None and not done:
            return None
        self._history.save(row, sequence)
        stop: Stop = "eos" if tokens[-1] in self.stop_ids else "stop" if tokens[-1] in request.stop_ids else "length"
        if keep is not None and (keep < len(tokens) or stop == "length"):
            stop = "stop"
        kept = slice(keep)
        return Completion(
            prompt_id=request.prompt_id, sample=request.sample, tokens=tuple(tokens[kept]),
            logprobs=tuple(sequence.logprobs[kept]), versions=tuple(sequence.versions[kept]), stop=stop,
            log_mass=tuple(sequence.log_mass[kept]) if request.truncates else None,
            routed_experts=self._routed(sequence, kept),
        )  # fmt: skip

    def _routed(self, sequence: Sequence, kept: slice) -> RoutedExperts | None:
        routes = self.model.routes
        if routes is None:
            return None
        sampled = sequence.experts[kept].tobytes()
        width = cast(Literal[1, 2], routes.dtype.itemsize)
        return RoutedExperts(sequence.prompt_experts, sampled, routes.layers, routes.choices, width)

    def _forget(self) -> None:
        """Drop whoever is still on the way, so that the next call starts clean."""
        self._scheduler.clear()
        self._known.clear()
        if self._runner is not None:
            self._runner.rows.clear(range(self._runner.rows.count))
            self._runner.rows.push()


def _until_text(model: LanguageModel, tokens: list[int], request: Request) -> int | None:
    """How many tokens it takes until a stop text has appeared; None if none has."""

    def stopped(count: int) -> bool:
        text = str(model.tokenizer.decode(tokens[:count]))
        return any(stop in text for stop in request.stop)

    if not tokens or not stopped(len(tokens)):
        return None
    low, high = 1, len(tokens)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if stopped(middle) else (middle + 1, high)
    return low


def _cached(model: LanguageModel) -> list[tuple[int, int, int]]:
    """What each layer stores for a token, asked of the model itself."""
    calls = layer_calls(model.module)
    layers = [call.layer for call in calls]
    if layers != list(range(len(calls))):
        raise ValueError(
            f"{type(model.module).__name__} runs its layers in the order {layers}; a cache needs each of them once"
        )
    return [call.heads for call in calls]


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def _evaluating(model: LanguageModel) -> Iterator[None]:
    """Sampling runs without dropout, whatever mode the learner left the model in."""
    training = model.module.training
    if training:
        model.eval()
    try:
        yield
    finally:
        if training:
            model.train()
