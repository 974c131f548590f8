"""A source over files: exact positions, whole epochs, resume in the middle of epoch 2."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ascent.data.errors import Report
from ascent.data.load import load
from ascent.data.prepare import Item, Limits, PreparedData, prepare
from ascent.data.render import Renderer
from ascent.data.sources import FileSource, single_pass
from ascent.protocols import Source
from tests.data import chat, files, make


def prepared(items: list[Item], name: str = "made") -> PreparedData:
    return PreparedData(name, tuple(items), Report())


def source(parts: list[PreparedData], **changes: Any) -> FileSource:
    settings_ = {"batch_size": 4, "tokens_per_microbatch": 60, "max_tokens": 60, "seed": 1}
    return FileSource(parts, **(settings_ | changes))


def tokens(batches: list[dict[str, Any]]) -> list[int]:
    return [token for batch in batches for token in batch["tokens_T"].tolist()]


def same(one: list[dict[str, Any]], two: list[dict[str, Any]]) -> bool:
    """Equal to the bit, names included."""
    if len(one) != len(two):
        return False
    for a, b in zip(one, two, strict=True):
        if a.keys() != b.keys():
            return False
        for name in a.keys() - {"segments", "groups", "mismatched"}:
            if not torch.equal(a[name], b[name]):
                return False
        if not torch.equal(a["segments"].lengths_B, b["segments"].lengths_B):
            return False
        if "mismatched" in a and not same([a["mismatched"]], [b["mismatched"]]):
            return False
    return True


MAKERS = {
    "examples": lambda n: make.example(3 + n % 7),
    "pairs": lambda n: make.pair(3 + n % 5, 4 + n % 3, float(n)),
    "rankings": lambda n: make.ranking([3, 3 + n % 4, 2]),
    "steps": lambda n: make.steps(4 + n % 5, [2, 3], [1.0, 0.0]),
    "unpaired": lambda n: make.unpaired(4 + n % 5, good=n % 2 == 0),
}


@pytest.mark.parametrize("kind", MAKERS)
@settings(max_examples=20)
@given(size=st.integers(2, 11), stop=st.integers(0, 9), batch_size=st.integers(1, 5))
def test_resume_gives_the_same_batches_also_in_epoch_2(
    kind: str, size: int, stop: int, batch_size: int
) -> None:
    parts = [prepared([MAKERS[kind](n) for n in range(size)])]
    first, second = source(parts, batch_size=batch_size), source(parts, batch_size=batch_size)
    for step in range(stop):
        first.next(step)
    second.load_state(json.loads(json.dumps(first.state())))
    for step in range(stop, stop + 6):
        assert same(second.next(step), first.next(step))


@settings(max_examples=40)
@given(size=st.integers(1, 13), batch_size=st.integers(1, 6))
def test_every_record_is_seen_exactly_once_per_epoch(size: int, batch_size: int) -> None:
    """After `size` steps of `batch_size` records, `batch_size` epochs are over, wherever steps crossed their ends."""
    items = [make.example(3) for _ in range(size)]
    whole = source([prepared(items)], batch_size=batch_size)
    seen: Counter[int] = Counter()
    for step in range(size):
        seen.update(tokens(whole.next(step)))
    assert seen == {int(token): batch_size for item in items for token in item.sequences[0].tokens}


def test_epoch_2_has_its_own_order() -> None:
    items = [make.example(3) for _ in range(20)]
    whole = source([prepared(items)], batch_size=20, tokens_per_microbatch=10**6)
    assert tokens(whole.next(0)) != tokens(whole.next(1))


def test_ranks_divide_a_step_without_loss() -> None:
    items = [make.pair(3 + n % 5, 4) for n in range(12)]
    one = source([prepared(items)], batch_size=6)
    two = source([prepared(items)], batch_size=6, ranks=2)
    for step in range(4):
        batches = two.next(step)
        assert len(batches) % 2 == 0 and len(batches[::2]) == len(batches[1::2])
        assert sorted(tokens(one.next(step))) == sorted(tokens(batches))


def test_weights_choose_the_shares() -> None:
    parts = [
        prepared([make.example(2) for _ in range(50)], "a"),
        prepared([make.example(3) for _ in range(10)], "b"),
    ]
    mixed = source(parts, weights=[1, 3], batch_size=8)
    for step in range(5):
        lengths = torch.cat([batch["segments"].lengths_B for batch in mixed.next(step)])
        assert int((lengths == 3).sum()) == 6
    plain = source(parts, batch_size=6)
    lengths = torch.cat([batch["segments"].lengths_B for batch in plain.next(0)])
    assert int((lengths == 3).sum()) == 1


def test_repeated_steps_and_steps_of_another_size_are_refused() -> None:
    whole = source([prepared([make.example(3)] * 5)])
    whole.next(0)
    with pytest.raises(ValueError, match="step 0 was already given"):
        whole.next(0)
    state = whole.state() | {"batch_size": 5}
    with pytest.raises(ValueError, match="batch_size=4, but the run was saved with 5"):
        whole.load_state(state)


def test_what_cannot_be_a_source() -> None:
    part = prepared([make.example(30)])
    with pytest.raises(ValueError, match="batch_size=0"):
        source([part], batch_size=0)
    with pytest.raises(ValueError, match="1 weights for 2 sources"):
        source([part, part], weights=[1.0])
    with pytest.raises(ValueError, match="a mixture of examples, pairs"):
        source([part, prepared([make.pair(2, 2)], "b")])
    with pytest.raises(ValueError, match="30 tokens, more than the 29"):
        source([part], tokens_per_microbatch=29)


def test_a_step_that_is_one_record_twice_still_has_companions() -> None:
    """Where epochs meet, a step of two can be one record twice; no order may stop a run in the middle."""
    judged = [make.unpaired(4), make.unpaired(5), make.unpaired(6)]
    whole = source([prepared(judged)], batch_size=2, shuffle=True)
    twice = 0
    for step in range(60):
        (batch,) = whole.next(step)
        prompts = [
            batch["tokens_T"][:2].tolist(),
            batch["tokens_T"][batch["segments"].offsets[1] :][:2].tolist(),
        ]
        twice += prompts[0] == prompts[1]
        companions = batch["mismatched"]
        assert companions["tokens_T"][:2].tolist() != prompts[0]
        assert (
            companions["tokens_T"][companions["segments"].offsets[1] :][:2].tolist() != prompts[1]
        )
    assert twice > 0
    with pytest.raises(ValueError, match="all records have the same prompt"):
        source([prepared([judged[0]])])


def test_margins_are_for_all_sources_or_none() -> None:
    parts = [prepared([make.pair(2, 2, 1.0)], "a"), prepared([make.pair(2, 2)], "b")]
    with pytest.raises(ValueError, match=r"with and without a margin \(a, b\)"):
        source(parts)


def test_a_held_out_set_is_passed_once() -> None:
    items = [make.unpaired(4 + n, good=n > 1) for n in range(4)]
    batches = single_pass(items, tokens_per_microbatch=10, max_tokens=60)
    assert sorted(tokens(batches)) == sorted(
        int(t) for item in items for t in item.sequences[0].tokens
    )
    (alone,) = single_pass(items[:1], tokens_per_microbatch=10, max_tokens=60, mismatched=False)
    assert "mismatched" not in alone
    assert all(
        "mismatched" in batch and batch["mismatched"]["segments"].total <= 10 for batch in batches
    )


def test_from_a_file_to_batches(tmp_path) -> None:
    rows = [
        {"prompt": f"{n} + 1 =", "chosen": f"{n + 1}", "rejected": f"{n} or {n + 2}"}
        for n in range(9)
    ]
    renderer = Renderer(chat.tokenizer())
    ready = prepare(load(files.jsonl(tmp_path / "a", rows), "pairs"), renderer, Limits(64, 32))
    whole: Source = FileSource(
        [ready], batch_size=3, tokens_per_microbatch=200, max_tokens=64, seed=0
    )
    (batch,) = whole.next(0)
    first = batch["segments"].ids_T == batch["chosen_P"][0]
    answer = renderer.tokenizer.decode(batch["tokens_T"][first & batch["loss_mask_T"]].tolist())
    assert answer.removesuffix("<|end|>").isdigit()
    assert answer.endswith("<|end|>")
    assert isinstance(whole, FileSource)
    assert whole.packing is not None
    assert whole.packing.efficiency == 1.0
    assert whole.steps_per_epoch == 3
    parts, sizes = (
        [ready, ready._replace(name="b")],
        {"batch_size": 3, "tokens_per_microbatch": 200, "max_tokens": 64},
    )
    half = FileSource(parts, **sizes, seed=0, weights=[0.5, 0.5])
    assert (
        half.steps_per_epoch == 6
    )  # a pass over the first takes as many steps as its share of each allows
    whole.refresh({})
