"""Control groups: found where they can be made, harmless where they cannot, and their limit is the kernel's."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ascent.sandbox import cgroups
from ascent.sandbox.limits import Limits
from tests.wall_clock import wall_clock

GROW = "import sys, time; sys.stdin.read(1); block = bytearray(b'x') * (200 << 20); print('grown'); time.sleep(60)"


def folders(name):
    return [
        path
        for group in cgroups._parent_groups()
        for path in group.glob(f"ascent-{os.getpid()}-{name}")
    ]


@pytest.fixture
def group():
    group = cgroups.create("test")
    if group is None:
        pytest.skip("this user may not make control groups here")
    yield group
    until = time.monotonic() + 10
    for folder in folders("test"):
        while (folder / "cgroup.procs").read_text() and time.monotonic() < until:
            time.sleep(0.05)  # an orphan that has ended is a member until process 1 has noticed
        folder.rmdir()


def test_the_kernel_ends_what_grows_too_large(group):
    with subprocess.Popen(
        [sys.executable, "-c", GROW], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        if not group.add_process(process.pid, Limits(memory_mb=64)):
            process.kill()
            pytest.skip("this user may not move processes here")
        assert not group.hit_limit()
        said, _ = process.communicate(b"x", timeout=30)
    assert said == b"" and process.returncode == -signal.SIGKILL and group.hit_limit()
    # The next program starts from nothing.
    with subprocess.Popen(
        [sys.executable, "-c", GROW], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert group.add_process(process.pid, Limits(memory_mb=512)) and not group.hit_limit()
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(b"x")
        process.stdin.flush()
        assert process.stdout.readline() == b"grown\n" and not group.hit_limit()
        process.kill()


def test_children_that_are_there_come_along(group):
    fork = "import os, time; os.fork(); os.write(1, b'there\\n'); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", fork], stdout=subprocess.PIPE) as process:
        assert (
            process.stdout is not None
            and [process.stdout.readline() for _ in range(2)] == [b"there\n"] * 2
        )
        taken = group.add_process(process.pid, Limits())
        members = [
            int(line)
            for folder in folders("test")
            for line in (folder / "cgroup.procs").read_text().split()
        ]
        for pid in members or [process.pid]:
            os.kill(pid, signal.SIGKILL)
    assert not taken or (len(members) == 2 and process.pid in members)


def test_one_that_has_ended_is_no_error(group):
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert group.add_process(process.pid, Limits()) in (True, False)


def test_where_there_are_none(monkeypatch, tmp_path):
    monkeypatch.setattr(cgroups, "ROOT", tmp_path / "nowhere")
    assert cgroups.create("test") is None
    # Folders in which the kernel shows no memory controller: nothing stays behind.
    monkeypatch.setattr(cgroups, "ROOT", tmp_path)
    (tmp_path / "memory").mkdir()
    assert cgroups.create("test") is None
    assert [path.name for path in Path(tmp_path).iterdir()] == ["memory"]


@wall_clock
def test_groups_of_workers_that_are_gone_are_removed(monkeypatch, tmp_path):
    monkeypatch.setattr(cgroups, "ROOT", tmp_path)
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    for pid in (process.pid, os.getppid()):
        (tmp_path / f"ascent-{pid}-program").mkdir()
    cgroups.remove_stale()
    assert [path.name for path in tmp_path.iterdir()] == [f"ascent-{os.getppid()}-program"]
