"""The forwards: prompts packed and stored, then one token of every row at a time.

The modules are the learner's own. On CUDA a step (forward, attention, draw, bookkeeping) is one graph per batch size,
captured when first needed; the weights are read where they lie, so an update needs no new graph. On a CPU the forward
runs as it is, or is replayed from a recording where the model is small, and what surrounds it is in `host`. Batches are
filled up to one of a few sizes: graphs and recordings have fixed ones, and on a CPU the product of a single row rounds
by itself.

Where the model's routes are replayed in training, the experts of every token come along with the hidden states.

Axes: T packed tokens, N prompts, B rows, D hidden size, V vocabulary, L layers with experts, C experts of a token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ascent.engines.native.batch_state import BatchState, sampling_state
from ascent.engines.native.cpu_graph import Forward, forward_of, recorded, worth_recording
from ascent.engines.native.cpu_step import CpuStep
from ascent.engines.native.sampling import Drawn, draw
from ascent.maths.segments import Segments
from ascent.models.attention import attending, packed
from ascent.models.fused_logprobs import head_logits
from ascent.models.model import LanguageModel, output_head
from ascent.models.paged_attention import Decode, KVCache, Prefill, new_slots
from ascent.models.paged_attention_cpu import CompiledDecode
from ascent.models.routing import Recording, routing

FEWEST_ROWS = 2
PREFILL_TOKENS = 16384  # prompts run together up to this many tokens
RECORDED_TOKENS = 256  # prompts of at most so many are replayed, at most so many tokens together
ROW_TOKENS = 64  # and of these, prompts of at most so many run as rows where attention is compiled
PROGRAMS = 1024  # on CUDA: attention is cut into about this many pieces of work

Way = Literal["rows", "replayed", "own"]
LIMITS: dict[Way, int] = {"rows": RECORDED_TOKENS, "replayed": RECORDED_TOKENS, "own": PREFILL_TOKENS}  # run together


class Stored(NamedTuple):
    """A prompt, and the pages of the pool that its tokens go to."""

    tokens: Sequence[int]
    pages: Sequence[int]


class Read(NamedTuple):
    """The hidden state at a prompt's last token; the experts of its tokens, (T, L, C), where they are recorded."""

    hidden_D: Tensor
    experts_TLC: NDArray[Any] | None


class Runner:
    """Runs `model` over `pool`. Drawn tokens land in `tokens_KB` and its companions: line 0 holds first tokens."""

    def __init__(self, model: LanguageModel, pool: KVCache, rows: BatchState, steps: int) -> None:
        self.model, self.pool, self.rows, self.steps = model, pool, rows, steps
        shape, device = (steps + 1, rows.count), model.device
        self.tokens_KB = torch.zeros(shape, dtype=torch.int32, device=device)
        self.logprobs_KB = torch.zeros(shape, device=device)
        self.log_mass_KB = torch.zeros(shape, device=device)
        self.experts_KBLC: Tensor | None = None  # of the token before each that is drawn
        if model.routes is not None:
            self.experts_KBLC = torch.zeros(*shape, *model.routes[:2], dtype=model.routes.dtype, device=device)
        self._line = torch.zeros(1, dtype=torch.int64, device=device)
        self._own, self._head = forward_of(model), output_head(model.module)
        self._replays: dict[int, Forward] = {}
        self._records = worth_recording(model) and model.routes is None
        self._captures = capturable(model)
        self._graphs: dict[tuple[int, bool], torch.cuda.CUDAGraph] = {}
        self._memory: Any = None  # graphs run one after the other, so all may use the first one's memory
        self.computed = 0  # rows run, fillers included
        self._host = None if device.type == "cuda" else CpuStep(pool, rows)

    def prefill(self, prompts: Sequence[Stored]) -> list[Read]:
        """Store these prompts; the hidden state at each one's last token, and what all of its tokens took."""
        ways = [self._way(len(prompt.tokens)) for prompt in prompts]
        last: dict[int, Read] = {}
        for way, most in LIMITS.items():
            for chunk in _chunks([n for n, each in enumerate(ways) if each == way], prompts, most):
                last.update(zip(chunk, self._prefill([prompts[n] for n in chunk], way), strict=True))
        return [last[n] for n in range(len(prompts))]

    def _way(self, length: int) -> Way:
        """Which forward a prompt gets depends on its own length, never on the prompts beside it."""
        if not self._records or length > RECORDED_TOKENS:
            return "own"
        return "rows" if length <= ROW_TOKENS and self._host and self._host.compiled else "replayed"

    def first(self, hidden: Sequence[Tensor], experts: Sequence[Any], rows: range, *, cut: bool) -> None:
        """Draw the first token of rows that start, from their prompts' last hidden states."""
        size, count = self._size(len(rows)), len(rows)
        if self.experts_KBLC is not None:
            self.experts_KBLC[0, rows.start : rows.stop] = torch.from_numpy(np.stack(experts)).to(self.rows.device)
        logits_BV = head_logits(torch.stack([*hidden, *[hidden[-1]] * (size - count)]), self._head)
        if self._host is not None:
            self._host.first(logits_BV, rows, self.drawn(), cut=cut)
            return
        wanted = torch.arange(rows.start, rows.stop, device=self.rows.device)
        filled = wanted[torch.arange(size, device=wanted.device).clamp(max=count - 1)]
        drawn = draw(logits_BV, sampling_state(self.rows, filled), cut=cut)
        self._line.zero_()
        self._advance(drawn, slice(rows.start, rows.stop), count, stores=False)

    def decode(self, count: int, *, cut: bool, enough: int) -> None:
        """`steps` tokens for the first `count` rows; those that end on the way stand still.

        On a CPU, where looking costs nothing, fewer steps if no more than `enough` rows are left or fewer would fill a
        smaller batch.
        """
        size = self._size(count)
        if self._host is None:
            self._line.fill_(1)
            step = self._stepper(size, cut)
            for _ in range(self.steps):
                step()
            self.computed += size * self.steps
            return
        self._host.begin(size)
        lines = self.drawn()
        for line in range(1, self.steps + 1):
            tokens_B, places_B, context = self._host.context(size)
            with attending(context):
                run = self._replay(size) if self._records else self._own
                hidden_BD, experts_BLC = self._ran(run, tokens_B, places_B)
            if experts_BLC is not None:
                lines["experts"][line, :size] = experts_BLC.numpy()
            self._host.draw(head_logits(hidden_BD, self._head), size, lines, line, cut=cut)
            self.computed += size
            left = self._host.left(count)
            if left <= enough or self._size(left) < size:
                break

    def drawn(self) -> dict[str, NDArray[Any]]:
        """What the last look's steps drew, on the host."""
        lines = {"made": self.tokens_KB, "logprobs": self.logprobs_KB, "log_mass": self.log_mass_KB}
        if self.experts_KBLC is not None:
            lines["experts"] = self.experts_KBLC
        return {name: line_KB.cpu().numpy() for name, line_KB in lines.items()}

    def _prefill(self, prompts: Sequence[Stored], way: Way) -> list[Read]:
        count, device = len(prompts), self.rows.device
        self.computed += sum(len(each.tokens) for each in prompts)
        if len(prompts[0].tokens) == count == 1:
            prompts = [*prompts, Stored([0], [0])]  # a product of a single row rounds by itself
        lengths = [len(each.tokens) for each in prompts]
        tokens = [token for each in prompts for token in each.tokens]
        places = [place for length in lengths for place in range(length)]
        most = max(len(each.pages) for each in prompts)
        pages = [[*each.pages, *[0] * (most - len(each.pages))] for each in prompts]
        tokens_T, places_T = (torch.tensor(each, device=device) for each in (tokens, places))
        lengths_N = torch.tensor(lengths)
        table_TP = torch.tensor(pages, dtype=torch.int32).repeat_interleave(lengths_N, 0).to(device)
        context: Prefill | CompiledDecode
        if way == "rows":
            context = CompiledDecode(self.pool, table_TP, places_T.int() + 1, sum(places) + len(places))
        else:
            slots_T = new_slots(table_TP, places_T, self.pool.page)
            context = Prefill(packed(Segments.from_lengths(lengths), device), self.pool, slots_T)
        size = max(16, 1 << (len(tokens) - 1).bit_length())  # few sizes: each is recorded once
        run = self._own if way == "own" else self._replay(size)
        with attending(context):
            hidden_TD, experts_TLC = self._ran(run, tokens_T, places_T)
        ends_N = lengths_N.cumsum(0)[:count] - 1
        hidden = hidden_TD[ends_N.to(device)].clone().unbind()
        experts = (
            [None] * len(lengths) if experts_TLC is None else [x.numpy() for x in experts_TLC.cpu().split(lengths)]
        )
        return [Read(*each) for each in zip(hidden, experts[:count], strict=True)]

    def _step(self, size: int, cut: bool) -> None:
        """One token of the first `size` rows on CUDA. It is captured: Python values must not change between calls."""
        rows = self.rows
        alive_B = rows["done"][:size] == 0
        stored_B = torch.where(alive_B, rows["stored"][:size], 0)
        table_BP = rows.table_BP[:size]
        slots_B = torch.where(alive_B, new_slots(table_BP, stored_B, self.pool.page), 0)
        splits = max(1, min(64, PROGRAMS // (size * self.pool.keys[0].shape[1])))
        context = Decode(self.pool, slots_B, stored_B + 1, table_BP, splits=splits)
        with attending(context):
            hidden_BD, experts_BLC = self._ran(self._own, rows["token"][:size].long(), stored_B.long())
        if self.experts_KBLC is not None and experts_BLC is not None:
            self.experts_KBLC[:, :size].index_copy_(0, self._line, experts_BLC[None])
        drawn = draw(head_logits(hidden_BD, self._head), sampling_state(rows, slice(size)), cut=cut)
        self._advance(drawn, slice(size), size, stores=True)

    def _ran(self, run: Forward, tokens_T: Tensor, places_T: Tensor) -> tuple[Tensor, Tensor | None]:
        """Hidden states, and where routes are recorded the experts, (T, L, C)."""
        if self.model.routes is None:
            return run(tokens_T, places_T), None
        noted = Recording()
        with routing(noted):
            hidden_TD = run(tokens_T, places_T)
        return hidden_TD, noted.stacked(self.model.routes.dtype)

    def _replay(self, size: int) -> Forward:
        if size not in self._replays:
            self._replays[size] = recorded(self._own, size)
        return self._replays[size]

    def _size(self, count: int) -> int:
        """The size at which that many rows run."""
        if self.rows.device.type != "cuda" and not self._records:
            return max(count, FEWEST_ROWS)
        return min(bucket(count), self.rows.count)

    def _advance(self, drawn: Drawn, which: slice, count: int, *, stores: bool) -> None:
        """Note what was drawn and move the rows on; a row that is done stays as it is."""
        rows = self.rows
        alive_B = rows["done"][which] == 0
        tokens_B = drawn.tokens_B[:count].int()
        self.tokens_KB[:, which].index_copy_(0, self._line, tokens_B[None])
        self.logprobs_KB[:, which].index_copy_(0, self._line, drawn.logprobs_B[None, :count])
        if drawn.log_mass_B is not None:
            self.log_mass_KB[:, which].index_copy_(0, self._line, drawn.log_mass_B[None, :count])
        rows["token"][which].copy_(torch.where(alive_B, tokens_B, rows["token"][which]))
        rows["position"][which].add_(alive_B)
        if stores:
            rows["stored"][which].add_(alive_B)
        ended_B = (rows.stops_BS[which] == tokens_B[:, None]).any(1) | (rows["position"][which] >= rows["limit"][which])
        rows["done"][which].copy_(rows["done"][which] | ended_B)
        self._line.add_(1)

    def _stepper(self, size: int, cut: bool) -> Callable[[], object]:
        """`_step` as a graph, where it can be one."""
        if not self._captures:
            return partial(self._step, size, cut)
        return (self._graphs.get((size, cut)) or self._capture(size, cut)).replay

    def _capture(self, size: int, cut: bool) -> torch.cuda.CUDAGraph:
        """Record one step. The rows and the pool are put back as they were: warming up must not draw anything."""
        before = (self.rows.block_FB.clone(), self._line.clone())
        self.rows["done"].fill_(1)  # nobody moves, and what is stored goes to page 0
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                self._line.fill_(1)
                self._step(size, cut)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        self._line.fill_(1)
        with torch.cuda.graph(graph, pool=self._memory):
            self._step(size, cut)
        self.rows.block_FB.copy_(before[0])
        self._line.copy_(before[1])
        self._graphs[size, cut], self._memory = graph, graph.pool()
        return graph


def _chunks(places: Sequence[int], prompts: Sequence[Stored], most: int) -> list[list[int]]:
    """These prompts in order, cut where they would pass `most` tokens."""
    chunks: list[list[int]] = []
    tokens = 0
    for n in places:
        tokens += len(prompts[n].tokens)
        if not chunks or tokens > most:
            chunks.append([])
            tokens = len(prompts[n].tokens)
        chunks[-1].append(n)
    return chunks


def capturable(model: LanguageModel) -> bool:
    """Experts of bfloat16 run as one grouped product; otherwise the host counts who goes where, which no graph can."""
    experts = any(type(part).__name__.endswith("Router") for part in model.module.modules())
    grouped = model.module.config._experts_implementation == "grouped_mm"
    return not experts or (grouped and model.module.dtype == torch.bfloat16)


def bucket(count: int) -> int:
    """2, 4, 8, then four sizes to each doubling: at most a quarter of the rows are fillers."""
    size = FEWEST_ROWS
    while size < count:
        size += 2 ** (size.bit_length() - 3) if size >= 8 else size
    return size
