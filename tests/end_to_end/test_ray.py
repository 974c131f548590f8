"""Runs on a local Ray cluster: the bits of the run in one process, whatever dies; no process is left behind.

Minutes on a CPU. Skipped where Ray is not installed (extra `ray`).
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from ascent import progress
from ascent.runs.folder import read_run
from ascent.runs.reward_worker_files import RewardWorkerFiles
from ascent.scale.options import RayOptions
from ascent.scale.ray_cluster import Cluster
from ascent.scale.server_pool import ServerPool
from tests.end_to_end.test_overlap import recipe
from tests.end_to_end.test_remote_rollouts import nested, wait_for
from tests.setup.runs import weights_of

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="Ray is not installed (extra ray)"
    ),
]
MINUTES = 60.0
OTHERS = {
    "RAY_ADDRESS": "local",
    "OMP_NUM_THREADS": "1",
}  # a cluster of its own, whatever runs on this machine


@pytest.fixture
def marked(tmp_path: Path) -> Iterator[str]:
    """A variable of the environment that every process of a run has, Ray's own among them."""
    mark = f"ASCENT_TEST_MARK={tmp_path.name}-{os.getpid()}"
    yield mark
    for pid in processes_with(mark):
        os.kill(pid, signal.SIGKILL)


def start(
    folder: Path, mark: str, name: str, *options: str, address: str = "local", **keys: Any
) -> subprocess.Popen[bytes]:
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(nested(recipe(folder, **keys))))
    words = ["train", f"{name}.yaml", "--run", name, "--no-progress", *options]
    key, _, value = mark.partition("=")
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "ascent", *words],
            cwd=folder,
            start_new_session=True,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | OTHERS | {key: value, "RAY_ADDRESS": address},
        )


def finish(driver: subprocess.Popen[bytes], folder: Path, name: str) -> str:
    status = driver.wait(8 * MINUTES)
    text = (folder / f"{name}.log").read_text()
    assert status == 0, text
    return text


def processes_with(mark: str) -> list[int]:
    """Those that have the variable in their environment, and are no zombies."""
    found = []
    for each in Path("/proc").iterdir():
        try:
            if each.name.isdecimal() and mark.encode() in (each / "environ").read_bytes().split(
                b"\0"
            ):
                found.append(int(each.name))
        except OSError:  # it has ended, or is not ours
            continue
    return [pid for pid in found if pid != os.getpid()]


def samplers_of(mark: str, kind: str = "SamplerServer") -> dict[int, str]:
    """The actors that hold a server, by their process."""
    found = {}
    for pid in processes_with(mark):
        try:
            name = Path(f"/proc/{pid}/cmdline").read_bytes().decode().replace("\0", " ")
        except OSError:
            continue
        if name.startswith(f"ray::{kind}"):
            found[pid] = name
    return found


def urls_of(run: Path) -> list[str]:
    try:
        return list(json.loads((run / "samplers" / "servers.json").read_text())["urls"])
    except (OSError, ValueError):
        return []


def steps_of(run: Path) -> int:
    try:
        return len((run / "metrics.jsonl").read_text().splitlines())
    except OSError:
        return 0


def want_samplers(folder: Path, count: int) -> None:
    subprocess.run(
        [sys.executable, "-m", "ascent", "samplers", "ray", str(count)], cwd=folder, check=True
    )


def test_two_samplers_learn_and_a_killed_one_changes_nothing(tmp_path: Path, marked: str) -> None:
    keys: dict[str, Any] = {"run.steps": 8, "run.save_every": 8, "update.learning_rate": 3e-3}
    finish(start(tmp_path, marked, "native", **keys), tmp_path, "native")
    driver = start(tmp_path, marked, "ray", "--ray", "--samplers", "2", **keys)
    run = tmp_path / "ray"
    wait_for(
        lambda: driver.poll() is not None or (steps_of(run) >= 2 and len(urls_of(run)) == 2),
        4 * MINUTES,
    )
    first = sorted(samplers_of(marked))
    assert len(first) == 2
    os.kill(first[0], signal.SIGKILL)
    said = finish(driver, tmp_path, "ray")
    assert "failed: its actor is gone" in said and "another is started" in said
    assert weights_of(run, 8) == weights_of(tmp_path / "native", 8)
    rewards = [each["reward/mean"] for each in read_run(run).metrics if each.get("step", 0) > 0]
    assert sum(rewards[-2:]) > sum(rewards[:2])
    wait_for(lambda: not processes_with(marked), MINUTES)


def test_killing_the_driver_leaves_no_process(tmp_path: Path, marked: str) -> None:
    options = ("--ray", "--samplers", "1", "--processes", "2", "--reward-workers", "1")
    driver = start(tmp_path, marked, "ray", *options, **{"run.steps": 100_000})
    wait_for(lambda: driver.poll() is not None or steps_of(tmp_path / "ray") >= 2, 4 * MINUTES)
    # Ray's, two ranks, a sampler, a reward worker, their actors
    assert driver.poll() is None and len(processes_with(marked)) > 10, (
        tmp_path / "ray.log"
    ).read_text()
    driver.kill()
    driver.wait()
    wait_for(
        lambda: not processes_with(marked), 4 * MINUTES
    )  # two agents of Ray look for its head for a minute


GATED = """
import itertools, pathlib, time
calls, here = itertools.count(), pathlib.Path(__file__).parent

def digits(rollout):
    number = next(calls)
    for gate in ("two", "one")[: number // 12]:
        while not (here / gate).exists():
            time.sleep(0.05)
    return sum(each.isdigit() for each in rollout.text) / max(len(rollout.text), 1)
"""


def test_two_ranks_with_samplers_whose_number_changes(tmp_path: Path, marked: str) -> None:
    """The reward waits for the test, so that steps are sampled by one, by two and again by one, on any machine."""
    (tmp_path / "gated.py").write_text(GATED)
    keys: dict[str, Any] = {
        "run.steps": 8,
        "run.save_every": 8,
        "rewards": [{"use": f"{tmp_path}/gated.py:digits", "timeout": 600}],
    }
    gates = [tmp_path / "two", tmp_path / "one"]
    for each in gates:
        each.touch()
    finish(start(tmp_path, marked, "plain", "--processes", "2", **keys), tmp_path, "plain")
    for each in gates:
        each.unlink()
    driver = start(tmp_path, marked, "ray", "--ray", "--samplers", "1", "--processes", "2", **keys)
    run = tmp_path / "ray"
    wait_for(
        lambda: driver.poll() is not None or (steps_of(run) and len(urls_of(run)) == 1), 4 * MINUTES
    )
    want_samplers(tmp_path, 2)
    wait_for(lambda: driver.poll() is not None or len(urls_of(run)) == 2, 4 * MINUTES)
    gates[0].touch()
    want_samplers(tmp_path, 1)
    wait_for(lambda: driver.poll() is not None or len(urls_of(run)) == 1, 2 * MINUTES)
    assert driver.poll() is None
    gates[1].touch()
    said = finish(driver, tmp_path, "ray")
    assert "sampler 2 on" in said and "sampler 2 is ended: 1 are wanted" in said
    assert weights_of(run, 8) == weights_of(tmp_path / "plain", 8)


def test_ctrl_c_saves_and_the_run_is_resumed_without_ray(tmp_path: Path, marked: str) -> None:
    keys: dict[str, Any] = {"run.steps": 8, "run.save_every": 8}
    finish(start(tmp_path, marked, "native", **keys), tmp_path, "native")
    driver = start(tmp_path, marked, "ray", "--ray", "--samplers", "1", **keys)
    wait_for(lambda: driver.poll() is not None or steps_of(tmp_path / "ray") >= 1, 4 * MINUTES)
    driver.send_signal(signal.SIGINT)
    assert driver.wait(2 * MINUTES) == 130, (tmp_path / "ray.log").read_text()
    wait_for(lambda: not processes_with(marked), MINUTES)
    resumed = [sys.executable, "-m", "ascent", "resume", "ray", "--no-progress"]
    subprocess.run(resumed, cwd=tmp_path, env=os.environ | OTHERS, check=True, timeout=4 * MINUTES)
    assert weights_of(tmp_path / "ray", 8) == weights_of(tmp_path / "native", 8)


def test_what_has_no_room_on_the_cluster_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One CPU, and two reward workers with one each."""
    import ray

    monkeypatch.setattr(progress, "FIRST_NOTE", 0.0)
    monkeypatch.chdir(tmp_path)
    files, said = RewardWorkerFiles(tmp_path, "launch"), list[str]()
    files.want({"length": {"use": "length", "options": {"target": 8}}})
    ray.init(
        address="local",
        num_cpus=1,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=100 << 20,
    )
    try:
        cluster = Cluster(RayOptions(cpus=1), local=True, say=said.append)
        room = partial(cluster.describe_room, "--reward-workers", gpus=False)
        pool = ServerPool(
            "reward worker",
            lambda number: cluster.start_reward_worker(
                str(files.wanted_file), "k", str(tmp_path / "log"), {}
            ),
            said.append,
            room,
        )
        wait_for(lambda: pool.update(2).urls, 2 * MINUTES)
        monkeypatch.setattr(pool, "_notes", progress.WaitingNotes(said.append))
        wait_for(lambda: pool.update(2) and "no room" in said[-1], MINUTES)
        pool.close()
        has = r"each asks for 1 CPU; the cluster has 1 CPU \(0 free\) on 1 node; wait for other runs, add a node "
        fix = r"\(ray start --address HEAD:PORT\), or lower --reward-workers or --cpus"
        assert re.fullmatch(
            f"no room for reward worker 2 for 0 s, since [0-9:]+; {has}{fix}", said[-1]
        ), said
        large = Cluster(RayOptions(cpus=4, gpus=1), local=True, say=said.append).describe_room(
            "--samplers"
        )
        assert large.startswith("each asks for 4 CPU and 1 GPU; the cluster has 1 CPU (")
        assert (
            "1 node, none of which is large enough; lower --cpus or --gpus, or add a larger node"
            in large
        )
    finally:
        ray.shutdown()


FAULTY = """
import itertools, os, pathlib, time, __main__
from ascent.rewards import Unscored
here, calls, in_worker = pathlib.Path(__file__).parent, itertools.count(), hasattr(__main__, "create_worker")

def digits(rollout):
    number = next(calls)
    if in_worker and number == 4 and not (here / "killed").exists():
        (here / f"waiting-{os.getpid()}").touch()
        while not (here / "killed").exists():  # until the test has killed one of the workers that wait
            time.sleep(0.05)
    share = sum(each.isdigit() for each in rollout.text) / max(len(rollout.text), 1)
    return {"share": share, "length": -0.01 * len(rollout.text)}

def doubtful(rollout):
    if rollout.sample == 1:
        raise KeyError(rollout.prompt.id)
    if rollout.sample == 2:
        raise Unscored("no_gold", "there is none")
    return 0.1

def hanging(rollout):
    if rollout.sample == 3 and "/0/" in rollout.prompt.id:
        time.sleep(3600)
    return 0.2
"""


def kill_a_waiting_worker(folder: Path, mark: str, driver: subprocess.Popen[bytes]) -> None:
    """Kill one of two workers in the middle of a call, and let the others go on once it is replaced."""
    log = folder / "ray.log"

    def ready() -> bool:
        return bool(list(folder.glob("waiting-*"))) and len(samplers_of(mark, "RewardServer")) == 2

    wait_for(lambda: driver.poll() is not None or ready(), 4 * MINUTES)
    assert driver.poll() is None, log.read_text()
    (waiting, *_) = folder.glob("waiting-*")
    os.kill(int(waiting.name.partition("-")[2]), signal.SIGKILL)
    wait_for(lambda: driver.poll() is not None or "another is started" in log.read_text(), MINUTES)
    (folder / "killed").touch()


def test_rewards_of_workers_give_the_same_weights_and_failures_whatever_dies(
    tmp_path: Path, marked: str
) -> None:
    (tmp_path / "faulty.py").write_text(FAULTY)
    rewards = [
        {"use": "faulty.py:digits", "timeout": 600},
        {"use": "faulty.py:doubtful", "weight": 0.0},
        {"use": "faulty.py:hanging", "weight": 0.0, "timeout": 5},
    ]
    keys: dict[str, Any] = {"run.steps": 3, "run.save_every": 3, "rewards": rewards}
    finish(start(tmp_path, marked, "native", **keys), tmp_path, "native")
    run = tmp_path / "ray"
    driver = start(tmp_path, marked, "ray", "--ray", "--reward-workers", "2", **keys)
    kill_a_waiting_worker(tmp_path, marked, driver)
    said = finish(driver, tmp_path, "ray")
    assert "reward worker 3 on" in said
    assert "2 reward workers call digits, doubtful, hanging" in said
    assert weights_of(run, 3) == weights_of(tmp_path / "native", 3)
    native, ray = (read_run(tmp_path / each) for each in ("native", "ray"))
    for expected, found in zip(native.samples, ray.samples, strict=True):
        assert found == expected
    failures = [
        [line for line in text.splitlines() if "unscored" in line]
        for text in ((tmp_path / "native.log").read_text(), said)
    ]
    assert failures[0] and failures[0] == failures[1]
    wait_for(lambda: not processes_with(marked), MINUTES)


def test_two_ranks_share_reward_workers_and_a_killed_one_changes_nothing(
    tmp_path: Path, marked: str
) -> None:
    (tmp_path / "faulty.py").write_text(FAULTY)
    rewards = [{"use": "faulty.py:digits", "timeout": 600}]
    keys: dict[str, Any] = {
        "run.steps": 3,
        "run.save_every": 3,
        "rollouts.prompts_per_step": 4,
        "rewards": rewards,
    }
    finish(start(tmp_path, marked, "plain", "--processes", "2", **keys), tmp_path, "plain")
    options = ("--ray", "--processes", "2", "--samplers", "1", "--reward-workers", "2")
    driver = start(tmp_path, marked, "ray", *options, **keys)
    kill_a_waiting_worker(tmp_path, marked, driver)
    said = finish(driver, tmp_path, "ray")
    assert "reward worker 3 on" in said
    assert weights_of(tmp_path / "ray", 3) == weights_of(tmp_path / "plain", 3)
    assert not (tmp_path / "ray" / "reward_workers").exists()
    wait_for(lambda: not processes_with(marked), MINUTES)


def test_an_address_where_no_cluster_answers_is_given_up(tmp_path: Path, marked: str) -> None:
    """Ray itself tries for minutes. A socket that is bound and does not listen refuses connections."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        driver = start(tmp_path, marked, "ray", "--ray", address=address)
        assert driver.wait(4 * MINUTES) == 2
    said = (tmp_path / "ray.log").read_text()
    assert f"connecting to the Ray cluster at {address} (RAY_ADDRESS)" in said
    assert f"RAY_ADDRESS={address}, but no Ray cluster answers there within 30 s" in said
    assert not (tmp_path / "ray").exists() and not processes_with(marked)
