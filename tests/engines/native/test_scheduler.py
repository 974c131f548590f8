"""Who runs, who waits and whose pages they are: random histories keep every promise."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from ascent.engines.native.block_manager import BlockManager
from ascent.engines.native.scheduler import Move, Scheduler
from ascent.records import Request


def request(prompt: str, sample: int = 0, length: int = 5, new: int = 4) -> Request:
    first = ord(prompt[0])
    return Request(prompt, sample, tuple(range(first, first + length)), new, seed=0)


class Toy:
    """Drives a scheduler as the engine does, with lists in place of tensors, and checks what must always hold."""

    def __init__(
        self, num_blocks: int, size: int, max_num_seqs: int, prefill_ahead: int = 0
    ) -> None:
        self.scheduler = Scheduler(BlockManager(num_blocks, size), max_num_seqs, prefill_ahead)
        self.size = size
        self.stored: list[int] = []
        self.finished: list[Request] = []
        self.prefilled: list[tuple[int, ...]] = []
        self.content: dict[
            int, object
        ] = {}  # what lies in each page: the tokens that were written to it

    def step(self, steps: int, ends: set[int]) -> None:
        scheduler = self.scheduler
        admission = scheduler.admit()
        for prefix in admission.new_prefixes:
            prefix.last_hidden = "hidden"
            self.prefilled.append(prefix.tokens)
            for place, block in enumerate(prefix.block_ids):
                self.content[block] = prefix.tokens[place * self.size : (place + 1) * self.size]
        for source, target in admission.block_copies:
            self.content[target] = self.content[source]
        for sequence, prefix in admission.started:
            self.stored.append(len(prefix.tokens))
            self._holds(sequence.block_ids, sequence.tokens)
        self.check()
        stopped = scheduler.allocate_decode_blocks(self.stored, steps)
        for row in stopped:
            sequence = scheduler.running[row]
            # what it drew: its own sample number, so that no two sequences look alike
            sequence.output_tokens = [1000 + sequence.request.sample] * (
                self.stored[row] - len(sequence.request.tokens)
            )
        self._move(scheduler.preempt(stopped))
        self.check()
        self._write(steps)
        done = [
            row
            for row, s in enumerate(scheduler.running)
            if row in ends or self.stored[row] >= s.max_len - 1
        ]
        self.finished += [scheduler.running[row].request for row in done]
        self._move(scheduler.finish(done))
        self.check()

    def _write(self, steps: int) -> None:
        """Each row stores its next tokens: in pages of its own alone, and without losing its prompt."""
        for row, sequence in enumerate(self.scheduler.running):
            for _ in range(steps):
                if self.stored[row] >= sequence.max_len - 1:
                    break
                block = sequence.block_ids[self.stored[row] // self.size]
                assert self.scheduler.blocks.ref_count(block) == 1, "a shared page was written to"
                old = self.content.get(block, ()) if self.stored[row] % self.size else ()
                self.content[block] = (*old, 1000 + sequence.request.sample)  # type: ignore[misc]
                self.stored[row] += 1
            drawn = [1000 + sequence.request.sample] * (
                self.stored[row] - len(sequence.request.tokens)
            )
            self._holds(sequence.block_ids, (*sequence.request.tokens, *drawn))

    def _holds(self, num_blocks: list[int], tokens: tuple[int, ...]) -> None:
        found = [token for block in num_blocks for token in self.content.get(block, ())]  # type: ignore[attr-defined]
        assert tuple(found[: len(tokens)]) == tokens, "a row's pages do not hold its tokens"

    def _move(self, moves: list[Move]) -> None:
        for move in moves:
            self.stored[move.target] = self.stored[move.source]
        del self.stored[len(self.scheduler.running) :]

    def check(self) -> None:
        """Every page is held exactly as often as somebody names it; nothing is lost, nothing is free and held."""
        scheduler = self.scheduler
        named = Counter(block for sequence in scheduler.running for block in sequence.block_ids)
        named.update(block for prefix in scheduler._prefixes.values() for block in prefix.block_ids)
        assert 0 not in named
        for block in range(1, scheduler.blocks.num_blocks):
            assert scheduler.blocks.ref_count(block) == named[block]
        assert scheduler.blocks.num_free == scheduler.blocks.num_usable - len(named)
        assert len(scheduler.running) <= scheduler.max_num_seqs


histories = st.tuples(
    st.integers(1, 4),  # tokens of a page
    st.integers(0, 12),  # pages beyond what the largest request needs
    st.integers(1, 6),  # rows
    st.integers(1, 3),  # steps of a look
    st.lists(
        st.tuples(st.sampled_from("abcd"), st.integers(1, 6)), min_size=1, max_size=14
    ),  # prompt, new tokens
    st.lists(
        st.sets(st.integers(0, 5), max_size=2), min_size=1, max_size=40
    ),  # rows that end early, look by look
    st.sampled_from((0, 6, 100)),  # tokens of prompts that are prefilled ahead
)


@settings(max_examples=300, deadline=None)
@given(histories)
def test_random_histories_leak_nothing_and_finish(
    history: tuple[int, int, int, int, list[tuple[str, int]], list[set[int]], int],
) -> None:
    size, spare, max_num_seqs, steps, asked, ends, prefill_ahead = history
    lengths = {"a": 3, "b": 4, "c": 7, "d": 1}
    largest = max(-(-(lengths[prompt] + new) // size) for prompt, new in asked)
    toy = Toy(1 + largest + spare, size, max_num_seqs, prefill_ahead)
    for sample, (prompt, new) in enumerate(asked):
        toy.scheduler.add(request(prompt, sample, lengths[prompt], new))
    looks = 0
    while not toy.scheduler.idle:
        toy.step(steps, ends[looks] if looks < len(ends) else set())
        looks += 1
        assert looks < 2000, "the scheduler makes no progress"
    assert sorted(each.sample for each in toy.finished) == list(range(len(asked)))
    assert toy.scheduler.blocks.num_used == 0


def test_prompts_of_the_next_requests_come_along_while_they_are_short_and_pages_are_over() -> None:
    def prefilled(num_blocks: int, prefill_ahead: int) -> list[int]:
        scheduler = Scheduler(
            BlockManager(num_blocks, 4), max_num_seqs=2, prefill_ahead=prefill_ahead
        )
        for sample, prompt in enumerate("aabbcde"):
            scheduler.add(request(prompt, sample))
        return [prefix.tokens[0] - ord("a") for prefix in scheduler.admit().new_prefixes]

    assert prefilled(num_blocks=30, prefill_ahead=0) == [0]
    assert prefilled(num_blocks=30, prefill_ahead=9) == [0]
    assert prefilled(num_blocks=30, prefill_ahead=10) == [0, 1]
    assert prefilled(num_blocks=30, prefill_ahead=100) == [0, 1]  # c is not among the next two
    # a takes three pages with the copy of its second one, each of the two that run may grow by one, b needs two
    assert [prefilled(num_blocks, 100) for num_blocks in (7, 8)] == [[0], [0, 1]]


def test_prompts_that_came_along_are_not_prefilled_again_and_give_way_when_pages_run_out() -> None:
    def times(num_blocks: int) -> list[int]:
        """How many prompts had been prefilled after each look."""
        toy, counts = Toy(num_blocks, size=4, max_num_seqs=2, prefill_ahead=100), []
        for sample, prompt in enumerate("abcd"):
            toy.scheduler.add(request(prompt, sample, length=4, new=9))
        while not toy.scheduler.idle:
            toy.step(1, set())
            counts.append(len(toy.prefilled))
        assert toy.scheduler.num_preemptions == 0
        assert [each.prompt_id for each in toy.finished] == list("abcd")
        return counts

    assert set(times(num_blocks=30)) == {4}
    assert (times(num_blocks=8)[0], times(num_blocks=8)[-1]) == (
        4,
        5,
    )  # two rows of three pages leave one of the seven


def test_what_comes_along_preempts_nobody() -> None:
    """A group that starts keeps its shared prompt; whoever only waits gives way first. Over 200 tight pools."""
    preempted = {0: 0, 256: 0}
    for prefill_ahead in preempted:
        for seed in range(200):
            rng = random.Random(seed)
            size, max_num_seqs, group = (
                rng.choice((1, 2, 4)),
                rng.choice((2, 3, 8)),
                rng.choice((2, 4)),
            )
            asked = [
                (chr(97 + n // group), n, 3 + n // group % 6, rng.randint(2, 16)) for n in range(24)
            ]
            largest = max(-(-(length + new) // size) for _, _, length, new in asked)
            toy = Toy(
                1 + largest + rng.randint(0, 2 * max_num_seqs * largest // 3),
                size,
                max_num_seqs,
                prefill_ahead,
            )
            for each in asked:
                toy.scheduler.add(request(*each))
            while not toy.scheduler.idle:
                toy.step(1, set())
            preempted[prefill_ahead] += toy.scheduler.num_preemptions
    assert preempted[256] <= preempted[0] > 0


def test_it_pays_to_look_when_others_could_start() -> None:
    scheduler = Scheduler(BlockManager(200, 2), max_num_seqs=16)
    for sample in range(20):
        scheduler.add(request("a", sample))
    assert scheduler.admit().started
    assert (len(scheduler.running), scheduler.min_running) == (16, 14)
    scheduler.waiting.clear()
    assert scheduler.min_running == 0


def test_a_groups_prompt_is_prefilled_once_and_shared() -> None:
    scheduler = Scheduler(BlockManager(20, 2), max_num_seqs=8)
    for sample in range(4):
        scheduler.add(request("a", sample))
    admission = scheduler.admit()
    assert len(admission.new_prefixes) == 1
    assert len(admission.started) == 4
    # Two full pages are shared; three samples copy the half-full one and the last takes it as it is.
    assert len(admission.block_copies) == 3
    assert scheduler.blocks.num_shared == 2
    assert scheduler.blocks.num_used == 2 + 4


def test_rows_that_share_the_blocks_of_a_prompt_are_grouped() -> None:
    """Prompts of 5 and 9 tokens in blocks of 4: the last, partly filled block is everybody's own."""
    scheduler = Scheduler(BlockManager(60, 4), 16)
    for prompt, samples, length in (("a", 5, 5), ("m", 1, 9), ("t", 3, 9), ("z", 2, 3)):
        for sample in range(samples):
            scheduler.add(request(prompt, sample, length=length))
    scheduler.admit()
    assert scheduler.prefix_groups(8) == [(4, [0, 1, 2, 3, 4]), (8, [6, 7, 8])]
    assert scheduler.prefix_groups(4) == [
        (4, [0, 1, 2, 3]),
        (8, [6, 7, 8]),
    ]  # a row that is left over is alone
    scheduler.finish([1, 2, 3, 4])
    assert [length for length, _ in scheduler.prefix_groups(8)] == [8]
    for length, rows in scheduler.prefix_groups(8):
        blocks = {tuple(scheduler.running[row].block_ids[: length // 4]) for row in rows}
        assert len(blocks) == 1 and {scheduler.running[row].request.prompt_id for row in rows} == {
            "t"
        }


def test_a_preempted_row_is_in_no_group() -> None:
    """It starts again with a prompt of its own."""
    scheduler = Scheduler(BlockManager(60, 4), 16)
    for sample in range(3):
        scheduler.add(request("a", sample))
    scheduler.admit()
    sequence = scheduler.running[2]
    sequence.output_tokens = [1, 2, 3, 4, 5]
    scheduler.blocks.free(sequence.block_ids)
    sequence.block_ids = []
    scheduler.preempt([2])
    scheduler.admit()
    assert scheduler.running[2] is sequence and scheduler.prefix_groups(8) == [(4, [0, 1])]


def test_a_row_that_ended_with_its_first_token_is_in_no_group() -> None:
    """It runs until it is collected, but the others may have its blocks already."""
    scheduler = Scheduler(BlockManager(5, 2), 4)
    for sample, new in enumerate((9, 9, 1)):
        scheduler.add(request("a", sample, length=2, new=new))
    scheduler.admit()
    assert scheduler.prefix_groups(8) == [(2, [0, 1, 2])]
    # Row 1 wants blocks that are not there: those that started last give theirs.
    assert scheduler.allocate_decode_blocks([2, 2, 2], 4) == [2, 1]
    assert scheduler.prefix_groups(8) == []


def test_the_one_that_started_last_is_preempted_and_starts_again_first() -> None:
    toy = Toy(num_blocks=10, size=2, max_num_seqs=4)
    for sample, prompt in enumerate("ab"):
        toy.scheduler.add(request(prompt, sample, length=4, new=10))
    while toy.scheduler.num_preemptions == 0:
        toy.step(1, set())
    assert [sequence.request.prompt_id for sequence in toy.scheduler.running] == ["a"]
    assert toy.scheduler.waiting[0].output_tokens  # it keeps what it drew
    while not toy.scheduler.idle:
        toy.step(1, set())
    assert [each.prompt_id for each in toy.finished] == ["a", "b"]


def test_clear_forgets_everybody() -> None:
    scheduler = Scheduler(BlockManager(20, 2), max_num_seqs=2)
    for sample in range(4):
        scheduler.add(request("a", sample))
    scheduler.admit()
    scheduler.clear()
    assert scheduler.idle
    assert scheduler.blocks.num_used == 0
