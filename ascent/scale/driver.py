"""The driver of a run on a Ray cluster: places its processes, passes signals and output on, and ends them.

It knows nothing of training. Ranks are `ascent train` with torchrun's variables, samplers are `ascent serve`, reward
workers are `ascent.rewards.worker`; the run finds them through small files in its folder (`runs/sampler_files.py`,
`runs/reward_worker_files.py`).
"""

from __future__ import annotations

import secrets
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from ascent.parallel.launch import GRACE, GRACE_AFTER_KILL
from ascent.runs.reward_worker_files import RewardLaunch, RewardWorkerFiles
from ascent.runs.sampler_files import LAUNCH, LaunchFiles, PlacedServers, SamplerFiles
from ascent.scale.options import SERVER_KEY, RayOptions, forwarded_environment, rank_environment
from ascent.scale.processes import Status
from ascent.scale.ray_cluster import Cluster, RayProcess, connect
from ascent.scale.server_pool import ServerPool

POLL_SECONDS = 0.25
SIGNALS = (signal.SIGINT, signal.SIGTERM)
Say = Callable[[str], None]


def run_on_ray(words: Sequence[str], folder: Path, options: RayOptions, say: Say) -> int:
    """`ascent WORDS...` in ranks on the cluster, with samplers for the run in `folder`; returns the exit status."""
    with connect(options, say) as cluster, received_signals() as signals:
        counts = f"{options.ranks} ranks, {options.samplers} samplers"
        if options.reward_workers:
            counts += f", {options.reward_workers} reward workers"
        say(f"{cluster.describe()}; {counts}")
        placed: list[PlacedProcesses] = []
        if options.samplers:
            placed.append(Samplers(cluster, folder, options, say))
        if options.reward_workers:
            placed.append(RewardProcesses(cluster, folder, options, say))
        ranks = cluster.place_ranks(options.ranks, lambda: bool(signals))
        if not ranks:
            return 128 + signals[0]
        try:
            given = {name: value for each in placed for name, value in each.environment.items()}
            cluster.start_ranks(
                ranks,
                list(words),
                lambda rank, host, port: rank_environment(
                    rank, options.ranks, host, port, threads=options.threads, given=given
                ),
            )
            return _wait(ranks, placed, signals, say)
        finally:
            for group in placed:
                group.close()
            for each in ranks:
                each.close()


class PlacedProcesses(ABC):
    """Processes beside the ranks: started when the run asks for them, as many as it should have now. `environment` has
    what the ranks must know of them."""

    environment: Mapping[str, str]

    def __init__(self, kind: str, files: LaunchFiles, say: Say, room: Callable[[], str]) -> None:
        self._files, self._pool = files, ServerPool(kind, self._start, say, room)
        self._placed: PlacedServers | None = None

    @abstractmethod
    def _count(self) -> int | None:
        """How many there should be; None until the run has asked."""

    @abstractmethod
    def _start(self, number: int) -> RayProcess: ...

    def update(self) -> None:
        count = self._count()
        if count is None:
            return
        placed = self._pool.update(count)
        if placed != self._placed:
            with suppress(FileNotFoundError):  # the run ends, and has just deleted the folder
                self._files.place(placed)
                self._placed = placed

    def close(self) -> None:
        self._pool.close()


class Samplers(PlacedProcesses):
    """The samplers of one run."""

    def __init__(self, cluster: Cluster, folder: Path, options: RayOptions, say: Say) -> None:
        self._cluster, self._folder, self._options = cluster, folder, options
        launch, self._key = secrets.token_hex(8), secrets.token_urlsafe(24)
        self.environment = {LAUNCH: launch, SERVER_KEY: self._key}
        self._sampler_files = SamplerFiles(folder, launch)
        super().__init__(
            "sampler", self._sampler_files, say, partial(cluster.describe_room, "--samplers")
        )

    def _count(self) -> int | None:
        if self._sampler_files.wanted() is None:
            return None
        return self._sampler_files.count() or self._options.samplers

    def _start(self, number: int) -> RayProcess:
        wanted = self._sampler_files.wanted()
        assert wanted is not None, "a sampler is started when the run has asked"
        log = str(self._folder / f"sampler-{number}.log")
        return self._cluster.start_sampler(wanted, self._key, log, self._options.threads)


class RewardProcesses(PlacedProcesses):
    """The reward workers of one run."""

    def __init__(self, cluster: Cluster, folder: Path, options: RayOptions, say: Say) -> None:
        self._cluster, self._folder = cluster, folder
        self._launch = RewardLaunch(
            secrets.token_hex(8), options.reward_workers, secrets.token_urlsafe(24)
        )
        self.environment = self._launch.environment()
        self._reward_files = RewardWorkerFiles(folder, self._launch.name)
        room = partial(cluster.describe_room, "--reward-workers", gpus=False)
        super().__init__("reward worker", self._reward_files, say, room)

    def _count(self) -> int | None:
        return self._launch.count if self._reward_files.wanted() else None

    def _start(self, number: int) -> RayProcess:
        log = str(self._folder / f"reward-worker-{number}.log")
        wanted = str(self._reward_files.wanted_file)
        return self._cluster.start_reward_worker(
            wanted, self._launch.key, log, forwarded_environment()
        )


def _wait(
    ranks: Sequence[RayProcess], placed: Sequence[PlacedProcesses], signals: list[int], say: Say
) -> int:
    """Wait for all ranks; the status of rank 0, or else of the first rank that failed."""
    ended: dict[int, Status] = {}
    deadline = float("inf")
    while len(ended) < len(ranks) and time.monotonic() < deadline:
        while signals:
            ranks[0].actor.send_signal.remote(signals.pop(0))
        for rank, each in enumerate(ranks):
            if rank in ended:
                continue
            status = each.status()
            sys.stderr.buffer.write(status.output)
            sys.stderr.flush()
            if status.ended is None:
                continue
            ended[rank] = status
            if status.exit_status != 0 and deadline == float("inf"):
                lost = status.exit_status is None or status.exit_status > 128  # killed
                deadline = time.monotonic() + (GRACE_AFTER_KILL if lost else GRACE)
                if lost:
                    say(
                        f"rank {rank} on {status.node or 'a node'} is lost: {status.ended}; all ranks stop"
                    )
        for group in placed if not ended else ():
            group.update()
        time.sleep(POLL_SECONDS)
    failed = [
        1 if each.exit_status is None else each.exit_status
        for each in ended.values()
        if each.exit_status != 0
    ]
    if not failed and len(ended) == len(ranks):
        return 0
    first = ended[0].exit_status if 0 in ended else None
    return first or (failed[0] if failed else 1)


@contextmanager
def received_signals() -> Iterator[list[int]]:
    """Signals are noted and passed on to rank 0, which finishes its step and saves."""
    received: list[int] = []
    before = {
        each: signal.signal(each, lambda number, frame: received.append(number)) for each in SIGNALS
    }
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
