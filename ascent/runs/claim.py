"""A run folder that is locked while its run is set up."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection
from pathlib import Path

from ascent.runs.folder import CONFIG, CREATED_FIRST
from ascent.runs.lock import NAME as LOCK
from ascent.runs.lock import Lock


class FolderClaim:
    """Locks a new run folder during setup; `abandon` restores it as it was.

    `setup_files` are the names that setup may create. A process that is killed during setup leaves some of them, its
    lock and no config: such a folder is cleared and used again. A folder with anything else is refused.
    """

    def __init__(
        self, path: Path, setup_files: Collection[str], *, say: Callable[[str], None] = print
    ) -> None:
        self.path, self._setup_files, self._is_new = (
            path,
            {*setup_files, *CREATED_FIRST},
            not path.exists(),
        )
        if path.exists() and not path.is_dir():
            raise ValueError(f"{path} is a file and not an empty folder; name a new folder")
        if path.is_dir():
            self._check_content()
        path.mkdir(parents=True, exist_ok=True)
        self.lock = Lock(path, say=say)
        try:
            self._check_content()  # again: another process may have used the folder before it was locked
            if self._clear():
                say(f"{path} is left from a start that was killed during setup; starting again")
        except BaseException:
            self.lock.release()
            raise

    def _check_content(self) -> None:
        names = {each.name for each in self.path.iterdir()}
        if not names or (names <= self._setup_files and LOCK in names):
            return
        fix = "resume it, or name a new folder" if CONFIG in names else "name a new folder"
        raise ValueError(
            f"{self.path} is not an empty folder, and a run never writes over another; {fix}"
        )

    def _clear(self) -> bool:
        """Delete everything but the lock; returns whether there was anything."""
        leftover = [each for each in self.path.iterdir() if each.name != LOCK]
        for each in leftover:
            if each.is_dir():
                shutil.rmtree(each)
            else:
                each.unlink()
        return bool(leftover)

    def abandon(self) -> None:
        """Setup failed: restore the folder."""
        self._clear()
        (self.path / LOCK).unlink(missing_ok=True)
        self.lock.release()
        if self._is_new:
            self.path.rmdir()


def next_folder(name: str, root: Path = Path("runs")) -> Path:
    """root/NAME-N, with the first number above those that exist."""
    numbers = [each.name.removeprefix(f"{name}-") for each in root.glob(f"{name}-*")]
    return (
        root / f"{name}-{max([int(each) for each in numbers if each.isdecimal()], default=0) + 1}"
    )
