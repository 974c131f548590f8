"""How a run and the launcher that places its reward workers talk: two small files in the run folder.

    reward_workers/wanted.json    from the run: its rewards, by name, with their options
    reward_workers/servers.json   from the launcher: the URLs of the workers that answer

As `runs/sampler_files.py`, but several ranks read and ask: all of them write the same.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ascent.runs.sampler_files import WANTED, LaunchFiles

FOLDER = "reward_workers"


@dataclass(frozen=True)
class RewardLaunch:
    """What the launcher of a run says of its reward workers: the launch's name, their number and their key, each in an
    environment variable."""

    name: str
    count: int
    key: str
    VARIABLES: ClassVar[tuple[str, ...]] = (
        "ASCENT_REWARD_LAUNCH",
        "ASCENT_REWARD_WORKERS",
        "ASCENT_REWARD_KEY",
    )

    @classmethod
    def of_environment(cls) -> RewardLaunch | None:
        """None where no launcher places any."""
        name, count, key = map(os.environ.get, cls.VARIABLES)
        return None if name is None or count is None or key is None else cls(name, int(count), key)

    def environment(self) -> dict[str, str]:
        return dict(zip(self.VARIABLES, (self.name, str(self.count), self.key), strict=True))


class RewardWorkerFiles(LaunchFiles):
    """Those of reward workers. A worker reads `wanted_file` itself."""

    def __init__(self, run: Path, launch: str) -> None:
        super().__init__(run / FOLDER, launch)
        self.wanted_file = self._folder / WANTED

    def want(self, rewards: Mapping[str, Mapping[str, Any]], *, rank: int = 0) -> None:
        """`rewards` has the `use` and the `options` of each. All ranks may call it at once."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._write(WANTED, {"rewards": rewards}, writer=f"rank{rank}")

    def wanted(self) -> bool:
        return self._read(WANTED) is not None
