"""Reference log-probs: computed once, found again by content, never for another text."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ascent.checkpoints import disk
from ascent.maths.logprobs import next_token_logprobs
from ascent.maths.segments import Segments
from ascent.update.reference_cache import ReferenceCache, read, write


class Bigram:
    """A real, tiny model: the next token depends on the last one. Counts its forward passes."""

    def __init__(self) -> None:
        self.table = torch.randn(10, 10, generator=torch.Generator().manual_seed(0))
        self.calls = 0

    def outputs(
        self, batch: dict[str, Any], want: frozenset[str], temperature: float
    ) -> dict[str, Tensor]:
        self.calls += 1
        logits = self.table[batch["tokens_T"]]
        return {
            "logprobs_T": next_token_logprobs(
                logits, batch["tokens_T"], batch["segments"], temperature=temperature
            )
        }

    def named_parameters(self) -> Any:
        yield "table", self.table


def batch(*sequences: list[int]) -> dict[str, Any]:
    tokens = torch.tensor([t for each in sequences for t in each])
    segments = Segments.from_lengths([len(each) for each in sequences])
    return {
        "tokens_T": tokens,
        "segments": segments,
        "loss_mask_T": torch.ones(tokens.numel(), dtype=torch.bool),
    }


A, B, C = [1, 2, 3], [4, 5], [6, 7, 8, 9]


def test_each_text_is_computed_once_whatever_it_is_packed_with() -> None:
    model = Bigram()
    reference = ReferenceCache(model)  # type: ignore[arg-type]
    assert reference.precompute([batch(A, B), batch(C)]) == 3
    assert model.calls == 2
    alone = Bigram().outputs(batch(C, A), frozenset(), 1.0)["logprobs_T"]
    torch.testing.assert_close(reference(batch(C, A))["ref_logprobs_T"], alone, rtol=0, atol=1e-6)
    assert model.calls == 2


def test_a_companion_gets_its_own() -> None:
    reference = ReferenceCache(Bigram())  # type: ignore[arg-type]
    done = reference({**batch(A), "mismatched": batch(B)})
    assert done["ref_logprobs_T"].numel() == 3
    assert done["mismatched"]["ref_logprobs_T"].numel() == 2


def test_the_file_serves_a_second_run_without_the_model(tmp_path: Path) -> None:
    file = tmp_path / "reference.safetensors"
    first = ReferenceCache(Bigram(), file=file)  # type: ignore[arg-type]
    first.precompute([batch(A, B)])
    second = ReferenceCache(None, file=file)
    torch.testing.assert_close(
        second(batch(B, A))["ref_logprobs_T"], first(batch(B, A))["ref_logprobs_T"], rtol=0, atol=0
    )
    with pytest.raises(ValueError, match="reference model was released"):
        second(batch(C))


def test_another_mask_is_another_text() -> None:
    masked = {**batch(A), "loss_mask_T": torch.tensor([False, True, True])}
    assert ReferenceCache(Bigram()).precompute([batch(A), masked]) == 2  # type: ignore[arg-type]


def test_what_was_not_learnt_is_computed_every_time_as_a_resumed_run_would() -> None:
    model = Bigram()
    reference = ReferenceCache(model)  # type: ignore[arg-type]
    first, again = (reference(batch(A))["ref_logprobs_T"] for _ in range(2))
    assert torch.equal(first, again)
    assert model.calls == 2 and not reference.cached


def _flipped(content: bytes) -> bytes:
    return content[:-3] + bytes([content[-3] ^ 1]) + content[-2:]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (_flipped, "does not match its sha256"),
        (lambda content: content[: len(content) // 2], "cannot be used"),
        (lambda content: b"", "cannot be used"),
        (lambda content: content.replace(b"sha256", b"sha255"), "does not match its sha256"),
    ],
)
def test_a_damaged_file_is_told_and_computed_again(
    damage: Any, reason: str, tmp_path: Path
) -> None:
    file = tmp_path / "reference.safetensors"
    first = ReferenceCache(Bigram(), file=file)  # type: ignore[arg-type]
    first.precompute([batch(A, B)])
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    model = Bigram()
    second = ReferenceCache(model, file=file)  # type: ignore[arg-type]
    assert len(second.notes) == 1 and reason in second.notes[0]
    assert second.notes[0].endswith("its log-probs are computed again")
    assert second.precompute([batch(A, B)]) == 2 and model.calls == 1
    assert file.read_bytes() == whole
    assert ReferenceCache(None, file=file).notes == []


def test_a_file_of_another_reference_is_told_and_computed_again(tmp_path: Path) -> None:
    file = tmp_path / "reference.safetensors"
    ReferenceCache(Bigram(), file=file, fingerprint="one").precompute([batch(A, B)])  # type: ignore[arg-type]
    assert len(ReferenceCache(None, file=file, fingerprint="one").cached) == 2
    model = Bigram()
    other = ReferenceCache(model, file=file, fingerprint="another")  # type: ignore[arg-type]
    assert "it is of another reference" in other.notes[0] and not other.cached
    assert other.precompute([batch(A, B)]) == 2 and model.calls == 1
    assert len(ReferenceCache(None, file=file, fingerprint="another").cached) == 2


def test_killed_at_any_change_the_file_is_the_old_one_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "reference.safetensors"
    old, new = {"a": torch.ones(3)}, {"a": torch.ones(3), "b": torch.zeros(2)}
    seen: list[str] = []

    class Killed(BaseException): ...

    def watch(at: int, kind: str, path: Path) -> None:
        seen.append(kind)
        if len(seen) == at:
            raise Killed

    for at in range(1, 6):
        monkeypatch.setattr(disk, "watcher", lambda kind, path: None)
        write(file, old)
        monkeypatch.setattr(disk, "watcher", partial(watch, at))
        seen.clear()
        try:
            write(file, new)
        except Killed:
            assert read(file).keys() in (old.keys(), new.keys())
    assert seen == [
        "write",
        "fsync",
        "rename",
        "fsync",
    ]  # written, on the disk, under its name, and that on the disk
