"""Which cluster a run gets, and that nobody waits for one that has ended. A toy stands for Ray, which need not be
installed: connecting to `gone:1` lasts for minutes."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ascent.scale import ray_cluster
from ascent.scale.options import RayOptions
from ascent.scale.ray_cluster import attempt_ends, connect, find_cluster

TOY = """
import os, pathlib, time
from types import SimpleNamespace

here, addresses = pathlib.Path(__file__).parent, []

def init(address, **options):
    addresses.append(address)
    found = (here / "current").read_text() if address == "auto" and (here / "current").exists() else address
    if found == "auto":
        raise ConnectionError("no cluster runs on this machine")
    if found == "other:1":
        raise ConnectionError("it has another version")
    if found == "gone:1":
        (here / f"attempt-{os.getpid()}").touch()
        time.sleep(600)

def cluster_resources():
    return {"CPU": 4.0}

def nodes():
    return [{"Alive": True}]

def shutdown():
    addresses.append("shut down")
"""


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "ray.py").write_text(TOY)
    for name in [each for each in sys.modules if each.partition(".")[0] == "ray"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for name in ("RAY_ADDRESS", "RAY_USAGE_STATS_ENABLED", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"):
        monkeypatch.setenv(name, "")  # what `connect` sets is undone
        monkeypatch.delenv(name)
    yield tmp_path
    sys.modules.pop("ray", None)


def connected(said: list[str]) -> list[str]:
    """The addresses that this process connected to, with what was said."""
    import ray

    with connect(RayOptions(), said.append) as cluster:
        said.append(cluster.describe())
    return list(ray.addresses)


def test_where_no_cluster_runs_a_local_one_is_started(toy: Path) -> None:
    said: list[str] = []
    assert connected(said) == ["auto", "local", "shut down"]
    assert said[0] == "looking for a Ray cluster on this machine"
    assert said[1].startswith("a Ray cluster of this process")


def test_a_cluster_that_runs_here_is_used(toy: Path) -> None:
    (toy / "current").write_text("here:1")
    said: list[str] = []
    assert connected(said) == ["auto", "shut down"]
    assert said[1] == "the Ray cluster: 1 node, 4 CPUs, 0 GPUs"


@pytest.mark.parametrize("address", ["head:1", "local"])
def test_ray_address_is_used(address: str, toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    said: list[str] = []
    assert connected(said) == [address, "shut down"]
    assert said[:-1] == (
        ["connecting to the Ray cluster at head:1 (RAY_ADDRESS)"] if address == "head:1" else []
    )


def test_why_a_cluster_cannot_be_used_is_said(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "other:1")
    with pytest.raises(ValueError, match="the Ray cluster cannot be used: it has another version"):
        connected([])


def test_a_cluster_that_has_ended_is_given_up(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Named, it is an error; where only its address is left on the machine, a local one is started."""
    monkeypatch.setattr(ray_cluster, "CONNECT_SECONDS", 1.0)
    said: list[str] = []
    wanted = r"RAY_ADDRESS=gone:1, but no Ray cluster answers there within 1 s; start one there \(ray start --head\)"
    with pytest.raises(ValueError, match=wanted):
        find_cluster("gone:1", said.append)
    assert said == ["connecting to the Ray cluster at gone:1 (RAY_ADDRESS)"]
    (toy / "current").write_text("gone:1")
    said.clear()
    assert connected(said) == ["local", "shut down"]
    assert said[1].startswith(
        "the Ray cluster of this machine does not answer within 1 s; it has probably ended"
    )


def test_an_attempt_that_is_given_up_leaves_no_process(toy: Path) -> None:
    begun = time.monotonic()
    assert not attempt_ends("gone:1", 3.0)
    assert time.monotonic() - begun < 300  # not the 600 of the toy
    for each in toy.glob("attempt-*"):
        assert not Path(f"/proc/{each.name.partition('-')[2]}").exists()
    assert attempt_ends("auto", 120.0) and attempt_ends("here:1", 120.0)
