"""A small real policy with the interface of a model, packed batches for it, and ways of cutting them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ascent.maths.groups import Groups
from ascent.maths.logprobs import next_token_logprobs
from ascent.maths.segments import Segments
from tests.batches import rows_of

VOCABULARY = 11


class Toy(nn.Module):
    """Sees the token before and the running mean of its sequence; has a norm, biases, dropout and a scalar head."""

    def __init__(
        self, *, width: int = 8, seed: int = 0, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.embed = nn.Embedding(VOCABULARY, width)
            self.mix = nn.Linear(2 * width, width)
            self.drop = nn.Dropout(0.5)
            self.norm = nn.LayerNorm(width)
            self.head = nn.Linear(width, VOCABULARY, bias=False)
            self.score = nn.Linear(width, 1)
        self.calls: list[tuple[frozenset[str], bool]] = []
        self.to(dtype)

    def outputs(
        self, batch: dict[str, Any], want: frozenset[str], temperature: float
    ) -> dict[str, Tensor]:
        self.calls.append((want, self.training))
        segments: Segments = batch["segments"]
        hidden_TD = self.hidden(batch["tokens_T"], segments)
        logits_TV = (
            self.head(hidden_TD).float()
            if hidden_TD.dtype == torch.bfloat16
            else self.head(hidden_TD)
        )
        values_T = self.score(hidden_TD).squeeze(-1)
        last_B = (segments.offsets[1:] - 1).clamp(min=0)
        made = {
            "logprobs_T": next_token_logprobs(
                logits_TV, batch["tokens_T"], segments, temperature=temperature
            ),
            "entropy_T": torch.distributions.Categorical(
                logits=logits_TV, validate_args=False
            ).entropy(),
            "values_T": values_T,
            "scores_B": values_T[last_B],
        }
        return {name: made[name] for name in want}

    def hidden(self, tokens_T: Tensor, segments: Segments) -> Tensor:
        embedded_TD = self.embed(tokens_T)
        means = []
        for length, part_TD in zip(
            segments.lengths_B.tolist(), embedded_TD.split(segments.lengths_B.tolist()), strict=True
        ):
            counts_T1 = torch.arange(1, length + 1, dtype=part_TD.dtype).unsqueeze(-1)
            means.append(part_TD.cumsum(0) / counts_T1)
        return self.norm(
            self.drop(torch.tanh(self.mix(torch.cat([embedded_TD, torch.cat(means)], -1))))
        )


def batch_of(seed: int, *, rows: int = 12, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """Ragged sequences in groups of two, each group a pair; everything the tested rows ask for."""
    rng = torch.Generator().manual_seed(seed)
    segments = Segments.from_lengths(torch.randint(3, 9, (rows,), generator=rng))
    total = segments.total

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng, dtype=torch.float64).to(dtype)

    positions_T = torch.arange(total) - segments.broadcast(segments.offsets[:-1])
    return {
        "segments": segments,
        "groups": Groups.from_ids(torch.arange(rows) // 2),
        "tokens_T": torch.randint(0, VOCABULARY, (total,), generator=rng),
        "loss_mask_T": (positions_T > 0) & (torch.rand(total, generator=rng) < 0.8),
        "ref_logprobs_T": -2.4 + 0.1 * normal(total),
        "old_logprobs_T": -2.4 + 0.1 * normal(total),
        "advantages_T": normal(total),
        "desirable_B": torch.rand(rows, generator=rng) < 0.5,
        "chosen_P": torch.arange(0, rows, 2),
        "rejected_P": torch.arange(1, rows, 2),
    }


def with_companion(batch: dict[str, Any], seed: int) -> dict[str, Any]:
    """The batch with a mismatched companion: the same shapes, other tokens."""
    rng = torch.Generator().manual_seed(seed)
    tokens_T = torch.randint(0, VOCABULARY, batch["tokens_T"].shape, generator=rng)
    names = ("segments", "loss_mask_T", "ref_logprobs_T", "groups", "chosen_P", "rejected_P")
    return {**batch, "mismatched": {**{name: batch[name] for name in names}, "tokens_T": tokens_T}}


def cut(batch: dict[str, Any], pairs: list[list[int]]) -> list[dict[str, Any]]:
    """Micro-batches made of the given pairs of neighbouring sequences; a companion is cut alike."""
    pieces = []
    for chosen in pairs:
        rows = torch.tensor([row for pair in chosen for row in (2 * pair, 2 * pair + 1)])
        piece = rows_of(
            {name: value for name, value in batch.items() if name != "mismatched"}, rows
        )
        if "mismatched" in batch:
            piece["mismatched"] = rows_of(batch["mismatched"], rows)
        pieces.append(piece)
    return pieces


CUTS = (
    [[0, 1, 2, 3, 4, 5]],
    [[0, 1, 2], [3, 4, 5]],
    [[0], [1, 2, 3, 4], [5]],
    [[5], [4], [3], [2], [1], [0]],
)
