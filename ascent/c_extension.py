"""Compile and load c_extension.c, the CPU kernels that numpy and torch lack.

It is compiled on first use, in about a second, and cached in the user's cache folder. No flag is specific to a
processor, so machines of one architecture can share it. Without a C compiler everything works, but slower.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")
FLAGS = ("-O3", "-fPIC", "-shared")
COMPILERS = ("cc", "gcc", "clang")
FIX = "install a C compiler (gcc or clang), or name one in the environment variable CC"

logger = logging.getLogger("ascent.c_extension")


class NotCompiled(Exception):
    """The extension could not be compiled."""


@functools.cache
def library() -> ctypes.CDLL | None:
    """The functions of c_extension.c; None if they cannot be compiled."""
    try:
        return load()
    except NotCompiled as error:
        logger.warning(
            "sampling on this CPU runs without compiled functions and takes longer: %s; %s",
            error,
            FIX,
        )
        return None


def load() -> ctypes.CDLL:
    """Load the library from the cache, or compile it and cache it if possible."""
    text = SOURCE.read_bytes() + " ".join((*FLAGS, platform.system(), platform.machine())).encode()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "ascent"
    cached = cache / f"compiled-{hashlib.sha256(text).hexdigest()[:16]}.so"
    with contextlib.suppress(OSError):  # missing or unusable: compile it
        return ctypes.CDLL(str(cached))
    compiler = _compiler()
    with _build_folder(cache) as folder:
        new = Path(folder) / cached.name
        try:
            command = [*compiler, *FLAGS, "-o", str(new), str(SOURCE), "-lm"]
            subprocess.run(command, check=True, capture_output=True, text=True, errors="replace")
            functions = ctypes.CDLL(str(new))
        except subprocess.CalledProcessError as error:
            raise NotCompiled(f"{compiler[0]} failed: {error.stderr.strip()}") from error
        except OSError as error:
            raise NotCompiled(str(error)) from error
        if new.parent.parent == cache:
            with contextlib.suppress(OSError):  # the cache is optional
                new.replace(cached)  # atomic: other processes may do the same
    return functions


def _compiler() -> list[str]:
    """The compiler in CC, perhaps with options, or the first that is found."""
    from_env = os.environ.get("CC", "").strip()
    try:
        named = [shlex.split(from_env)] if from_env else [[name] for name in COMPILERS]
    except ValueError as error:
        raise NotCompiled(f"CC={from_env!r}: {error}") from error
    for command in named:
        if shutil.which(command[0]):
            return command
    raise NotCompiled(f"no C compiler was found ({', '.join(command[0] for command in named)})")


def _build_folder(cache: Path) -> tempfile.TemporaryDirectory[str]:
    """A temporary folder in the cache, or elsewhere if the cache cannot be written."""
    if cache.is_absolute():
        with contextlib.suppress(OSError):
            cache.mkdir(parents=True, exist_ok=True)
            return tempfile.TemporaryDirectory(dir=cache, ignore_cleanup_errors=True)
    return tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
