"""The engine: add requests, step, collect completions; or all at once with `sample`.

A completion depends on the model and its request only: not on the other requests, their order, or the sizes of blocks
and batches. The weights are the learner's own tensors, read in place at every step.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray

from ascent.engines.counter_rng import request_key
from ascent.engines.native.batch_state import MAX_STOP_IDS, BatchState
from ascent.engines.native.output_buffer import OutputBuffer
from ascent.engines.native.runner import MIN_BATCH, PromptBlocks, Runner
from ascent.engines.native.scheduler import Admission, Move, Scheduler, Sequence
from ascent.engines.native.sizing import create_block_manager, default_max_num_seqs, layer_shapes
from ascent.models.model import LanguageModel, max_sequence_length
from ascent.models.paged_attention import allocate_kv_cache
from ascent.models.prefix_groups import MEMBERS
from ascent.models.probe import embedding_rows
from ascent.progress import add_tokens
from ascent.protocols import Weights
from ascent.records import Completion, Request, RoutedExperts, Stop

PREFILL_AHEAD = 256  # tokens: on a CPU a few short prompts take hardly longer than one
MEMORY_FRACTION = 0.5  # of the free memory, for the KV cache
DEFAULT_MAX_LEN = 32768  # tokens of a sequence if the model's config has no limit
STEPS_PER_SYNC = 16
LONGER_SYNC = 2  # times as many steps on CUDA, where the host's share counts, if nothing waits for a row to end
# Of the tokens that attention reads, how many groups must save to pay, by the number of rows (H200, Qwen2.5-1.5B).
MIN_SAVED_FRACS = ((256, 0.3), (32, 0.5))


@dataclass(frozen=True)
class Stats:
    """Counters of an engine since it was created."""

    num_blocks: int  # usable
    block_size: int
    kv_cache_bytes: int  # at most
    used_blocks: int  # now
    peak_used_blocks: int
    peak_shared_blocks: int  # blocks that several sequences held at once
    preemptions: int
    requests: int  # completed
    tokens: int  # of completions
    prefill_tokens: int
    seconds: float
    useful_frac: float  # share of computed tokens that were not padding or discarded


class NativeEngine:
    """Implements `protocols.Sampler` on the learner's own modules. `stop_ids` end a completion and belong to it.

    `max_num_seqs` sequences run at once (`sizing.default_max_num_seqs`). The KV cache has `num_blocks` blocks of
    `block_size` tokens (64 on CUDA, elsewhere 16); by default it is sized once, from `memory_fraction` of the free
    memory, for at most `max_num_seqs` sequences of `max_model_len` tokens. The host reads the device every
    `steps_per_sync` decode steps; on a CPU earlier, once waiting requests could start, and on CUDA later, while none
    wait.
    """

    def __init__(
        self,
        model: LanguageModel,
        stop_ids: Iterable[int],
        *,
        max_num_seqs: int | None = None,
        block_size: int | None = None,
        num_blocks: int | None = None,
        max_model_len: int | None = None,
        memory_fraction: float = MEMORY_FRACTION,
        steps_per_sync: int = STEPS_PER_SYNC,
    ) -> None:
        self.model, self.stop_ids, self.version = model, frozenset(stop_ids), 0
        self.steps_per_sync = steps_per_sync  # may be lowered between two steps, and raised again
        self._most_steps = LONGER_SYNC * steps_per_sync
        limit = max_sequence_length(model.module.config)
        self.max_model_len = min(max_model_len or DEFAULT_MAX_LEN, limit or DEFAULT_MAX_LEN)
        self._check_arguments(max_num_seqs, memory_fraction)
        self._layers = layer_shapes(model)
        self.max_num_seqs = max_num_seqs or default_max_num_seqs(
            model, self._layers, self.max_model_len
        )
        self._blocks = create_block_manager(
            model,
            self._layers,
            num_blocks=num_blocks,
            block_size=block_size,
            memory_fraction=memory_fraction,
            max_tokens=(self.max_num_seqs, self.max_model_len),
        )
        prefill_ahead = 0 if model.device.type == "cuda" else PREFILL_AHEAD
        self._scheduler = Scheduler(self._blocks, self.max_num_seqs, prefill_ahead)
        routes = model.routes
        experts = None if routes is None else torch.zeros(routes[:2], dtype=routes.dtype).numpy()
        self._outputs = OutputBuffer(max(self.max_num_seqs, MIN_BATCH), experts)
        self._runner: Runner | None = None
        self._prefill_tokens = self._tokens = self._requests = self._peak_used = (
            self._peak_shared
        ) = 0
        self._seconds, self._peak_kv_cache_bytes = 0.0, 0
        self._active: set[tuple[str, int]] = set()
        self._grouped = False  # rows that share a prompt read it together

    def _check_arguments(self, max_num_seqs: int | None, memory_fraction: float) -> None:
        if "logprobs_T" not in self.model.offers:
            raise ValueError(
                "this model has no token head, so nothing can be sampled; load it with head='tokens'"
            )
        if self.model.device.type not in ("cpu", "cuda"):
            raise ValueError(
                f"the native engine runs on a CPU or on CUDA, not on {self.model.device}; load it there"
            )
        if not self.stop_ids:
            raise ValueError(
                "a sampler without stop ids runs every completion to its budget; give the EOS id"
            )
        if (max_num_seqs is not None and max_num_seqs < 1) or self.steps_per_sync < 1:
            raise ValueError(
                f"max_num_seqs={max_num_seqs}, steps_per_sync={self.steps_per_sync}: both must be >= 1"
            )
        if not 0 < memory_fraction < 1:
            raise ValueError(
                f"memory_fraction={memory_fraction} is a share of the free memory: between 0 and 1"
            )

    def sample(self, requests: Iterable[Request]) -> Iterator[Completion]:
        """Yield completions as they finish, larger budgets first. Bad requests are refused before anything runs."""
        if not self._scheduler.idle:
            raise RuntimeError(
                "requests are still running; collect them with step(), or close() the engine first"
            )
        try:
            # Longest first: started last, a long request would run alone. The sort is stable for equal budgets.
            for request in sorted(requests, key=lambda each: -each.max_new_tokens):
                self.add(request)
            while self._active:
                yield from self.step()
        finally:
            self._abort_all()

    @property
    def longest_sequence(self) -> int:
        """Tokens of a prompt with its completion: `max_model_len`, or what a smaller KV cache holds."""
        return min(self.max_model_len, self._blocks.num_usable * self._blocks.block_size)

    def check(self, request: Request, *, only_prompt: bool = False) -> None:
        """ValueError for a request that this engine can never complete; `only_prompt`: nothing will be sampled."""
        owner, new = (
            f"request {request.prompt_id!r}/{request.sample}",
            0 if only_prompt else request.max_new_tokens,
        )
        total = len(request.tokens) + new
        if total > self.max_model_len:
            raise ValueError(
                f"{owner}: {len(request.tokens)} prompt tokens and max_new_tokens={new} make "
                f"{total}, but a sequence holds {self.max_model_len}; shorten the prompt or lower max_new_tokens"
            )
        needed = self._blocks.blocks_needed(total)
        if needed > self._blocks.num_usable:
            raise ValueError(
                f"{owner}: {total} tokens need {needed} blocks of {self._blocks.block_size}, but the KV cache has "
                f"{self._blocks.num_usable}; give more memory, or lower max_new_tokens"
            )
        vocabulary = embedding_rows(self.model.module)
        for token in (min(request.tokens, default=0), max(request.tokens, default=0)):
            if not 0 <= token < vocabulary:
                raise ValueError(
                    f"{owner}: token {token} in a vocabulary of {vocabulary}; render with this model"
                )
        if any(not 0 <= token < vocabulary for token in request.stop_ids):
            raise ValueError(
                f"{owner}: stop ids {sorted(request.stop_ids)} in a vocabulary of {vocabulary}"
            )
        stops = len(self.stop_ids.union(request.stop_ids))
        if stops > MAX_STOP_IDS:
            raise ValueError(
                f"{owner}: {stops} stop ids, but at most {MAX_STOP_IDS} are supported; use stop texts"
            )

    def add(self, request: Request, begun: Completion | None = None) -> None:
        """Queue one request; an impossible one is refused here, without effect on the others.

        It goes on from `begun`, what the request had when it was interrupted: these tokens stay, with their log-probs.
        """
        self.check(request)
        if (key := (request.prompt_id, request.sample)) in self._active:
            raise ValueError(
                f"request {key[0]!r}/{key[1]} is running already; give samples of a prompt other numbers"
            )
        self._outputs.reserve(request.max_new_tokens)
        self._active.add(key)
        self._scheduler.add(request, begun)

    @torch.no_grad()
    def step(self) -> list[Completion]:
        """Start waiting requests, sample up to `steps_per_sync` tokens for all running ones, return the finished."""
        start = time.perf_counter()
        runner, scheduler = self._ready_runner(), self._scheduler
        with _eval_mode(self.model):
            old = len(scheduler.running)
            self._start(runner, scheduler.admit(), old)
            first = np.ones(len(scheduler.running), dtype=np.int64)
            first[old:] = 0
            cached_lens = runner.state.host("cached_len").tolist()
            has_stop_text = any(
                each.request.stop for each in scheduler.running
            )  # which only the host checks
            steps = self._num_steps(runner, wait=not has_stop_text and not scheduler.waiting)
            if preempted := scheduler.allocate_decode_blocks(cached_lens, steps):
                first = self._preempt(runner, preempted, first)
            runner.kv_cache.grow(self._blocks.highest + 1)
            self._update_block_table(runner)
            if scheduler.running:
                truncates = any(each.request.truncates for each in scheduler.running)
                min_running = len(scheduler.running) if has_stop_text else scheduler.min_running
                runner.decode(
                    len(scheduler.running),
                    steps,
                    truncates=truncates,
                    min_running=min_running,
                    grouped=self._grouped,
                )
            self._peak_used = max(self._peak_used, self._blocks.num_used)
            completions = self._collect(runner, first)
        if scheduler.idle:
            self._shrink(runner)
        self._seconds += time.perf_counter() - start
        return completions

    def _num_steps(self, runner: Runner, *, wait: bool) -> int:
        """Decode steps until the next host sync, which can `wait`; on CUDA no more than the longest budget needs."""
        steps, count = self.steps_per_sync, len(self._scheduler.running)
        if self.model.device.type != "cuda" or not count:
            return steps
        if wait and self._blocks.num_free >= count * self._blocks.blocks_needed(
            LONGER_SYNC * steps
        ):
            steps *= LONGER_SYNC
        ahead_B = (
            runner.state.host("max_output_len")[:count] - runner.state.host("output_len")[:count]
        )
        return min(steps, max(1, int(ahead_B.max())))

    def set_weights(self, version: int, tensors: Weights) -> None:
        """The tensors are the model's own. Cached prompts were computed with the old ones and are dropped."""
        self.version = version
        self._scheduler.clear_prefix_cache()

    def _shrink(self, runner: Runner) -> None:
        """Give the memory of the KV cache back, where that is possible without losing graphs."""
        if runner.kv_cache.memory is not None:
            self._peak_kv_cache_bytes = max(self._peak_kv_cache_bytes, runner.kv_cache.bytes)
            self._scheduler.clear_prefix_cache()
            self._blocks.reset()
            runner.kv_cache.shrink()

    def close(self) -> None:
        self._abort_all()
        self._runner = None

    def stats(self) -> Stats:
        computed, useful = (
            self._runner.computed_tokens if self._runner else 0,
            self._prefill_tokens + self._tokens,
        )
        return Stats(
            num_blocks=self._blocks.num_usable,
            block_size=self._blocks.block_size,
            kv_cache_bytes=max(
                self._peak_kv_cache_bytes, self._runner.kv_cache.bytes if self._runner else 0
            ),
            used_blocks=self._blocks.num_used,
            peak_used_blocks=self._peak_used,
            peak_shared_blocks=self._peak_shared,
            preemptions=self._scheduler.num_preemptions,
            requests=self._requests,
            tokens=self._tokens,
            prefill_tokens=self._prefill_tokens,
            seconds=self._seconds,
            useful_frac=min(1.0, useful / computed) if computed else 1.0,
        )

    def _ready_runner(self) -> Runner:
        if self._runner is None:
            device, blocks = self.model.device, self._blocks
            kv_cache = allocate_kv_cache(
                self._layers,
                blocks.num_blocks,
                blocks.block_size,
                dtype=self.model.module.dtype,
                device=device,
            )
            max_rows = max(self.max_num_seqs, MIN_BATCH)
            state = BatchState(max_rows, blocks.blocks_needed(self.max_model_len), device)
            self._runner = Runner(self.model, kv_cache, state, self._most_steps)
        return self._runner

    def _start(self, runner: Runner, admission: Admission, old: int) -> None:
        """Prefill new prompts, copy shared blocks that will be written to, sample first tokens."""
        for row, (sequence, _) in enumerate(admission.started, start=old):
            request = sequence.request
            key = request_key(request.seed, request.prompt_id, request.sample)
            runner.state.start(row, request, self.stop_ids, key, len(sequence.output_tokens))
            sequence.num_table_blocks = 0
            self._outputs.start(row, sequence)
        if admission.started:
            self._group_rows(runner)
        runner.state.push()
        if not admission.started:
            return
        runner.kv_cache.grow(self._blocks.highest + 1)
        prompts = [
            PromptBlocks(prefix.tokens, prefix.block_ids) for prefix in admission.new_prefixes
        ]
        self._prefill_tokens += sum(len(prompt.tokens) for prompt in prompts)
        for prefix, output in zip(admission.new_prefixes, runner.prefill(prompts), strict=True):
            prefix.last_hidden = output.hidden_D
            if output.experts_TLC is not None:
                prefix.experts, prefix.last_experts = (
                    output.experts_TLC[:-1].tobytes(),
                    output.experts_TLC[-1],
                )
        if admission.block_copies:
            runner.kv_cache.copy_blocks(
                *(list(ids) for ids in zip(*admission.block_copies, strict=True))
            )
        self._peak_shared = max(self._peak_shared, self._blocks.num_shared)
        truncates = any(sequence.request.truncates for sequence, _ in admission.started)
        for sequence, prefix in admission.started:
            if (
                not sequence.output_tokens
            ):  # a preempted one keeps the experts that it was sampled with
                sequence.prompt_experts = prefix.experts
        prefixes = [prefix for _, prefix in admission.started]
        hidden, experts = (
            [each.last_hidden for each in prefixes],
            [each.last_experts for each in prefixes],
        )
        runner.sample_first(hidden, experts, range(old, old + len(prefixes)), truncates=truncates)

    def _group_rows(self, runner: Runner) -> None:
        """Group the rows that share a prompt, on CUDA, if that saves a good part of what attention reads."""
        if self.model.device.type != "cuda":
            return
        groups = self._scheduler.prefix_groups(MEMBERS)
        saved = sum(length * (len(rows) - 1) for length, rows in groups)
        state, count = runner.state, len(self._scheduler.running)
        ahead_B = (state.host("max_output_len") - state.host("output_len"))[
            :count
        ] / 2  # on average, at most
        read = (state.host("cached_len")[:count] + ahead_B).sum()
        self._grouped = any(count >= rows and saved > frac * read for rows, frac in MIN_SAVED_FRACS)
        runner.state.set_prefix_groups(groups if self._grouped else ())

    def _update_block_table(self, runner: Runner) -> None:
        """Write new blocks into the block table."""
        for row, sequence in enumerate(self._scheduler.running):
            start, end = sequence.num_table_blocks, len(sequence.block_ids)
            if start < end:
                runner.state.block_table[row, start:end] = sequence.block_ids[start:]
                sequence.num_table_blocks = end
        runner.state.push_block_table()

    def _preempt(
        self, runner: Runner, preempted: list[int], first: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Save the output of the preempted rows and close the gaps; returns `first` for the rows that go on."""
        self._sync_outputs(runner, first)
        # A row that ended with its first token needs no blocks any more: it is collected with the others.
        preempted = [row for row in preempted if not runner.state.host("done")[row]]
        for row in preempted:
            self._outputs.save(row, self._scheduler.running[row])
        self._move_rows(runner, self._scheduler.preempt(preempted))
        return np.ones(len(self._scheduler.running), dtype=np.int64)

    def _collect(self, runner: Runner, first: NDArray[np.int64]) -> list[Completion]:
        """Sync the outputs; end and return the rows that are done."""
        self._sync_outputs(runner, first)
        done, ended, completions = runner.state.host("done"), [], []
        for row, sequence in enumerate(self._scheduler.running):
            if done[row] or sequence.request.stop:
                completion = self._completion(row, sequence, bool(done[row]))
                if completion is not None:
                    ended.append(row)
                    completions.append(completion)
        if ended:
            self._move_rows(runner, self._scheduler.finish(ended))
        self._requests += len(completions)
        self._tokens += sum(len(each.tokens) for each in completions)
        self._active -= {(each.prompt_id, each.sample) for each in completions}
        return completions

    def _sync_outputs(self, runner: Runner, first: NDArray[np.int64]) -> None:
        """Append what was sampled since the last sync; row i's new tokens begin at decode step `first[i]`."""
        runner.state.pull()
        counts = runner.state.host("output_len")[: len(first)] - self._outputs.lengths[: len(first)]
        self._outputs.append(runner.outputs(), first, counts, self.version)
        add_tokens(int(counts.sum()))

    def _move_rows(self, runner: Runner, moves: list[Move]) -> None:
        for move in moves:
            runner.state.move(*move)
            self._outputs.move(*move)
        runner.state.clear(range(len(self._scheduler.running), runner.state.max_rows))
        self._group_rows(runner)
        runner.state.push()

    def _completion(self, row: int, sequence: Sequence, done: bool) -> Completion | None:
        """The completion of a row that has ended by stop id, stop text or budget; None if it has not."""
        request, tokens = sequence.request, self._outputs.tokens(row)
        end = _stop_text_end(self.model, tokens, request) if request.stop else None
        if end is None and not done:
            return None
        self._outputs.save(row, sequence)
        stop: Stop = (
            "eos"
            if tokens[-1] in self.stop_ids
            else "stop"
            if tokens[-1] in request.stop_ids
            else "length"
        )
        if end is not None and (end < len(tokens) or stop == "length"):
            stop = "stop"
        routes, experts = self.model.routes, None
        if routes is not None:
            width = cast(Literal[1, 2], routes.dtype.itemsize)
            sampled: Any = sequence.experts[:end]
            experts = RoutedExperts(
                sequence.prompt_experts, sampled.tobytes(), routes.layers, routes.choices, width
            )
        return Completion(
            prompt_id=request.prompt_id,
            sample=request.sample,
            tokens=tuple(tokens[:end]),
            logprobs=tuple(sequence.logprobs[:end]),
            versions=tuple(sequence.versions[:end]),
            stop=stop,
            log_mass=tuple(sequence.log_mass[:end]) if request.truncates else None,
            routed_experts=experts,
        )

    def _abort_all(self) -> None:
        self._scheduler.clear()
        self._active.clear()
        if self._runner is not None:
            self._runner.state.clear(range(self._runner.state.max_rows))
            self._runner.state.push()
            self._shrink(self._runner)


def _stop_text_end(model: LanguageModel, tokens: list[int], request: Request) -> int | None:
    """How many tokens it takes until a stop text appears; None if none does."""

    def has_stop(count: int) -> bool:
        text = str(model.tokenizer.decode(tokens[:count]))
        return any(stop in text for stop in request.stop)

    if not tokens or not has_stop(len(tokens)):
        return None
    return 1 + bisect_left(range(1, len(tokens)), True, key=has_stop)


@contextmanager
def _eval_mode(model: LanguageModel) -> Iterator[None]:
    """Sample without dropout; the learner's mode is restored."""
    training = model.module.training
    if training:
        model.eval()
    try:
        yield
    finally:
        if training:
            model.train()
