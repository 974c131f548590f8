"""Cut a held-out share from a dataset, by prompt.

Whether a prompt is held out depends on its text alone, not on the seed, the order or the rest of the file. So it stays
held out when the file grows, and in the next stage of training on the same prompts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace

from ascent.data.load import LoadResult
from ascent.data.prepare import prompt_messages
from ascent.data.schemas import Record
from ascent.records import Example


def heldout_prompts(loaded: LoadResult, share: float) -> frozenset[str]:
    """The held-out prompts of a dataset: about `share` of all, with something left on either side.

    Unpaired answers are compared with those to other prompts (KTO), so that both sides need two.
    """
    ranked = sorted({_prompt(record) for record in loaded.records}, key=_rank)
    least = 2 if loaded.kind == "unpaired" else 1
    if len(ranked) < 2 * least:
        raise ValueError(
            f"{loaded.name} has {len(ranked)} different prompts, too few to hold some out for evaluation; name "
            "evaluation data, or set data.evaluate=null"
        )
    count = sum(_rank(each) < share for each in ranked)
    return frozenset(ranked[: min(max(count, least), len(ranked) - least)])


def split(loaded: LoadResult, heldout: frozenset[str]) -> tuple[LoadResult, LoadResult]:
    """The records to train on and the held-out ones."""
    return _filter(loaded, lambda prompt: prompt not in heldout), _filter(
        loaded, lambda prompt: prompt in heldout
    )


def _filter(loaded: LoadResult, keep: Callable[[str], bool]) -> LoadResult:
    places = [
        place
        for record, place in zip(loaded.records, loaded.places, strict=True)
        if keep(_prompt(record))
    ]
    records = [record for record in loaded.records if keep(_prompt(record))]
    return replace(loaded, records=tuple(records), places=tuple(places))


def _prompt(record: Record) -> str:
    """The text of a prompt without its white space; plain text is its own prompt."""
    messages = prompt_messages(record)
    if not messages and isinstance(record, Example):
        messages = record.messages
    return "\n".join(f"{each.role}: {' '.join(each.content.split())}" for each in messages)


def _rank(prompt: str) -> float:
    """A number from 0 to 1 that only depends on the text."""
    return (
        int.from_bytes(hashlib.sha256(prompt.encode(errors="surrogatepass")).digest()[:8], "big")
        / 2**64
    )
