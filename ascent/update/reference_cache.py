"""Log-probabilities under a frozen reference model, computed once and cached by content.

The key of a sequence is a hash of its tokens and loss mask, so the cache survives shuffling, packing and a change of
batch size. The file holds its own sha256 and the fingerprint of the reference; a file that does not match is reported
(`notes`) and computed again. Axes: T flat tokens.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ascent.checkpoints import disk
from ascent.maths.batch import PackedBatch
from ascent.parallel.ranks import SINGLE, Ranks
from ascent.update.device import to_device
from ascent.update.learner import Model

WANT = frozenset({"logprobs_T"})


class ReferenceCache:
    """Adds `ref_logprobs_T` to packed batches, and to batches inside them.

    `model` may be set to None once everything is cached. `fingerprint` identifies the reference model.
    """

    def __init__(
        self,
        model: Model | None,
        *,
        temperature: float = 1.0,
        file: Path | None = None,
        fingerprint: str = "",
        ranks: Ranks = SINGLE,
    ) -> None:
        self.model, self.temperature, self.file, self.fingerprint = (
            model,
            temperature,
            file,
            fingerprint,
        )
        self._ranks = ranks
        self.cached: dict[str, Tensor] = {}
        self.notes: list[str] = []
        if file is not None and file.exists():
            try:
                self.cached = read(file, fingerprint=fingerprint)
            except (SafetensorError, OSError, ValueError) as error:
                self.notes.append(
                    f"{file.name} cannot be used ({error}); its log-probs are computed again"
                )

    def precompute(self, batches: Iterable[PackedBatch]) -> int:
        """Compute and store what is not cached yet, each rank some of it; returns the number of new sequences."""
        before = len(self.cached)
        batches = list(batches)
        self.cached |= self._compute_over_ranks(batches)
        for part in _parts(batches):  # nothing is missing where ranks have computed it
            self.cached |= self._compute_missing(part)
        fresh = len(self.cached) - before
        if fresh and self.file is not None and self._ranks.is_first:
            write(self.file, self.cached, fingerprint=self.fingerprint)
        return fresh

    def add(self, batches: Sequence[PackedBatch]) -> list[PackedBatch]:
        """The batches with reference log-probs. What is not cached is computed, some by each rank, and not stored."""
        stored, fresh = self.cached, self._compute_over_ranks(batches)
        self.cached = stored | fresh if fresh else stored
        added = [self(batch) for batch in batches]
        self.cached = stored
        return added

    def _compute_over_ranks(self, batches: Iterable[PackedBatch]) -> dict[str, Tensor]:
        """What is not cached, of several ranks; one process computes it as it goes along."""
        parts = list(_parts(batches)) if self._ranks.count > 1 else []
        found = (
            self._ranks.map(self._compute_missing, parts, "the reference log-probs")
            if parts
            else []
        )
        return {key: logprobs_T for own in found for key, logprobs_T in own.items()}

    def __call__(self, batch: PackedBatch) -> PackedBatch:
        """The batch with reference log-probs. What is not cached is computed, and not stored."""
        inner = {name: self(value) for name, value in _inner(batch).items()}
        fresh = self._compute_missing(batch)
        pieces = [fresh[key] if key in fresh else self.cached[key] for key in keys_of(batch)]
        return cast(PackedBatch, {**batch, **inner, "ref_logprobs_T": torch.cat(pieces)})

    @torch.no_grad()
    def _compute_missing(self, batch: PackedBatch) -> dict[str, Tensor]:
        """Log-probs of the sequences that are not cached."""
        keys = keys_of(batch)
        if all(key in self.cached for key in keys):
            return {}
        if self.model is None:
            raise ValueError(
                "a sequence has no cached reference log-probs, but the reference model was released after the data was "
                "read; the data changed during the run: start a new one"
            )
        device = next(weight.device for _, weight in self.model.named_parameters())
        outputs = self.model.outputs(to_device(batch, device), WANT, self.temperature)
        pieces = outputs["logprobs_T"].float().cpu().split(batch["segments"].lengths_B.tolist())
        return {
            k: piece.clone() for k, piece in zip(keys, pieces, strict=True) if k not in self.cached
        }


def _parts(batches: Iterable[PackedBatch]) -> Iterator[PackedBatch]:
    for batch in batches:
        yield from (batch, *_inner(batch).values())


def _inner(batch: PackedBatch) -> dict[str, PackedBatch]:
    """The batches inside a batch, such as KTO's mismatched completions."""
    return {
        name: cast(PackedBatch, value)
        for name, value in batch.items()
        if isinstance(value, Mapping)
    }


def write(file: Path, logprobs: Mapping[str, Tensor], *, fingerprint: str = "") -> None:
    """Atomic: written under another name, synced, renamed."""
    writing = file.with_name(f".{file.name}.writing")
    disk.announce("write", writing)
    with disk.writing():
        save_file(
            dict(logprobs), writing, metadata={"sha256": f"{digest(logprobs)} of {fingerprint}"}
        )
    disk.sync(writing)
    disk.rename(writing, file)


def read(file: Path, *, fingerprint: str = "") -> dict[str, Tensor]:
    """What `write` wrote; ValueError or SafetensorError if the file is corrupted or of another reference."""
    with safe_open(file, framework="pt") as content:
        logprobs = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118 - not a mapping
        sha256, _, reference = (content.metadata() or {}).get("sha256", "").partition(" of ")
    if sha256 != digest(logprobs):
        raise ValueError("it does not match its sha256: it is corrupted")
    if reference != fingerprint:
        raise ValueError("it is of another reference")
    return logprobs


def digest(logprobs: Mapping[str, Tensor]) -> str:
    """A hash of every name and every bit, in any order."""
    found = hashlib.sha256()
    for name in sorted(logprobs):
        found.update(
            f"{name} {logprobs[name].numel()} ".encode() + logprobs[name].numpy().tobytes()
        )
    return found.hexdigest()


def keys_of(batch: PackedBatch) -> list[str]:
    """One hash per sequence, of its tokens and its trained mask."""
    lengths = batch["segments"].lengths_B.tolist()
    tokens = batch["tokens_T"].cpu().to(torch.int64).split(lengths)
    trained = batch["loss_mask_T"].cpu().split(lengths)
    return [
        hashlib.blake2b(
            t.numpy().tobytes() + b"/" + m.numpy().tobytes(), digest_size=16
        ).hexdigest()
        for t, m in zip(tokens, trained, strict=True)
    ]
