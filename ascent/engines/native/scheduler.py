"""Which requests run, which wait, and whose pages they are. Host side alone: no tensor passes here.

A prompt is prefilled once and becomes a `Prefix`; every sample of it shares the prefix's full pages and gets its own
copy of the last page where that is not full (the last sample takes the page itself). Requests start in the order in
which they came. When pages run out, prefixes that nobody runs on go first, then the sequence that started last: it
waits at the head of the queue with what it has sampled, and later starts again as a longer prompt.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence as SequenceOf
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from ascent.engines.native.block_manager import BlockManager
from ascent.records import Request

FEWEST_TOGETHER = 8  # an eighth of the rows must be free before new requests start


@dataclass(eq=False)
class Sequence:
    """A request on its way. `made` and its companions hold what was sampled before it was preempted.

    `prompt_experts` and `experts` are there where routes are recorded (see `records.RoutedExperts`).
    """

    request: Request
    made: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    log_mass: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    experts: Any = ()
    prompt_experts: bytes = b""
    pages: list[int] = field(default_factory=list)
    listed: int = 0  # how many of its pages the device's table holds
    turn: int = 0  # counts starts: the highest started last

    @property
    def tokens(self) -> tuple[int, ...]:
        """What must be in the pool before the next token can be drawn."""
        return (*self.request.tokens, *self.made)

    @property
    def longest(self) -> int:
        return len(self.request.tokens) + self.request.max_new_tokens


@dataclass(eq=False)
class Prefix:
    """A prompt in the pool. `last` is the model's hidden state at its last token: all that a first draw needs.

    Where routes are recorded, `last_experts` are that token's and `experts` those of the tokens before it.
    """

    tokens: tuple[int, ...]
    pages: list[int]
    last: Any = None
    last_experts: Any = None
    experts: bytes = b""


class Move(NamedTuple):
    """A row takes another's place in the batch."""

    source: int
    target: int


@dataclass
class Admission:
    """What the engine has to do for those who start: prefill the new prefixes, copy pages, draw their first tokens."""

    started: list[tuple[Sequence, Prefix]] = field(default_factory=list)
    prefilled: list[Prefix] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)


class Scheduler:
    """`running[i]` is row i of the batch. Up to `ahead` tokens of prompts are prefilled together before they start."""

    def __init__(self, pages: BlockManager, rows: int, ahead: int = 0) -> None:
        self.pages, self.rows, self.ahead = pages, rows, ahead
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.preemptions = 0
        self._turns = 0
        self._prefixes: dict[tuple[int, ...], Prefix] = {}
        self._wanted: Counter[tuple[int, ...]] = Counter()  # how many wait for each prompt

    def add(self, request: Request) -> None:
        sequence = Sequence(request)
        self.waiting.append(sequence)
        self._wanted[sequence.tokens] += 1

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.running

    @property
    def enough(self) -> int:
        """With so many rows left it pays to look: others could start."""
        if not self.waiting:
            return 0
        return max(min(len(self.running) - 1, self.rows - -(-self.rows // FEWEST_TOGETHER)), 0)

    def admit(self) -> Admission:
        """Start whoever waits, in order, until rows or pages run out.

        While most rows are busy nobody starts: prompts are cheaper to prefill several at a time.
        """
        admission = Admission()
        if self.running and (self.rows - len(self.running)) * FEWEST_TOGETHER < self.rows:
            return admission
        busy: set[Prefix] = set()  # their pages are about to be filled or copied, so they stay
        while self.waiting and len(self.running) < self.rows:
            sequence = self.waiting[0]
            prefix = self._prefixes.get(sequence.tokens)
            whole, rest = divmod(len(sequence.tokens), self.pages.size)
            build = 0 if prefix else whole + bool(rest)
            takes = self._wanted[sequence.tokens] == 1  # the last sample takes the prompt's pages as they are
            # Everyone who runs, the new one included, must be able to grow by a page, or it would soon be preempted.
            spare = len(self.running) + 1 if self.running else 0
            busy |= {prefix} if prefix else set()
            if not self._make_room(build + bool(rest and not takes) + spare, busy):
                if self.running or not self._make_room(build, busy):
                    break
                takes = True  # alone in too small a pool: it takes the pages, and the next sample prefills anew
            self.waiting.popleft()
            self._wanted[sequence.tokens] -= 1
            if not self._wanted[sequence.tokens]:
                del self._wanted[sequence.tokens]
            if prefix is None:
                prefix = self._prefixes[sequence.tokens] = Prefix(sequence.tokens, self.pages.take(build))
                admission.prefilled.append(prefix)
            busy.add(prefix)
            self._start(sequence, prefix, takes, admission)
        if self.ahead and admission.prefilled:
            self._prefill_ahead(admission)
        return admission

    def grow(self, stored: SequenceOf[int], steps: int) -> list[int]:
        """Give every row the pages for its next `steps` tokens. Returns the rows that lost theirs, last start first.

        `stored[i]` tokens of row i are in the pool. Those rows must be preempted or finished before anything else.
        """
        by_turn = sorted(range(len(self.running)), key=lambda row: self.running[row].turn)
        stopped: list[int] = []
        while len(stopped) < len(by_turn):
            short = self._extend(by_turn[: len(by_turn) - len(stopped)], stored, steps)
            if not short:
                break
            newest = by_turn[len(by_turn) - 1 - len(stopped)]
            self.pages.drop(self.running[newest].pages)
            self.running[newest].pages = []
            stopped.append(newest)
        return stopped

    def preempt(self, rows: SequenceOf[int]) -> list[Move]:
        """These rows, which hold no pages any more, wait at the head of the queue, the first to start first."""
        for row in rows:
            sequence = self.running[row]
            self.preemptions += 1
            self.waiting.appendleft(sequence)
            self._wanted[sequence.tokens] += 1
        return self._close(rows)

    def finish(self, rows: SequenceOf[int]) -> list[Move]:
        """End these rows and free their pages. Returns the moves that close the gaps."""
        for row in rows:
            self.pages.drop(self.running[row].pages)
        return self._close(rows)

    def clear_prefix_cache(self) -> None:
        """Those who start from now on compute theirs anew; whoever runs keeps what it shares."""
        for prefix in self._prefixes.values():
            self.pages.drop(prefix.pages)
        self._prefixes.clear()

    def clear(self) -> None:
        """Forget everybody."""
        self.clear_prefix_cache()
        for sequence in self.running:
            self.pages.drop(sequence.pages)
        self.running.clear()
        self.waiting.clear()
        self._wanted.clear()

    def _prefill_ahead(self, admission: Admission) -> None:
        """Prompts of the next requests come along while together they are short and everyone who runs can grow."""
        tokens = sum(len(prefix.tokens) for prefix in admission.prefilled)
        free = self.pages.free - len(self.running)
        for sequence in islice(self.waiting, self.rows if tokens < self.ahead else 0):
            prompt = sequence.tokens
            if prompt in self._prefixes:
                continue
            tokens += len(prompt)
            free -= self.pages.needed(len(prompt))
            if tokens > self.ahead or free < 0:
                break
            prefix = self._prefixes[prompt] = Prefix(prompt, self.pages.take(self.pages.needed(len(prompt))))
            admission.prefilled.append(prefix)

    def _start(self, sequence: Sequence, prefix: Prefix, takes: bool, admission: Admission) -> None:
        whole = len(prefix.tokens) // self.pages.size
        if takes:
            del self._prefixes[prefix.tokens]
            sequence.pages = list(prefix.pages)  # and with them the prefix's hold
        else:
            sequence.pages = prefix.pages[:whole]
            self.pages.share(sequence.pages)
            if whole < len(prefix.pages):
                (own,) = self.pages.take(1)
                admission.copies.append((prefix.pages[whole], own))
                sequence.pages.append(own)
        self._turns += 1
        sequence.turn = self._turns
        self.running.append(sequence)
        admission.started.append((sequence, prefix))

    def _extend(self, rows: SequenceOf[int], stored: SequenceOf[int], steps: int) -> bool:
        """Give these rows their pages, the first to start first. True if they do not suffice."""
        for row in rows:
            sequence = self.running[row]
            # The last token drawn is never stored.
            missing = self.pages.needed(min(stored[row] + steps, sequence.longest - 1)) - len(sequence.pages)
            if missing > 0:
                if not self._make_room(missing):
                    return True
                sequence.pages += self.pages.take(missing)
        return False

    def _close(self, rows: SequenceOf[int]) -> list[Move]:
        """Fill the gaps of these rows with the last rows that stay."""
        gone, moves = set(rows), []
        count = len(self.running) - len(gone)
        staying = (row for row in range(count, len(self.running)) if row not in gone)
        for source, target in zip(staying, sorted(row for row in gone if row < count), strict=True):
            self.running[target] = self.running[source]
            moves.append(Move(source, target))
        del self.running[count:]
        return moves

    def _make_room(self, need: int, keep: AbstractSet[Prefix] = frozenset()) -> bool:
        """Free pages by dropping prefixes that only wait; they are prefilled again when their turn comes."""
        if self.pages.free < need:
            # The newest first: the oldest is shared by those who run, so that dropping it frees least.
            for prefix in [each for each in reversed(self._prefixes.values()) if each not in keep]:
                self.pages.drop(self._prefixes.pop(prefix.tokens).pages)
                if self.pages.free >= need:
                    break
        return self.pages.free >= need
