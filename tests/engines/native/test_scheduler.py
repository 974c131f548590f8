"""Who runs, who waits and whose pages they are: random histories keep every promise."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from ascent.engines.native.pages import Pages
from ascent.engines.native.scheduler import Move, Scheduler
from ascent.records import Request


def request(prompt: str, sample: int = 0, length: int = 5, new: int = 4) -> Request:
    first = ord(prompt[0])
    return Request(prompt, sample, tuple(range(first, first + length)), new, seed=0)


class Toy:
    """Drives a scheduler as the engine does, with lists in place of tensors, and checks what must always hold."""

    def __init__(self, pages: int, size: int, rows: int, homes: int = 0) -> None:
        self.scheduler = Scheduler(Pages(pages, size, homes), rows)
        self.size = size
        self.stored: list[int] = []
        self.finished: list[Request] = []
        self.content: dict[int, object] = {}  # what lies in each page: the tokens that were written to it

    def step(self, steps: int, ends: set[int]) -> None:
        scheduler = self.scheduler
        admission = scheduler.admit()
        for prefix in admission.prefilled:
            prefix.last = "hidden"
            for place, page in enumerate(prefix.pages):
                self.content[page] = prefix.tokens[place * self.size : (place + 1) * self.size]
        for source, target in admission.copies:
            self.content[target] = self.content[source]
        for sequence, prefix in admission.started:
            self.stored.append(len(prefix.tokens))
            self._holds(sequence.pages, sequence.tokens)
        self.check()
        stopped = scheduler.grow(self.stored, steps)
        for row in stopped:
            sequence = scheduler.running[row]
            # what it drew: its own sample number, so that no two sequences look alike
            sequence.made = [1000 + sequence.request.sample] * (self.stored[row] - len(sequence.request.tokens))
        self._move(scheduler.preempt(stopped))
        self.check()
        self._write(steps)
        done = [row for row, s in enumerate(scheduler.running) if row in ends or self.stored[row] >= s.longest - 1]
        self.finished += [scheduler.running[row].request for row in done]
        self._move(scheduler.finish(done))
        self.check()

    def _write(self, steps: int) -> None:
        """Each row stores its next tokens: in pages of its own alone, and without losing its prompt."""
        for row, sequence in enumerate(self.scheduler.running):
            for _ in range(steps):
                if self.stored[row] >= sequence.longest - 1:
                    break
                page = sequence.pages[self.stored[row] // self.size]
                assert self.scheduler.pages.holders(page) == 1, "a shared page was written to"
                old = self.content.get(page, ()) if self.stored[row] % self.size else ()
                self.content[page] = (*old, 1000 + sequence.request.sample)  # type: ignore[misc]
                self.stored[row] += 1
            drawn = [1000 + sequence.request.sample] * (self.stored[row] - len(sequence.request.tokens))
            self._holds(sequence.pages, (*sequence.request.tokens, *drawn))

    def _holds(self, pages: list[int], tokens: tuple[int, ...]) -> None:
        found = [token for page in pages for token in self.content.get(page, ())]  # type: ignore[attr-defined]
        assert tuple(found[: len(tokens)]) == tokens, "a row's pages do not hold its tokens"

    def _move(self, moves: list[Move]) -> None:
        pairs = [move.pages for move in moves if move.pages]
        assert not {a for a, _ in pairs} & {b for _, b in pairs}, "copied from and to: their order would matter"
        for move in moves:
            self.stored[move.target] = self.stored[move.source]
            if move.pages:
                self.content[move.pages[1]] = self.content[move.pages[0]]
        del self.stored[len(self.scheduler.running) :]

    def check(self) -> None:
        """Every page is held exactly as often as somebody names it; nothing is lost, nothing is free and held."""
        scheduler = self.scheduler
        named = Counter(page for sequence in scheduler.running for page in sequence.pages)
        named.update(page for prefix in scheduler._prefixes.values() for page in prefix.pages)
        named.update(scheduler._leaving)
        assert 0 not in named
        for page in range(1, scheduler.pages.count):
            assert scheduler.pages.holders(page) == named[page]
        assert scheduler.pages.free == scheduler.pages.usable - len(named)
        assert len(scheduler.running) <= scheduler.rows


histories = st.tuples(
    st.integers(1, 4),  # tokens of a page
    st.integers(0, 12),  # pages beyond what the largest request needs
    st.integers(1, 6),  # rows
    st.integers(1, 3),  # steps of a look
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 6)), min_size=1, max_size=14),  # prompt, new tokens
    st.lists(st.sets(st.integers(0, 5), max_size=2), min_size=1, max_size=40),  # rows that end early, look by look
)


@settings(max_examples=300, deadline=None)
@given(histories)
def test_random_histories_leak_nothing_and_finish(
    history: tuple[int, int, int, int, list[tuple[str, int]], list[set[int]]],
) -> None:
    size, spare, rows, steps, asked, ends = history
    lengths = {"a": 3, "b": 4, "c": 7, "d": 1}
    largest = max(-(-(lengths[prompt] + new) // size) for prompt, new in asked)
    toy = Toy(1 + largest + spare, size, rows)
    for sample, (prompt, new) in enumerate(asked):
        toy.scheduler.add(request(prompt, sample, lengths[prompt], new))
    looks = 0
    while not toy.scheduler.idle:
        toy.step(steps, ends[looks] if looks < len(ends) else set())
        looks += 1
        assert looks < 2000, "the scheduler makes no progress"
    assert sorted(each.sample for each in toy.finished) == list(range(len(asked)))
    assert toy.scheduler.pages.used == 0


@settings(max_examples=150, deadline=None)
@given(histories)
def test_with_homes_every_row_lies_in_its_own_page(
    history: tuple[int, int, int, int, list[tuple[str, int]], list[set[int]]],
) -> None:
    _, spare, rows, steps, asked, ends = history
    lengths = {"a": 3, "b": 4, "c": 7, "d": 1}
    toy = Toy(1 + rows + 4 + spare, 16, rows, homes=rows)  # pages enough for every prompt
    for sample, (prompt, new) in enumerate(asked):
        toy.scheduler.add(request(prompt, sample, lengths[prompt], new))
    looks = 0
    while not toy.scheduler.idle:
        toy.step(steps, ends[looks] if looks < len(ends) else set())
        looks += 1
        running = toy.scheduler.running
        assert [sequence.pages for sequence in running] == [[row + 1] for row in range(len(running))]
        assert looks < 2000, "the scheduler makes no progress"
    assert sorted(each.sample for each in toy.finished) == list(range(len(asked)))
    assert toy.scheduler.pages.used == 0
    assert toy.scheduler.preemptions == 0


@settings(max_examples=300, deadline=None)
@given(
    st.integers(2, 8),  # rows
    st.integers(0, 3),  # pages that are nobody's home
    st.integers(1, 2),  # samples of a prompt
    st.lists(st.integers(1, 8), min_size=4, max_size=24),  # new tokens of each request
    st.lists(st.sets(st.integers(0, 7), max_size=4), max_size=40),
)
def test_with_homes_and_few_other_pages_rows_keep_their_tokens(
    rows: int, spare: int, group: int, asked: list[int], ends: list[set[int]]
) -> None:
    """Shared prompts then lie in the homes of rows, and rows elsewhere; the toy checks what each page holds.

    A prompt with one sample needs no page but the row's own.
    """
    toy = Toy(2 + rows + spare, 16, rows, homes=rows)
    for sample, new in enumerate(asked):
        prompt = sample // group
        toy.scheduler.add(request(chr(97 + prompt), sample, length=3 + prompt % 5, new=new))
    looks = 0
    while not toy.scheduler.idle:
        toy.step(1, ends[looks] if looks < len(ends) else set())
        looks += 1
        running = toy.scheduler.running
        assert group > 1 or [each.pages for each in running] == [[row + 1] for row in range(len(running))]
        assert looks < 2000, "the scheduler makes no progress"
    assert sorted(each.sample for each in toy.finished) == list(range(len(asked)))


def test_a_page_that_is_left_is_not_given_to_the_next_that_moves() -> None:
    """Rows 4 and 5 lie in the homes of rows 3 and 1. When 0 and 3 end, 4 leaves a page that 5 could have next."""
    scheduler = Scheduler(Pages(30, 16, homes=6), rows=6)
    for sample in range(6):
        scheduler.add(request(chr(97 + sample), sample))
    scheduler.admit()
    scheduler.grow([5] * 6, 1)
    pages, running = scheduler.pages, scheduler.running
    for away, guest in ((3, 4), (1, 5)):
        pages.drop([*running[away].pages, *running[guest].pages])
        running[away].pages = pages.take(1)
        running[guest].pages = [pages.home(away)]  # type: ignore[list-item]
    assert running[4].pages == [4] and running[5].pages == [2]
    assert scheduler.finish([0, 3]) == [Move(4, 0, (4, 1)), Move(5, 3, None)]
    assert running[3].pages == [2] and pages.holders(4) == 0


def test_with_homes_and_too_few_pages_all_finish() -> None:
    toy = Toy(pages=5, size=16, rows=3, homes=3)
    for sample in range(9):
        toy.scheduler.add(request("abc"[sample % 3], sample, length=4, new=5 + sample))
    for _ in range(200):
        toy.step(2, set())
    assert sorted(each.sample for each in toy.finished) == list(range(9))
    assert toy.scheduler.pages.used == 0


def test_it_pays_to_look_when_others_could_start() -> None:
    scheduler = Scheduler(Pages(200, 2), rows=16)
    for sample in range(20):
        scheduler.add(request("a", sample))
    assert scheduler.admit().started
    assert (len(scheduler.running), scheduler.enough) == (16, 14)
    scheduler.waiting.clear()
    assert scheduler.enough == 0


def test_a_groups_prompt_is_prefilled_once_and_shared() -> None:
    scheduler = Scheduler(Pages(20, 2), rows=8)
    for sample in range(4):
        scheduler.add(request("a", sample))
    admission = scheduler.admit()
    assert len(admission.prefilled) == 1
    assert len(admission.started) == 4
    # Two full pages are shared; three samples copy the half-full one and the last takes it as it is.
    assert len(admission.copies) == 3
    assert scheduler.pages.shared == 2
    assert scheduler.pages.used == 2 + 4


def test_the_one_that_started_last_is_preempted_and_starts_again_first() -> None:
    toy = Toy(pages=10, size=2, rows=4)
    for sample, prompt in enumerate("ab"):
        toy.scheduler.add(request(prompt, sample, length=4, new=10))
    while toy.scheduler.preemptions == 0:
        toy.step(1, set())
    assert [sequence.request.prompt_id for sequence in toy.scheduler.running] == ["a"]
    assert toy.scheduler.waiting[0].made  # it keeps what it drew
    while not toy.scheduler.idle:
        toy.step(1, set())
    assert [each.prompt_id for each in toy.finished] == ["a", "b"]


def test_clear_forgets_everybody() -> None:
    scheduler = Scheduler(Pages(20, 2), rows=2)
    for sample in range(4):
        scheduler.add(request("a", sample))
    scheduler.admit()
    scheduler.clear()
    assert scheduler.idle
    assert scheduler.pages.used == 0
