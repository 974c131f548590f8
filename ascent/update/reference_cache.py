"""Log-probabilities under a frozen reference, computed once and kept by content.

The key of a sequence is a hash of its tokens and of which are trained, so a cache survives shuffling, packing and a
change of batch size, and can never serve another text. Axes: T flat tokens.

On disk they lie in one file that names its own sha256, and the reference that they are of. A file that does not match
either is told (`notes`) and computed again: nothing is lost but time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ascent.checkpoints import disk
from ascent.maths.batch import PackedBatch
from ascent.update.device import to_device
from ascent.update.learner import Model

WANT = frozenset({"logprobs_T"})


class Reference:
    """Adds `ref_logprobs_T` to packed batches, companions included. `model` may be dropped once everything is known.

    `of` is a fingerprint of the reference, by which a file of another one is known.
    """

    def __init__(
        self, model: Model | None, *, temperature: float = 1.0, file: Path | None = None, of: str = ""
    ) -> None:
        self.model, self.temperature, self.file, self.of = model, temperature, file, of
        self.known: dict[str, Tensor] = {}
        self.notes: list[str] = []
        if file is not None and file.exists():
            try:
                self.known = read(file, of=of)
            except (SafetensorError, OSError, ValueError) as error:
                self.notes.append(f"{file.name} cannot be used ({error}); its log-probs are computed again")

    def learn(self, batches: Iterable[PackedBatch]) -> int:
        """Compute what is not known yet and keep it, on disk where there is a file; returns how many sequences."""
        before = len(self.known)
        for batch in batches:
            for part in (batch, *_inner(batch).values()):
                self.known |= self._unknown(part)
        fresh = len(self.known) - before
        if fresh and self.file is not None:
            write(self.file, self.known, of=self.of)
        return fresh

    def __call__(self, batch: PackedBatch) -> PackedBatch:
        """The batch with reference log-probs; a mapping inside it (a companion) gets its own.

        What was not learnt beforehand is computed and not kept, because a resumed run would not know it either.
        """
        inner = {name: self(value) for name, value in _inner(batch).items()}
        fresh = self._unknown(batch)
        pieces = [fresh[key] if key in fresh else self.known[key] for key in keys_of(batch)]
        return cast(PackedBatch, {**batch, **inner, "ref_logprobs_T": torch.cat(pieces)})

    @torch.no_grad()
    def _unknown(self, batch: PackedBatch) -> dict[str, Tensor]:
        """Log-probs of the sequences that are not known; the known ones keep the bits they have."""
        keys = keys_of(batch)
        if all(key in self.known for key in keys):
            return {}
        if self.model is None:
            raise ValueError(
                "a sequence without reference log-probs, but the reference model was dropped after the data was read; "
                "the data changed under the run: start a new one"
            )
        device = next(weight.device for _, weight in self.model.named_parameters())
        outputs = self.model.outputs(to_device(batch, device), WANT, self.temperature)
        pieces = outputs["logprobs_T"].float().cpu().split(batch["segments"].lengths_B.tolist())
        return {k: piece.clone() for k, piece in zip(keys, pieces, strict=True) if k not in self.known}


def _inner(batch: PackedBatch) -> dict[str, PackedBatch]:
    """The batches inside a batch, such as KTO's mismatched completions."""
    return {name: cast(PackedBatch, value) for name, value in batch.items() if isinstance(value, Mapping)}


def write(file: Path, known: Mapping[str, Tensor], *, of: str = "") -> None:
    """Whole or not at all: under another name, synced, renamed."""
    writing = file.with_name(f".{file.name}.writing")
    disk.announce("write", writing)
    with disk.writing():
        save_file(dict(known), writing, metadata={"sha256": f"{digest(known)} of {of}"})
    disk.sync(writing)
    disk.rename(writing, file)


def read(file: Path, *, of: str = "") -> dict[str, Tensor]:
    """What `write` wrote; ValueError or SafetensorError where it is not that any more."""
    with safe_open(file, framework="pt") as content:
        known = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118 - not a mapping
        seal, _, reference = (content.metadata() or {}).get("sha256", "").partition(" of ")
    if seal != digest(known):
        raise ValueError("it does not match its sha256: it is corrupted")
    if reference != of:
        raise ValueError("it is of another reference")
    return known


def digest(known: Mapping[str, Tensor]) -> str:
    """Of every name and every bit, whatever order they lie in."""
    found = hashlib.sha256()
    for name in sorted(known):
        found.update(f"{name} {known[name].numel()} ".encode() + known[name].numpy().tobytes())
    return found.hexdigest()


def keys_of(batch: PackedBatch) -> list[str]:
    """One hash per sequence, of its tokens and its trained mask."""
    lengths = batch["segments"].lengths_B.tolist()
    tokens = batch["tokens_T"].cpu().to(torch.int64).split(lengths)
    trained = batch["loss_mask_T"].cpu().split(lengths)
    return [
        hashlib.blake2b(t.numpy().tobytes() + b"/" + m.numpy().tobytes(), digest_size=16).hexdigest()
        for t, m in zip(tokens, trained, strict=True)
    ]
