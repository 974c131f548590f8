"""Servers that sample for several ranks: rank 0 alone talks to them, so they have one owner and one version."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ascent.parallel.ranks import Ranks
from ascent.protocols import Sampler, Weights
from ascent.records import Completion, Request


class FirstRankSampler:
    """Implements `protocols.Sampler` with the `sampler` of rank 0; other ranks have none. All ranks call it together.

    `exact`: its log-probs are those of the native engine, bit for bit.
    """

    def __init__(self, sampler: Sampler | None, ranks: Ranks, *, exact: bool) -> None:
        assert (sampler is not None) == ranks.is_first, (
            "rank 0 has the sampler, and no other rank has one"
        )
        self._sampler, self._ranks, self.exact = sampler, ranks, exact

    def sample(self, requests: Iterable[Request]) -> Iterator[Completion]:
        """This rank's completions, once those of all ranks are there."""
        own = list(requests)
        asked = self._ranks.concat(own, "the requests to the servers")
        sampled = [] if self._sampler is None else list(self._sampler.sample(asked))
        keys = {(each.prompt_id, each.sample) for each in own}
        for each in self._ranks.broadcast(sampled, "the completions of the servers"):
            if (each.prompt_id, each.sample) in keys:
                yield each

    def set_weights(self, version: int, tensors: Weights) -> None:
        if self._sampler is not None:
            self._sampler.set_weights(version, tensors)

    def close(self) -> None:
        if self._sampler is not None:
            self._sampler.close()
