"""Forwards of the learner's modules: packed prefill, then one decode token per row.

On CUDA a decode step (forward, attention, sampling, bookkeeping) is one graph per batch size, captured when first
needed; weights are read in place, so an update needs no new graph. On a CPU the forward is eager, or a CPU graph if the
model is small, and the rest is `cpu_step`. Batches are padded to a few sizes: graphs have fixed ones, and on a CPU a
matrix product of one row rounds differently.

If the model replays routes in training, the experts of every token are returned with the hidden states.

Axes: T packed tokens, N prompts, B rows, D hidden size, V vocabulary, L layers with experts, C experts of a token,
K decode steps.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ascent.engines.native.batch_state import BatchState
from ascent.engines.native.cpu_graph import Forward, capture, eager_forward, supports_cpu_graph
from ascent.engines.native.cpu_step import CpuStep
from ascent.engines.native.sampling import SamplerOutput, sample_hidden
from ascent.maths.segments import Segments
from ascent.models.attention import attention_context, packed_context
from ascent.models.head import head_logits
from ascent.models.model import LanguageModel, output_head
from ascent.models.paged_attention import CudaDecode, KVCache, Prefill, slot_mapping
from ascent.models.paged_attention_cpu import CompiledDecode
from ascent.models.routing import RoutingRecorder, routing

MIN_BATCH = 2
PREFILL_TOKENS = 16384  # prompts of one eager forward
GRAPH_TOKENS = 256  # longest prompt of a CPU graph, and prompt tokens of one of its forwards
ROW_PROMPT_TOKENS = (
    64  # up to here, where attention is compiled, a CPU graph runs a prompt's tokens as decode rows
)
PROGRAMS, MAX_SPLITS = 512, 64  # CUDA attention is split into about this many programs

PrefillMode = Literal["rows", "graph", "eager"]
MAX_TOKENS: dict[PrefillMode, int] = {
    "rows": GRAPH_TOKENS,
    "graph": GRAPH_TOKENS,
    "eager": PREFILL_TOKENS,
}


class PromptBlocks(NamedTuple):
    """A prompt, and the KV cache blocks that store it."""

    tokens: Sequence[int]
    block_ids: Sequence[int]


class PrefillOutput(NamedTuple):
    """The hidden state at a prompt's last token, and the experts of its tokens if they are recorded."""

    hidden_D: Tensor
    experts_TLC: NDArray[Any] | None


class Runner:
    """Runs `model` over `kv_cache`. Sampled tokens go to `tokens_KB` and its companions; step 0 holds first tokens."""

    def __init__(
        self, model: LanguageModel, kv_cache: KVCache, state: BatchState, max_steps: int
    ) -> None:
        self.model, self.kv_cache, self.state = model, kv_cache, state
        shape, device = (max_steps + 1, state.max_rows), model.device
        self.tokens_KB = torch.zeros(shape, dtype=torch.int32, device=device)
        self.logprobs_KB = torch.zeros(shape, device=device)
        self.log_mass_KB = torch.zeros(shape, device=device)
        self.experts_KBLC: Tensor | None = None  # of the token before each sampled one
        if model.routes is not None:
            self.experts_KBLC = torch.zeros(
                *shape, *model.routes[:2], dtype=model.routes.dtype, device=device
            )
        self._step_index = torch.zeros(1, dtype=torch.int64, device=device)
        self._eager, self._head = eager_forward(model), output_head(model.module)
        self._cpu_graphs: dict[int, Forward] = {}
        self._use_cpu_graphs = supports_cpu_graph(model) and model.routes is None
        self._use_cuda_graphs = supports_cuda_graph(model)
        self._cuda_graphs: dict[tuple[int, bool, bool], torch.cuda.CUDAGraph] = {}
        self._graph_memory: Any = (
            None  # graphs run one after the other, so all share the first one's memory pool
        )
        self.computed_tokens = 0  # padding included
        self._cpu_step = None if device.type == "cuda" else CpuStep(kv_cache, state)

    def prefill(self, prompts: Sequence[PromptBlocks]) -> list[PrefillOutput]:
        """Store these prompts in the KV cache."""
        modes = [self._prefill_mode(len(prompt.tokens)) for prompt in prompts]
        outputs: dict[int, PrefillOutput] = {}
        for mode, max_tokens in MAX_TOKENS.items():
            for chunk in _chunks(
                [n for n, each in enumerate(modes) if each == mode], prompts, max_tokens
            ):
                outputs.update(
                    zip(chunk, self._prefill([prompts[n] for n in chunk], mode), strict=True)
                )
        return [outputs[n] for n in range(len(prompts))]

    def _prefill_mode(self, length: int) -> PrefillMode:
        """The forward depends on the prompt's own length, never on the other prompts."""
        if not self._use_cpu_graphs or length > GRAPH_TOKENS:
            return "eager"
        return (
            "rows"
            if length <= ROW_PROMPT_TOKENS and self._cpu_step and self._cpu_step.compiled
            else "graph"
        )

    def sample_first(
        self, hidden: Sequence[Tensor], experts: Sequence[Any], rows: range, *, truncates: bool
    ) -> None:
        """Sample the first token of rows that start, from the hidden states at the end of their prompts."""
        size, count = self._batch_size(len(rows)), len(rows)
        if self.experts_KBLC is not None:
            self.experts_KBLC[0, rows.start : rows.stop] = torch.from_numpy(np.stack(experts)).to(
                self.state.device
            )
        hidden_BD = torch.stack([*hidden, *[hidden[-1]] * (size - count)])
        if self._cpu_step is not None:
            logits_BV = head_logits(hidden_BD, self._head)
            self._cpu_step.sample_first(logits_BV, rows, self.outputs(), truncates=truncates)
            return
        rows_B = torch.arange(rows.start, rows.stop, device=self.state.device)
        padded_B = rows_B[torch.arange(size, device=rows_B.device).clamp(max=count - 1)]
        self._step_index.zero_()
        sampled = sample_hidden(
            hidden_BD, self._head, self.state.sampling(padded_B), truncates=truncates
        )
        self._advance(sampled, slice(rows.start, rows.stop), count, stores=False)

    def decode(
        self, count: int, steps: int, *, truncates: bool, min_running: int, grouped: bool = False
    ) -> None:
        """Sample `steps` tokens for the first `count` rows; rows that finish stop.

        On CUDA, if `grouped`, the rows of a group read their common prompt together.

        On a CPU, where a host sync is free, it ends early once at most `min_running` rows are running or a smaller
        batch would hold them.
        """
        size = self._batch_size(count)
        if self._cpu_step is None:
            self._step_index.fill_(1)
            step = self._step_function(size, truncates, grouped)
            for _ in range(steps):
                step()
            self.computed_tokens += size * steps
            return
        self._cpu_step.begin(size)
        outputs = self.outputs()
        for n in range(1, steps + 1):
            tokens_B, positions_B, context = self._cpu_step.inputs(size)
            with attention_context(context):
                forward = self._cpu_graph(size) if self._use_cpu_graphs else self._eager
                hidden_BD, experts_BLC = self._run(forward, tokens_B, positions_B)
            if experts_BLC is not None:
                outputs["experts"][n, :size] = experts_BLC.numpy()
            self._cpu_step.sample(
                head_logits(hidden_BD, self._head), size, outputs, n, truncates=truncates
            )
            self.computed_tokens += size
            running = self._cpu_step.num_running(count)
            if running <= min_running or self._batch_size(running) < size:
                break

    def outputs(self) -> dict[str, NDArray[Any]]:
        """What was sampled since the last host sync, on the host."""
        outputs = {
            "output_tokens": self.tokens_KB,
            "logprobs": self.logprobs_KB,
            "log_mass": self.log_mass_KB,
        }
        if self.experts_KBLC is not None:
            outputs["experts"] = self.experts_KBLC
        return {name: value_KB.cpu().numpy() for name, value_KB in outputs.items()}

    def _prefill(self, prompts: Sequence[PromptBlocks], mode: PrefillMode) -> list[PrefillOutput]:
        count, device = len(prompts), self.state.device
        self.computed_tokens += sum(len(each.tokens) for each in prompts)
        if len(prompts[0].tokens) == count == 1:
            prompts = [
                *prompts,
                PromptBlocks([0], [0]),
            ]  # a matrix product of one row rounds differently
        lengths = [len(each.tokens) for each in prompts]
        tokens = [token for each in prompts for token in each.tokens]
        positions = [position for length in lengths for position in range(length)]
        width = max(len(each.block_ids) for each in prompts)
        block_table = [[*each.block_ids, *[0] * (width - len(each.block_ids))] for each in prompts]
        tokens_T, positions_T = (torch.tensor(each, device=device) for each in (tokens, positions))
        lengths_N = torch.tensor(lengths)
        block_table_TP = (
            torch.tensor(block_table, dtype=torch.int32).repeat_interleave(lengths_N, 0).to(device)
        )
        context: Prefill | CompiledDecode
        if mode == "rows":
            context = CompiledDecode(
                self.kv_cache,
                block_table_TP,
                positions_T.int() + 1,
                sum(positions) + len(positions),
            )
        else:
            slots_T = slot_mapping(block_table_TP, positions_T, self.kv_cache.block_size)
            context = Prefill(
                packed_context(Segments.from_lengths(lengths), device), self.kv_cache, slots_T
            )
        size = max(16, 1 << (len(tokens) - 1).bit_length())  # few sizes: each is captured once
        forward = self._eager if mode == "eager" else self._cpu_graph(size)
        with attention_context(context):
            hidden_TD, experts_TLC = self._run(forward, tokens_T, positions_T)
        ends_N = lengths_N.cumsum(0)[:count] - 1
        hidden = hidden_TD[ends_N.to(device)].clone().unbind()
        experts: Sequence[Any] = [None] * count
        if experts_TLC is not None:
            experts = [each.numpy() for each in experts_TLC.cpu().split(lengths)[:count]]
        return [PrefillOutput(*each) for each in zip(hidden, experts, strict=True)]

    def _step(self, size: int, truncates: bool, grouped: bool) -> None:
        """One decode step of the first `size` rows on CUDA. It is captured: Python values must not change."""
        state = self.state
        alive_B = state["done"][:size] == 0
        cached_B = torch.where(alive_B, state["cached_len"][:size], 0)
        block_table_BP = state.block_table_BP[:size]
        slots_B = torch.where(
            alive_B, slot_mapping(block_table_BP, cached_B, self.kv_cache.block_size), 0
        )
        splits = max(1, min(MAX_SPLITS, PROGRAMS // (size * self.kv_cache.keys[0].shape[1])))
        prefixes = state.prefix_groups(size) if grouped else None
        context = CudaDecode(self.kv_cache, slots_B, cached_B + 1, block_table_BP, splits, prefixes)
        with attention_context(context):
            hidden_BD, experts_BLC = self._run(
                self._eager, state["token"][:size].long(), cached_B.long()
            )
        if self.experts_KBLC is not None and experts_BLC is not None:
            self.experts_KBLC[:, :size].index_copy_(0, self._step_index, experts_BLC[None])
        sampled = sample_hidden(
            hidden_BD, self._head, state.sampling(slice(size)), truncates=truncates
        )
        self._advance(sampled, slice(size), size, stores=True)

    def _run(
        self, forward: Forward, tokens_T: Tensor, positions_T: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Hidden states, and the experts (T, L, C) if they are recorded."""
        if self.model.routes is None:
            return forward(tokens_T, positions_T), None
        recorder = RoutingRecorder()
        with routing(recorder):
            hidden_TD = forward(tokens_T, positions_T)
        return hidden_TD, recorder.stacked(self.model.routes.dtype)

    def _cpu_graph(self, size: int) -> Forward:
        if size not in self._cpu_graphs:
            self._cpu_graphs[size] = capture(self._eager, size)
        return self._cpu_graphs[size]

    def _batch_size(self, count: int) -> int:
        """`count` rows with padding."""
        if self.state.device.type != "cuda" and not self._use_cpu_graphs:
            return max(count, MIN_BATCH)
        return min(padded_size(count), self.state.max_rows)

    def _advance(self, sampled: SamplerOutput, which: slice, count: int, *, stores: bool) -> None:
        """Write the sampled tokens and advance the rows that are not done."""
        state = self.state
        alive_B = state["done"][which] == 0
        tokens_B = sampled.tokens_B[:count].int()
        self.tokens_KB[:, which].index_copy_(0, self._step_index, tokens_B[None])
        self.logprobs_KB[:, which].index_copy_(
            0, self._step_index, sampled.logprobs_B[None, :count]
        )
        if sampled.log_mass_B is not None:
            self.log_mass_KB[:, which].index_copy_(
                0, self._step_index, sampled.log_mass_B[None, :count]
            )
        state["token"][which].copy_(torch.where(alive_B, tokens_B, state["token"][which]))
        state["output_len"][which].add_(alive_B)
        if stores:
            state["cached_len"][which].add_(alive_B)
        at_limit_B = state["output_len"][which] >= state["max_output_len"][which]
        ended_B = (state.stop_ids_BS[which] == tokens_B[:, None]).any(1) | at_limit_B
        state["done"][which].copy_(state["done"][which] | ended_B)
        self._step_index.add_(1)

    def _step_function(self, *key: *tuple[int, bool, bool]) -> Callable[[], object]:
        if not self._use_cuda_graphs:
            return partial(self._step, *key)
        return (self._cuda_graphs.get(key) or self._capture(*key)).replay

    def _capture(self, *key: *tuple[int, bool, bool]) -> torch.cuda.CUDAGraph:
        """Capture one step. The batch state is restored afterwards: warm-up must not sample anything."""
        before = (self.state.fields_FB.clone(), self._step_index.clone())
        self.state["done"].fill_(1)  # no row advances, and writes go to block 0
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                self._step_index.fill_(1)
                self._step(*key)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        self._step_index.fill_(1)
        # What other threads do meanwhile (plan, move or save tensors) is no part of it.
        captured = torch.cuda.graph(
            graph, pool=self._graph_memory, capture_error_mode="thread_local"
        )
        with _without_gc(collect=not self._cuda_graphs), captured:
            self._step(*key)
        self.state.fields_FB.copy_(before[0])
        self._step_index.copy_(before[1])
        self._cuda_graphs[key], self._graph_memory = graph, graph.pool()
        return graph


@contextmanager
def _without_gc(*, collect: bool) -> Iterator[None]:
    """No cycles are freed: those of an engine before this one hold graphs and memory, and to free these invalidates a
    capture. `collect`: they are freed before."""
    if collect:
        gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _chunks(
    indices: Sequence[int], prompts: Sequence[PromptBlocks], max_tokens: int
) -> list[list[int]]:
    """Split these prompts, in order, into chunks of at most `max_tokens`, or of one longer prompt."""
    chunks: list[list[int]] = []
    tokens = 0
    for n in indices:
        tokens += len(prompts[n].tokens)
        if not chunks or tokens > max_tokens:
            chunks.append([])
            tokens = len(prompts[n].tokens)
        chunks[-1].append(n)
    return chunks


def supports_cuda_graph(model: LanguageModel) -> bool:
    """Experts in bfloat16 run as one grouped product; otherwise the host reads the token counts of each expert."""
    experts = any(type(part).__name__.endswith("Router") for part in model.module.modules())
    grouped = model.module.config._experts_implementation == "grouped_mm"
    return not experts or (grouped and model.module.dtype == torch.bfloat16)


def padded_size(count: int) -> int:
    """2, 4, 8, then four sizes per doubling: at most a quarter of the rows is padding."""
    size = MIN_BATCH
    while size < count:
        size += 2 ** (size.bit_length() - 3) if size >= 8 else size
    return size
