"""How much host memory there is. Pinning needs a GPU (tests/gpu)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ascent.models.host_memory import HostBuffer, available_bytes

GIB = 2**30
VERSIONS = {
    2: ("", "memory.max", "memory.current"),
    1: ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
}


def machine(root: Path, *, available: int) -> Path:
    (root / "proc").mkdir()
    (root / "proc/meminfo").write_text(
        f"MemTotal: {100 * GIB // 1024} kB\nMemAvailable: {available // 1024} kB\n"
    )
    return root


@pytest.mark.parametrize("version", [1, 2])
def test_the_limit_of_a_container_counts_without_its_page_cache(
    tmp_path: Path, version: int
) -> None:
    root = machine(tmp_path, available=50 * GIB)
    folder, limit, usage = VERSIONS[version]
    place = root / "sys/fs/cgroup" / folder
    place.mkdir(parents=True)
    (place / usage).write_text(f"{10 * GIB}\n")
    (place / "memory.stat").write_text(f"active_file {GIB}\ninactive_file {4 * GIB}\n")
    (place / limit).write_text(f"{20 * GIB}\n")
    assert available_bytes(root) == 14 * GIB
    (place / limit).write_text(f"{200 * GIB}\n")
    assert available_bytes(root) == 50 * GIB
    (place / limit).write_text("max\n" if version == 2 else f"{2**63 - 4096}\n")
    assert available_bytes(root) == 50 * GIB


def test_a_machine_without_a_container_and_a_system_that_does_not_say(tmp_path: Path) -> None:
    assert available_bytes(tmp_path) is None
    assert available_bytes(machine(tmp_path, available=3 * GIB)) == 3 * GIB


def test_here() -> None:
    found = available_bytes()
    assert found is None or 2**20 < found < 2**50
    assert HostBuffer(0, torch.device("cpu")).values.numel() == 0
    assert HostBuffer(5, torch.device("cpu")).values.tolist() == [0.0] * 5
