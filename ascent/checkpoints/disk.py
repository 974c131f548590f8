"""The disk operations of checkpoints.

Each calls `watcher` first, which does nothing. Tests replace it to kill the process, or to raise the error of a full
disk, at the n-th call.
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
    """Call the watcher before a `write`, `fsync`, `rename` or `remove` of `path`."""
    watcher(kind, path)


@contextmanager
def writing() -> Iterator[None]:
    """Turn failed writes of safetensors (SafetensorError) and tokenizers (Exception) into OSError."""
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
    """fsync a file or a folder."""
    announce("fsync", path)
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_tree(folder: Path) -> None:
    """fsync every file in a folder, then the folders, innermost first."""
    folders = [folder, *sorted(path for path in folder.rglob("*") if path.is_dir())]
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        sync(path)
    for path in reversed(folders):
        sync(path)


def rename(source: Path, target: Path) -> None:
    """Rename atomically and sync the parent folder."""
    announce("rename", target)
    os.rename(source, target)
    sync(target.parent)


def remove(folder: Path) -> None:
    announce("remove", folder)
    shutil.rmtree(folder)
