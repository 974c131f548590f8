"""How a run and the launcher that places its samplers talk: three small files in the run folder.

    samplers/wanted.json    from the run: which model the servers start with, and how
    samplers/servers.json   from the launcher: the URLs of the servers that answer
    samplers/count.json     from `ascent samplers`: how many there should be

Each is replaced as a whole. The first two name the launch, so that nothing left by an earlier one counts.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ascent.runs.jsonl import replace_file

FOLDER, WANTED, SERVERS, COUNT = "samplers", "wanted.json", "servers.json", "count.json"
LAUNCH = "ASCENT_SAMPLERS"  # the environment variable with the launch's name; a run that has it waits for its servers
MAX_SAMPLERS = 10_000


@dataclass(frozen=True)
class WantedServers:
    """What a launcher needs to know to start servers. `model` is a folder that stays for the whole run."""

    model: str
    dtype: str
    max_model_len: int


@dataclass(frozen=True)
class PlacedServers:
    """The servers that answer, and why there is none, if the launcher has given up."""

    urls: tuple[str, ...] = ()
    error: str = ""


class LaunchFiles:
    """Files of one launch in a folder of the run."""

    def __init__(self, folder: Path, launch: str) -> None:
        self._folder, self._launch = folder, launch

    def place(self, placed: PlacedServers) -> None:
        self._write(SERVERS, {"urls": list(placed.urls), "error": placed.error})

    def placed(self) -> PlacedServers:
        found = self._read(SERVERS)
        return (
            PlacedServers()
            if found is None
            else PlacedServers(tuple(found["urls"]), found["error"])
        )

    def delete(self) -> None:
        if self._read(WANTED) is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _write(self, name: str, content: dict[str, Any], *, writer: str = "") -> None:
        replace_file(
            self._folder / name, json.dumps({"launch": self._launch, **content}), writer=writer
        )

    def _read(self, name: str) -> dict[str, Any] | None:
        found = _load(self._folder / name)
        return found if found is not None and found.get("launch") == self._launch else None


class SamplerFiles(LaunchFiles):
    """Those of samplers."""

    def __init__(self, run: Path, launch: str) -> None:
        super().__init__(run / FOLDER, launch)

    def want(self, wanted: WantedServers) -> None:
        """Whoever calls this holds the run folder's lock, so files of other launches are left over."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        self._write(WANTED, asdict(wanted))

    def wanted(self) -> WantedServers | None:
        """None until the run has asked."""
        found = self._read(WANTED)
        return (
            None
            if found is None
            else WantedServers(found["model"], found["dtype"], found["max_model_len"])
        )

    def count(self) -> int | None:
        """How many samplers somebody asked for since the run began."""
        return read_count(self._folder.parent)


def read_count(run: Path) -> int | None:
    found = _load(run / FOLDER / COUNT)
    count = None if found is None else found.get("samplers")
    return count if isinstance(count, int) and 1 <= count <= MAX_SAMPLERS else None


def write_count(run: Path, samplers: int) -> None:
    """Ask for so many samplers; ValueError if the run has none that are placed."""
    if not 1 <= samplers <= MAX_SAMPLERS:
        raise ValueError(
            f"samplers={samplers}; it must be from 1 to {MAX_SAMPLERS}, because a run waits for its samplers"
        )
    if not (run / FOLDER / SERVERS).exists():
        raise ValueError(
            f"{run} has no samplers that can be counted: there is no {FOLDER}/{SERVERS}; start the run with "
            "ascent train RECIPE --ray --samplers N, and wait for its first step"
        )
    replace_file(run / FOLDER / COUNT, json.dumps({"samplers": samplers}))


def _load(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # not there yet, or just being deleted
        return None
    return found if isinstance(found, dict) else None
