"""The only module that talks to Ray: a cluster, placement groups, actors and whether they are alive."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ascent.distribution import install_hint
from ascent.progress import WaitingNotes
from ascent.runs.sampler_files import WantedServers
from ascent.scale.options import RayOptions
from ascent.scale.processes import RankProcess, RewardServer, SamplerServer, Status

HEALTH_SECONDS = 60.0  # in which an actor that has answered before must answer again
CONNECT_SECONDS = 30.0  # for a cluster to answer
CLOSE_SECONDS = 40.0  # for a process to end by itself
LOCAL_SPARE_CPUS = 4  # of a local cluster, for samplers that are added later; Ray only counts them
LOCAL_STORE_BYTES = 100 << 20  # of a local cluster, whose object store holds next to nothing
ATTEMPT = """
import signal, sys
signal.setitimer(signal.ITIMER_REAL, float(sys.argv[2]))  # it ends even if whoever started it is killed
import ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
"""


def require_ray() -> None:
    """ValueError with the fix if Ray is missing."""
    if importlib.util.find_spec("ray") is None:
        raise ValueError(
            f"--ray needs Ray, which is not installed here; {install_hint('ray')}, on every node"
        )


class RayProcess:
    """An actor with one process. It is asked without waiting; one that is silent for too long is lost."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor
        self._reply: Any = None
        self._asked, self._last = 0.0, Status()
        self._answered = False

    def status(self) -> Status:
        import ray

        if self._last.ended is not None:
            return self._last
        if self._reply is None:
            self._reply, self._asked = self.actor.status.remote(), time.monotonic()
        done, _ = ray.wait([self._reply], timeout=0.05)
        if done:
            try:
                self._last, self._answered = ray.get(self._reply), True
            except ray.exceptions.RayError as error:
                self._last = Status(self._last.node, ended=describe_loss(error))
            self._reply = None
            return self._last
        if self._answered and time.monotonic() - self._asked > HEALTH_SECONDS:
            self._last = Status(
                self._last.node, ended=f"its actor did not answer for {HEALTH_SECONDS:g} s"
            )
        return Status(self._last.node, self._last.url, self._last.ended)  # output counts once

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """End the process, then the actor."""
        import ray

        if self._answered and self._last.ended is None:
            ray.wait([self.actor.close.remote()], timeout=seconds)
        ray.kill(self.actor)


def describe_loss(error: Exception) -> str:
    """Why an actor is gone, in one line."""
    import ray

    if isinstance(error, ray.exceptions.ActorDiedError):
        lines = [each.strip() for each in str(error).splitlines() if each.strip()]
        reason = next(
            (each for each in lines if "Error:" in each or "died" in each.lower()), lines[0]
        )
        cause = lines[-1] if "ModuleNotFoundError" in lines[-1] else reason
        return f"its actor is gone ({cause[:200]})"
    return f"{type(error).__name__}: {str(error).strip().splitlines()[-1][:300]}"


class Cluster:
    """A connection to Ray. `local`: the cluster is this process's own and ends with it."""

    def __init__(self, options: RayOptions, *, local: bool, say: Callable[[str], None]) -> None:
        import ray

        self.local, self._say = local, say
        resources = ray.cluster_resources()
        gpus = (1.0 if resources.get("GPU", 0) else 0.0) if options.gpus is None else options.gpus
        self._resources = {"CPU": options.cpus, **({"GPU": gpus} if gpus else {})}
        self._options: dict[str, Any] = {
            "num_cpus": options.cpus,
            "num_gpus": gpus,
            "max_restarts": 0,
        }
        self._group: Any = None

    def describe(self) -> str:
        import ray

        nodes = [each for each in ray.nodes() if each["Alive"]]
        found = ray.cluster_resources()
        text = f"{len(nodes)} node{'s' * (len(nodes) != 1)}, {found.get('CPU', 0):g} CPUs, {found.get('GPU', 0):g} GPUs"
        return (
            f"a Ray cluster of this process: {text}" if self.local else f"the Ray cluster: {text}"
        )

    def describe_room(self, option: str, *, gpus: bool = True) -> str:
        """What a process asks for, what the cluster has, and how to get room; `option` says how many are asked for."""
        import ray

        resources = {
            name: count for name, count in self._resources.items() if gpus or name != "GPU"
        }
        nodes = [each["Resources"] for each in ray.nodes() if each["Alive"]]
        total, free = ray.cluster_resources(), ray.available_resources()
        asked = " and ".join(f"{count:g} {name}" for name, count in resources.items())
        found = ", ".join(
            f"{total.get(each, 0):g} {each} ({free.get(each, 0):g} free)" for each in resources
        )
        text = f"each asks for {asked}; the cluster has {found} on {len(nodes)} node{'s' * (len(nodes) != 1)}"
        if not any(
            all(node.get(name, 0) >= count for name, count in resources.items()) for node in nodes
        ):
            return f"{text}, none of which is large enough; lower --cpus or --gpus, or add a larger node"
        if all(free.get(name, 0) >= count for name, count in resources.items()):
            text += ", but perhaps not on one node, or the node is slow to start it"
        return f"{text}; wait for other runs, add a node (ray start --address HEAD:PORT), or lower {option} or --cpus"

    def place_ranks(self, count: int, stopped: Callable[[], bool]) -> list[RayProcess]:
        """Actors for the ranks, all at once or none, on as few nodes as possible. Empty if `stopped` before."""
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        self._group = ray.util.placement_group([self._resources] * count, strategy="PACK")
        notes = WaitingNotes(self._say)
        while not self._group.wait(timeout_seconds=0.5):
            if stopped():
                return []
            notes.waiting(
                lambda since: (
                    f"no room for {count} ranks for {since}; {self.describe_room('--processes')}"
                )
            )
        notes.over("the ranks have nodes")
        kind = ray.remote(RankProcess)
        return [
            RayProcess(
                kind.options(
                    **self._options,
                    scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, index),
                ).remote()
            )
            for index in range(count)
        ]

    def start_ranks(
        self,
        ranks: list[RayProcess],
        words: list[str],
        environment: Callable[[int, str, int], Mapping[str, str]],
    ) -> None:
        """RuntimeError if one of them cannot be started."""
        import ray

        try:
            host, port = ray.get(ranks[0].actor.address.remote())
            folder = os.getcwd()
            ray.get(
                [
                    each.actor.start.remote(words, dict(environment(rank, host, port)), folder)
                    for rank, each in enumerate(ranks)
                ]
            )
        except ray.exceptions.RayTaskError as error:
            cause = error.cause if isinstance(error.cause, ValueError) else error
            raise ValueError(str(cause)) from None
        except ray.exceptions.RayError as error:
            raise ValueError(f"a rank could not be started: {describe_loss(error)}") from None

    def start_sampler(self, wanted: WantedServers, key: str, log: str, threads: int) -> RayProcess:
        """On a node with room, spread over the nodes."""
        import ray

        kind = ray.remote(SamplerServer)
        return RayProcess(
            kind.options(**self._options, scheduling_strategy="SPREAD").remote(
                wanted, key, log, threads
            )
        )

    def start_reward_worker(
        self, wanted: str, key: str, log: str, environment: Mapping[str, str]
    ) -> RayProcess:
        """As a sampler, without GPUs."""
        import ray

        kind = ray.remote(RewardServer).options(
            **{**self._options, "num_gpus": 0}, scheduling_strategy="SPREAD"
        )
        return RayProcess(kind.remote(wanted, key, log, environment, os.getcwd()))

    def close(self) -> None:
        import ray

        if self._group is not None:
            ray.util.remove_placement_group(self._group)


def find_cluster(address: str, say: Callable[[str], None]) -> bool:
    """False where a cluster must be started; ValueError if none answers at an address that was asked for."""
    if address == "local":
        return False
    if address == "auto":
        say("looking for a Ray cluster on this machine")
    else:
        say(f"connecting to the Ray cluster at {address} (RAY_ADDRESS)")
    if attempt_ends(address, CONNECT_SECONDS):
        return True
    if address != "auto":
        raise ValueError(
            f"RAY_ADDRESS={address}, but no Ray cluster answers there within {CONNECT_SECONDS:g} s; start one there "
            "(ray start --head), set the address of one that runs, or unset it; RAY_ADDRESS=local starts one"
        )
    say(
        f"the Ray cluster of this machine does not answer within {CONNECT_SECONDS:g} s; it has probably ended and left "
        "its address behind, which ray stop removes. A local cluster is started instead"
    )
    return False


def attempt_ends(address: str, seconds: float) -> bool:
    """Whether connecting to a cluster succeeds or fails in time. Where nobody answers, Ray tries for minutes and cannot
    be interrupted, so this is tried in a process that can be ended."""
    try:
        subprocess.run(
            [sys.executable, "-c", ATTEMPT, address, str(2 * seconds)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return True


@contextmanager
def connect(options: RayOptions, say: Callable[[str], None]) -> Iterator[Cluster]:
    """The cluster of RAY_ADDRESS, the one that runs on this machine, or else a local one for this run alone."""
    require_ray()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent to anybody
    os.environ.setdefault(
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "1"
    )  # a process without GPUs sees none
    import ray

    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    address = os.environ.get("RAY_ADDRESS") or "auto"
    local = not find_cluster(address, say)
    try:
        if not local:
            try:
                ray.init(address=address, **quiet)
            except ConnectionError:
                if address != "auto":
                    raise
                local = True
        if local:
            ray.init(
                address="local",
                num_cpus=max(os.cpu_count() or 1, options.total_cpus + LOCAL_SPARE_CPUS),
                include_dashboard=False,
                object_store_memory=LOCAL_STORE_BYTES,
                **quiet,
            )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ValueError(f"the Ray cluster cannot be used: {error}") from error
    cluster = Cluster(options, local=local, say=say)
    try:
        yield cluster
    finally:
        cluster.close()
        ray.shutdown()
