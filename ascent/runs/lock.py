"""One writer per run folder.

The lock is an `flock`, so the system releases it when the process ends. The file names the process, for messages only.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

NAME = "lock"


class FolderLockedError(RuntimeError):
    """Another process writes to this run folder."""


class Lock:
    """Held from construction until `release`, or until the process ends."""

    def __init__(self, folder: Path, *, say: Callable[[str], None] = print) -> None:
        path = folder / NAME
        self._handle: int | None = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        if not _acquire(self._handle) or not _is_same_file(path, self._handle):
            self._close()
            raise FolderLockedError(
                f"{folder} is being written by process {_owner(path)}; two processes cannot write one run: wait for "
                "it, stop it, or choose another folder"
            )
        previous = _owner(path)
        if previous is not None:
            say(
                f"the run folder was left locked by process {previous}, which is gone; taking it over"
            )
        os.ftruncate(self._handle, 0)
        os.pwrite(
            self._handle, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0
        )
        _close_in_children(self)

    def release(self) -> None:
        """Release the folder; releasing twice does nothing."""
        if self._handle is not None:
            os.ftruncate(self._handle, 0)
            os.close(self._handle)
            self._handle = None

    def __enter__(self) -> Lock:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.release()

    def _close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def _acquire(handle: int) -> bool:
    """Try for half a second, because `holder` takes a shared lock for a moment."""
    for attempt in range(6):
        time.sleep(0.1 if attempt else 0.0)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        return True
    return False


def _is_same_file(path: Path, handle: int) -> bool:
    """False where the file was deleted in the meantime."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(handle))
    except FileNotFoundError:
        return False


def holder(folder: Path) -> str | None:
    """The process that writes to the folder, or None."""
    path = folder / NAME
    if not path.exists():
        return None
    handle = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _owner(path) or "unknown"
    finally:
        os.close(handle)
    return None


def _owner(path: Path) -> str | None:
    try:
        content = json.loads(path.read_bytes())
        return f"{content['pid']} on {content['host']}"
    except (ValueError, KeyError, TypeError, FileNotFoundError):
        return None


def _close_in_children(lock: Lock) -> None:
    """Otherwise a forked worker keeps the lock after the run has died."""
    reference = weakref.ref(lock)

    def close() -> None:
        inherited = reference()
        if inherited is not None:
            inherited._close()

    os.register_at_fork(after_in_child=close)
