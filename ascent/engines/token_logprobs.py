"""Log-probs of given tokens and of the likeliest ones, with the forward of training. Axes: T tokens, V vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from ascent.maths.batch import PackedBatch
from ascent.maths.groups import Groups
from ascent.maths.segments import Segments
from ascent.models.model import LanguageModel


class TokenLogprob(NamedTuple):
    """`top` has the likeliest tokens at this position, the likeliest first."""

    logprob: float
    top: dict[int, float]


@torch.no_grad()
def token_logprobs(
    model: LanguageModel, tokens: Sequence[int], top: int, temperature: float = 1.0
) -> list[TokenLogprob | None]:
    """For every token of one sequence; None for the first, which nothing precedes."""
    device, count = model.device, len(tokens)
    batch: PackedBatch = {
        "tokens_T": torch.tensor(tokens, device=device),
        "positions_T": torch.arange(count, device=device),
        "segments": Segments.from_lengths(torch.tensor([count])),
        "groups": Groups.from_ids(torch.tensor([0])),
    }
    if count < 2:
        return [None] * count
    outputs = model.outputs(batch, frozenset({"logprobs_T", "logits_TV"}), temperature)
    logprobs, logits = outputs["logprobs_T"].tolist(), outputs["logits_TV"]
    found: list[TokenLogprob | None] = [None]
    for start in range(0, logits.count, logits.rows_per_chunk):
        rows = logits.logits(slice(start, start + logits.rows_per_chunk)).log_softmax(-1)
        values_TK, ids_TK = rows.topk(min(top, rows.shape[-1]))
        for values, ids in zip(values_TK.tolist(), ids_TK.tolist(), strict=True):
            own = logprobs[len(found)]
            # The same number twice: two kernels may round a log-prob differently.
            known = {
                token: own if token == tokens[len(found)] else value
                for token, value in zip(ids, values, strict=True)
            }
            found.append(TokenLogprob(own, known))
    return found
