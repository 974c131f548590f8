"""Costs from data sheets: more work takes longer, a faster card less, and unknown cards are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ascent.diagnose.hardware import GPUS, StepWork, find_gpu, kv_cache_bytes, step_seconds

WORK = StepWork(
    parameters=1_500_000_000,
    tokens=500_000,
    forwards=1,
    sequences=1024,
    prompt_tokens=6400,
    new_tokens=512,
    kv_bytes=28_672,
)


def test_a_step_of_a_small_model_takes_seconds_on_an_h200() -> None:
    found = step_seconds(find_gpu("h200"), WORK, free_memory=80e9)
    assert set(found) == {"time/sample", "time/update", "time/prepare"}
    adam = 30 * 1.5e9 / 4.8e12
    assert found["time/update"] == pytest.approx(6 * 1.5e9 * 5e5 / (989e12 * 0.4) + adam)
    assert 1 < sum(found.values()) < 60


@pytest.mark.parametrize("phase", ["time/sample", "time/update"])
def test_more_work_and_slower_cards_take_longer(phase: str) -> None:
    base = step_seconds(GPUS["H200"], WORK, free_memory=80e9)[phase]
    larger = replace(WORK, parameters=3 * WORK.parameters)
    assert step_seconds(GPUS["H200"], larger, free_memory=80e9)[phase] > 1.5 * base
    assert step_seconds(GPUS["A100-80GB"], WORK, free_memory=80e9)[phase] > base
    assert (
        step_seconds(GPUS["H200"], replace(WORK, passes=2, new_tokens=1024), free_memory=80e9)[
            phase
        ]
        > 1.5 * base
    )


def test_little_memory_means_several_waves() -> None:
    rich, poor = (
        step_seconds(GPUS["H200"], WORK, free_memory=free)["time/sample"] for free in (80e9, 2e9)
    )
    assert poor > 2 * rich


def test_the_kv_cache_is_that_of_as_many_sequences_as_are_decoded_at_a_time() -> None:
    few = replace(WORK, sequences=256)
    assert kv_cache_bytes(few) == pytest.approx(256 * 28_672 * (6400 / 256 + 512))
    assert kv_cache_bytes(replace(few, sequences=512)) == pytest.approx(
        2 * kv_cache_bytes(few), rel=0.03
    )
    assert kv_cache_bytes(WORK) <= kv_cache_bytes(replace(WORK, sequences=512))
    wide = replace(WORK, max_num_seqs=1024)
    assert kv_cache_bytes(wide) == pytest.approx(2 * kv_cache_bytes(WORK))
    narrow, wide_seconds = (
        step_seconds(GPUS["H200"], work, free_memory=80e9)["time/sample"] for work in (WORK, wide)
    )
    assert wide_seconds < narrow  # one wave in place of two


def test_an_adapter_saves_a_third_of_the_products_and_an_offloaded_optimizer_waits_for_the_host() -> (
    None
):
    work = StepWork(parameters=7 * 10**9, tokens=2e5)
    full, adapter, offloaded = (
        step_seconds(GPUS["H200"], replace(work, **more), free_memory=0)["time/update"]
        for more in ({}, {"trained": 10**7}, {"offloaded": True})
    )
    assert adapter == pytest.approx(4 / 6 * full, rel=0.02)
    assert offloaded - full == pytest.approx(7e9 * (12 / 40e9 - 30 / 4.8e12))


def test_files_are_not_sampled() -> None:
    work = StepWork(parameters=10**9, tokens=1e5)
    assert "time/sample" not in step_seconds(GPUS["H100"], work, free_memory=0)


def test_an_unknown_card_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"gpu='H900' has no data sheet here; there are B200, H200"
    ):
        find_gpu("H900")


def test_a_small_model_waits_for_the_host() -> None:
    small = StepWork(parameters=10**8, tokens=30_000, layers=12, microbatches=2, forwards=1)
    found = step_seconds(GPUS["H200"], small, free_memory=0)
    assert found["time/update"] == pytest.approx(2 * 12 * 0.004, rel=0.05)
    assert found["time/prepare"] == pytest.approx(2 * 12 * 0.001)
    recomputed = step_seconds(GPUS["H200"], replace(small, recomputes=True), free_memory=0)
    assert recomputed["time/update"] == pytest.approx(1.25 * found["time/update"], rel=0.05)
    large = replace(WORK, layers=28, microbatches=50)
    assert step_seconds(GPUS["H200"], large, free_memory=80e9) == step_seconds(
        GPUS["H200"], WORK, free_memory=80e9
    )
