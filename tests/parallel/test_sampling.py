"""Rank 0 asks the servers for all ranks; every rank gets its own completions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from ascent.parallel.distributed import process_group
from ascent.parallel.sampling import FirstRankSampler
from ascent.protocols import Weights
from ascent.records import Completion, Request
from tests.parallel.group import run_in_ranks


class Echo:
    """Answers with the prompt, last request first; counts its calls."""

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.version = 0

    def sample(self, requests: Iterable[Request]) -> Iterator[Completion]:
        asked = list(requests)
        self.calls.append(len(asked))
        for each in reversed(asked):
            length = len(each.tokens)
            yield Completion(
                each.prompt_id,
                each.sample,
                each.tokens,
                (-1.0,) * length,
                (self.version,) * length,
                "eos",
            )

    def set_weights(self, version: int, tensors: Weights) -> None:
        self.version = version

    def close(self) -> None:
        self.calls.append(-1)


def ask() -> tuple[list[tuple[str, tuple[int, ...], tuple[int, ...]]], list[int]]:
    with process_group(timeout=60) as ranks:
        echo = Echo()
        sampler = FirstRankSampler(echo if ranks.is_first else None, ranks, exact=True)
        sampler.set_weights(3, {})
        prompts = range(ranks.rank)  # the first rank asks for nothing
        requests = [Request(f"{ranks.rank}.{n}", 0, (ranks.rank, n), 4, 0) for n in prompts]
        found = [(each.prompt_id, each.tokens, each.versions) for each in sampler.sample(requests)]
        sampler.close()
        return sorted(found), echo.calls


def test_every_rank_gets_its_own_completions_of_one_call(tmp_path: Path) -> None:
    found = run_in_ranks(3, tmp_path, ask)
    assert [each[0] for each in found] == [
        [],
        [("1.0", (1, 0), (3, 3))],
        [("2.0", (2, 0), (3, 3)), ("2.1", (2, 1), (3, 3))],
    ]
    assert [each[1] for each in found] == [[3, -1], [], []]
