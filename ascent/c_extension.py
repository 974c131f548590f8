"""c_extension.c, compiled when first needed: what a CPU does too slowly in numpy or torch.

It takes a C compiler, and a second, once: the result is kept in the user's cache. No flag names a processor, so that
machines of one kind may share it. Without a compiler everything works, and takes longer, which is said once.
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
    """Says why."""


@functools.cache
def library() -> ctypes.CDLL | None:
    """The functions of c_extension.c; None where they cannot be had."""
    try:
        return load()
    except NotCompiled as error:
        logger.warning("sampling on this CPU goes without compiled functions and takes longer: %s; %s", error, FIX)
        return None


def load() -> ctypes.CDLL:
    """From the cache, or compiled, and then kept there if it can be written to."""
    text = SOURCE.read_bytes() + " ".join((*FLAGS, platform.system(), platform.machine())).encode()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "ascent"
    kept = cache / f"compiled-{hashlib.sha256(text).hexdigest()[:16]}.so"
    with contextlib.suppress(OSError):  # none there, or none that can be used here: it is made anew
        return ctypes.CDLL(str(kept))
    compiler = _compiler()
    with _room(cache) as folder:
        new = Path(folder) / kept.name
        try:
            command = [*compiler, *FLAGS, "-o", str(new), str(SOURCE), "-lm"]
            subprocess.run(command, check=True, capture_output=True, text=True, errors="replace")
            functions = ctypes.CDLL(str(new))
        except subprocess.CalledProcessError as error:
            raise NotCompiled(f"{compiler[0]} failed: {error.stderr.strip()}") from error
        except OSError as error:
            raise NotCompiled(str(error)) from error
        if new.parent.parent == cache:
            with contextlib.suppress(OSError):  # it is only for the next time
                new.replace(kept)  # at once: others may be doing the same
    return functions


def _compiler() -> list[str]:
    """The one that CC names, perhaps with options of its own, or the first that is found."""
    own = os.environ.get("CC", "").strip()
    try:
        named = [shlex.split(own)] if own else [[name] for name in COMPILERS]
    except ValueError as error:
        raise NotCompiled(f"CC={own!r}: {error}") from error
    for command in named:
        if shutil.which(command[0]):
            return command
    raise NotCompiled(f"no C compiler was found ({', '.join(command[0] for command in named)})")


def _room(cache: Path) -> tempfile.TemporaryDirectory[str]:
    """Room in the cache, or anywhere where that cannot be written to or would be nobody's."""
    if cache.is_absolute():
        with contextlib.suppress(OSError):
            cache.mkdir(parents=True, exist_ok=True)
            return tempfile.TemporaryDirectory(dir=cache, ignore_cleanup_errors=True)
    return tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
