"""What a run on a Ray cluster is given, and what each of its processes gets to see."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass

from ascent.runs.reward_worker_files import RewardLaunch
from ascent.runs.sampler_files import LAUNCH, MAX_SAMPLERS

SERVER_KEY = "ASCENT_SERVER_KEY"
# Variables of the driver that its ranks get, too: on other nodes they are not set.
FORWARDED_PREFIXES = ("ASCENT_", "HF_", "WANDB_", "NCCL_")


@dataclass(frozen=True)
class RayOptions:
    """`cpus` and `gpus` are those of each rank and each sampler; without `gpus`, one where the cluster has any.

    A reward worker has `cpus` and no GPUs.
    """

    ranks: int = 1
    samplers: int = 0
    cpus: float = 1.0
    gpus: float | None = None
    reward_workers: int = 0

    def __post_init__(self) -> None:
        if self.ranks < 1:
            raise ValueError(f"processes={self.ranks}; it must be at least 1")
        if not 0 <= self.samplers <= MAX_SAMPLERS:
            raise ValueError(f"samplers={self.samplers}; it must be from 0 to {MAX_SAMPLERS}")
        if not 0 <= self.reward_workers <= MAX_SAMPLERS:
            raise ValueError(
                f"reward_workers={self.reward_workers}; it must be from 0 to {MAX_SAMPLERS}"
            )
        if not 0 < self.cpus < math.inf:
            raise ValueError(
                f"cpus={self.cpus}; it is the CPUs of each rank and each sampler, above 0"
            )
        if self.gpus is not None and not 0 <= self.gpus < math.inf:
            raise ValueError(
                f"gpus={self.gpus}; it is the GPUs of each rank and each sampler, 0 or more"
            )

    @property
    def total_cpus(self) -> int:
        return math.ceil((self.ranks + self.samplers + self.reward_workers) * self.cpus)

    @property
    def threads(self) -> int:
        """As many for ranks as for samplers: on a CPU, the bits of log-probs depend on it."""
        return max(1, int(os.environ.get("OMP_NUM_THREADS", self.cpus)))


def forwarded_environment() -> dict[str, str]:
    """What the driver passes on of its own variables; a launch is that of another run."""
    found = {
        name: value for name, value in os.environ.items() if name.startswith(FORWARDED_PREFIXES)
    }
    return {
        name: value
        for name, value in found.items()
        if name not in (LAUNCH, *RewardLaunch.VARIABLES)
    }


def rank_environment(
    rank: int, count: int, host: str, port: int, *, threads: int, given: Mapping[str, str]
) -> dict[str, str]:
    """torchrun's variables, and what the driver passes on. Ray shows each actor its own GPUs alone, so every rank is
    the only one where it runs."""
    variables = {
        "RANK": rank,
        "LOCAL_RANK": 0,
        "WORLD_SIZE": count,
        "LOCAL_WORLD_SIZE": 1,
        "MASTER_ADDR": host,
        "MASTER_PORT": port,
        "OMP_NUM_THREADS": threads,
    }
    return {
        **forwarded_environment(),
        **{name: str(value) for name, value in variables.items()},
        **given,
    }
