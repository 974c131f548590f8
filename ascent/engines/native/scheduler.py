"""Which requests run, which wait, and which KV cache blocks they use. Host only: no tensors here.

A prompt is prefilled once and becomes a `Prefix`. Its samples share the full blocks, and each gets a copy of the last,
partly filled one (the last sample takes over the block itself). Requests start in arrival order. When blocks run out,
prefixes without running samples are evicted first, then the sequence that started last is preempted: it waits at the
head of the queue with its output tokens and restarts as a longer prompt.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence as SequenceOf
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from ascent.engines.native.block_manager import BlockManager
from ascent.records import Completion, Request

ADMIT_DIVISOR = 8  # an eighth of the rows must be free before new requests start


@dataclass(eq=False)
class Sequence:
    """A request in the engine. The output fields are filled when it is preempted or finished.

    `prompt_experts` and `experts` are set if routes are recorded (see `records.RoutedExperts`).
    """

    request: Request
    output_tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    log_mass: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    experts: Any = ()
    prompt_experts: bytes = b""
    block_ids: list[int] = field(default_factory=list)
    num_table_blocks: int = 0  # how many of its blocks are in the device's block table
    prompt_blocks: int = (
        0  # how many of its blocks are those of its prompt, full, and so never written
    )
    start_order: int = 0  # highest: started last

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens that must be in the KV cache before the next one is sampled."""
        return (*self.request.tokens, *self.output_tokens)

    @property
    def max_len(self) -> int:
        return len(self.request.tokens) + self.request.max_new_tokens


@dataclass(eq=False)
class Prefix:
    """A prompt in the KV cache. `last_hidden` is the hidden state at its last token, from which first tokens are drawn.

    If routes are recorded, `last_experts` are those of the last token and `experts` those of the tokens before it.
    """

    tokens: tuple[int, ...]
    block_ids: list[int]
    last_hidden: Any = None
    last_experts: Any = None
    experts: bytes = b""


class Move(NamedTuple):
    """Batch row `source` moves to row `target`."""

    source: int
    target: int


@dataclass
class Admission:
    """Work for the sequences that start: prefill new prefixes, copy blocks (source, target), sample first tokens."""

    started: list[tuple[Sequence, Prefix]] = field(default_factory=list)
    new_prefixes: list[Prefix] = field(default_factory=list)
    block_copies: list[tuple[int, int]] = field(default_factory=list)


class Scheduler:
    """`running[i]` is row i of the batch. Prompts of waiting requests are prefilled early, up to
    `prefill_ahead` tokens at a time."""

    def __init__(self, blocks: BlockManager, max_num_seqs: int, prefill_ahead: int = 0) -> None:
        self.blocks, self.max_num_seqs, self.prefill_ahead = blocks, max_num_seqs, prefill_ahead
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.num_preemptions = 0
        self._num_starts = 0
        self._prefixes: dict[tuple[int, ...], Prefix] = {}
        self._num_waiting: Counter[tuple[int, ...]] = Counter()  # waiting requests per prompt

    def add(self, request: Request, begun: Completion | None = None) -> None:
        sequence = Sequence(request)
        if begun is not None:
            sequence.output_tokens, sequence.versions = list(begun.tokens), list(begun.versions)
            sequence.logprobs, sequence.log_mass = list(begun.logprobs), list(begun.log_mass or ())
        self.waiting.append(sequence)
        self._num_waiting[sequence.tokens] += 1

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.running

    @property
    def min_running(self) -> int:
        """Once this few rows are running, waiting requests could start."""
        if not self.waiting:
            return 0
        return max(
            min(len(self.running) - 1, self.max_num_seqs - -(-self.max_num_seqs // ADMIT_DIVISOR)),
            0,
        )

    def admit(self) -> Admission:
        """Start waiting requests in order until rows or blocks run out.

        None start while most rows are busy: prompts are cheaper to prefill several at a time.
        """
        admission = Admission()
        if (
            self.running
            and (self.max_num_seqs - len(self.running)) * ADMIT_DIVISOR < self.max_num_seqs
        ):
            return admission
        in_use: set[Prefix] = set()  # their blocks are about to be filled or copied, so they stay
        while self.waiting and len(self.running) < self.max_num_seqs:
            sequence = self.waiting[0]
            prefix = self._prefixes.get(sequence.tokens)
            partial_block = bool(len(sequence.tokens) % self.blocks.block_size)
            prefix_blocks = 0 if prefix else self.blocks.blocks_needed(len(sequence.tokens))
            takes_over = self._num_waiting[sequence.tokens] == 1  # the last sample needs no copy
            # Every running sequence, the new one included, must be able to grow by a block, or it is soon preempted.
            spare = len(self.running) + 1 if self.running else 0
            in_use |= {prefix} if prefix else set()
            if not self._make_room(
                prefix_blocks + (partial_block and not takes_over) + spare, in_use
            ):
                if self.running or not self._make_room(prefix_blocks, in_use):
                    break
                takes_over = (
                    True  # alone in too small a cache: the next sample prefills its prompt again
                )
            self.waiting.popleft()
            self._forget_waiting(sequence)
            if prefix is None:
                prefix = self._add_prefix(sequence.tokens, admission)
            in_use.add(prefix)
            self._start(sequence, prefix, takes_over, admission)
        if self.prefill_ahead and admission.new_prefixes:
            self._prefill_waiting(admission)
        return admission

    def allocate_decode_blocks(self, cached_lens: SequenceOf[int], steps: int) -> list[int]:
        """Give every row the blocks for its next `steps` tokens. Returns the rows that lost theirs, last start first.

        `cached_lens[i]` tokens of row i are in the KV cache. The returned rows must be preempted or finished next.
        """
        by_start = sorted(range(len(self.running)), key=lambda row: self.running[row].start_order)
        preempted: list[int] = []
        while by_start and not self._extend(by_start, cached_lens, steps):
            newest = by_start.pop()
            self.blocks.free(self.running[newest].block_ids)
            self.running[newest].block_ids = []
            preempted.append(newest)
        return preempted

    def preempt(self, rows: SequenceOf[int]) -> list[Move]:
        """Move these rows, which hold no blocks any more, to the head of the queue, the first to start first."""
        for row in rows:
            sequence = self.running[row]
            self.num_preemptions += 1
            self.waiting.appendleft(sequence)
            self._num_waiting[sequence.tokens] += 1
        return self._compact(rows)

    def finish(self, rows: SequenceOf[int]) -> list[Move]:
        """End these rows and free their blocks. Returns the moves that close the gaps."""
        for row in rows:
            self.blocks.free(self.running[row].block_ids)
        return self._compact(rows)

    def prefix_groups(self, max_members: int) -> list[tuple[int, list[int]]]:
        """The rows that share the full blocks of a prompt, two at least, with the number of tokens in these blocks."""
        found: dict[tuple[int, int], list[int]] = {}
        for row, sequence in enumerate(self.running):
            if (
                sequence.prompt_blocks and sequence.block_ids
            ):  # one that ended with its first token has none left
                found.setdefault((sequence.block_ids[0], sequence.prompt_blocks), []).append(row)
        return [
            (blocks * self.blocks.block_size, rows[start : start + max_members])
            for (_, blocks), rows in found.items()
            for start in range(0, len(rows) - 1, max_members)
        ]

    def drop_waiting(self, prompt_id: str, sample: int) -> None:
        """Remove a request that has not started, or that was preempted."""
        for sequence in self.waiting:
            if (sequence.request.prompt_id, sequence.request.sample) == (prompt_id, sample):
                self.waiting.remove(sequence)
                self._forget_waiting(sequence)
                if sequence.tokens in self._prefixes and sequence.tokens not in self._num_waiting:
                    self.blocks.free(self._prefixes.pop(sequence.tokens).block_ids)
                return

    def clear_prefix_cache(self) -> None:
        """Requests that start from now on prefill their prompts again; running ones keep their blocks."""
        for prefix in self._prefixes.values():
            self.blocks.free(prefix.block_ids)
        self._prefixes.clear()

    def clear(self) -> None:
        """Drop all requests."""
        self.clear_prefix_cache()
        for sequence in self.running:
            self.blocks.free(sequence.block_ids)
        self.running.clear()
        self.waiting.clear()
        self._num_waiting.clear()

    def _forget_waiting(self, sequence: Sequence) -> None:
        self._num_waiting[sequence.tokens] -= 1
        if not self._num_waiting[sequence.tokens]:
            del self._num_waiting[sequence.tokens]

    def _add_prefix(self, tokens: tuple[int, ...], admission: Admission) -> Prefix:
        prefix = self._prefixes[tokens] = Prefix(
            tokens, self.blocks.allocate(self.blocks.blocks_needed(len(tokens)))
        )
        admission.new_prefixes.append(prefix)
        return prefix

    def _prefill_waiting(self, admission: Admission) -> None:
        """Prefill the next requests' prompts too, while they are short and every running sequence can still grow."""
        tokens = sum(len(prefix.tokens) for prefix in admission.new_prefixes)
        free = self.blocks.num_free - len(self.running)
        for sequence in islice(
            self.waiting, self.max_num_seqs if tokens < self.prefill_ahead else 0
        ):
            prompt = sequence.tokens
            if prompt in self._prefixes:
                continue
            tokens += len(prompt)
            free -= self.blocks.blocks_needed(len(prompt))
            if tokens > self.prefill_ahead or free < 0:
                break
            self._add_prefix(prompt, admission)

    def _start(
        self, sequence: Sequence, prefix: Prefix, takes_over: bool, admission: Admission
    ) -> None:
        full_blocks = sequence.prompt_blocks = len(prefix.tokens) // self.blocks.block_size
        if takes_over:
            del self._prefixes[prefix.tokens]
            sequence.block_ids = list(prefix.block_ids)  # with the prefix's references
        else:
            sequence.block_ids = prefix.block_ids[:full_blocks]
            self.blocks.share(sequence.block_ids)
            if full_blocks < len(prefix.block_ids):
                (copy,) = self.blocks.allocate(1)
                admission.block_copies.append((prefix.block_ids[full_blocks], copy))
                sequence.block_ids.append(copy)
        self._num_starts += 1
        sequence.start_order = self._num_starts
        self.running.append(sequence)
        admission.started.append((sequence, prefix))

    def _extend(self, rows: SequenceOf[int], cached_lens: SequenceOf[int], steps: int) -> bool:
        """Allocate the next blocks of these rows, in order. False if there are not enough."""
        for row in rows:
            sequence = self.running[row]
            # The last sampled token is never stored.
            length = min(cached_lens[row] + steps, sequence.max_len - 1)
            missing = self.blocks.blocks_needed(length) - len(sequence.block_ids)
            if missing > 0:
                if not self._make_room(missing):
                    return False
                sequence.block_ids += self.blocks.allocate(missing)
        return True

    def _compact(self, removed: SequenceOf[int]) -> list[Move]:
        """Fill the gaps of the removed rows with the last rows that stay."""
        gone, moves = set(removed), []
        count = len(self.running) - len(gone)
        staying = (row for row in range(count, len(self.running)) if row not in gone)
        for source, target in zip(staying, sorted(row for row in gone if row < count), strict=True):
            self.running[target] = self.running[source]
            moves.append(Move(source, target))
        del self.running[count:]
        return moves

    def _make_room(self, num_blocks: int, keep: AbstractSet[Prefix] = frozenset()) -> bool:
        """Free blocks by evicting prefixes of waiting requests; they are prefilled again when needed."""
        if self.blocks.num_free < num_blocks:
            # The newest first: the oldest is shared with running sequences, so evicting it frees least.
            for prefix in [each for each in reversed(self._prefixes.values()) if each not in keep]:
                self.blocks.free(self._prefixes.pop(prefix.tokens).block_ids)
                if self.blocks.num_free >= num_blocks:
                    break
        return self.blocks.num_free >= num_blocks
