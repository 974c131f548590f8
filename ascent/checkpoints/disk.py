"""Every change a checkpoint makes on disk goes through these few functions.

Each announces itself to `watcher` first. Tests put a watcher in place that kills the process, or raises what a full
disk raises, at the n-th call; in use it does nothing.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

watcher: Callable[[str, Path], None] = lambda kind, path: None  # noqa: E731 - a name to be replaced


def announce(kind: str, path: Path) -> None:
    """Say that `path` is about to be changed: `write`, `fsync`, `rename` or `remove`."""
    watcher(kind, path)


@contextmanager
def writing() -> Iterator[None]:
    """Inside, a write that fails is an OSError, whoever writes: safetensors and tokenizers raise errors of their own,
    tokenizers a bare Exception."""
    try:
        yield
    except Exception as error:
        if isinstance(error, SafetensorError) or type(error) is Exception:
            raise OSError(str(error)) from error
        raise


def write(path: Path, text: str) -> None:
    announce("write", path)
    path.write_text(text, encoding="utf-8")


def sync(path: Path) -> None:
    """Do not return before the file, or the folder's list of names, is on the disk itself."""
    announce("fsync", path)
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_tree(folder: Path) -> None:
    """Sync every file in a folder, then the folders from the inside out."""
    folders = [folder, *sorted(path for path in folder.rglob("*") if path.is_dir())]
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        sync(path)
    for path in reversed(folders):
        sync(path)


def rename(source: Path, target: Path) -> None:
    """Atomic: at every instant there is either the one name or the other."""
    announce("rename", target)
    os.rename(source, target)
    sync(target.parent)


def remove(folder: Path) -> None:
    announce("remove", folder)
    shutil.rmtree(folder)
