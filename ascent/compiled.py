"""compiled.c, compiled when first needed: what a CPU does too slowly in numpy or torch.

It takes a C compiler, and a second, once: the result is kept in the user's cache. No flag names a processor, so that
machines of one kind may share it. Without a compiler everything works, and takes longer, which is said once.
"""

from __future__ import annotations

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

logger = logging.getLogger("ascent.compiled")


class NotCompiled(Exception):
    """Says why."""


@functools.cache
def library() -> ctypes.CDLL | None:
    """The functions of compiled.c; None where they cannot be had."""
    try:
        return load()
    except NotCompiled as error:
        logger.warning("sampling on this CPU goes without compiled functions and takes longer: %s; %s", error, FIX)
        return None


def load() -> ctypes.CDLL:
    try:
        with tempfile.TemporaryDirectory() as folder:
            return ctypes.CDLL(str(_built(Path(folder))))
    except subprocess.CalledProcessError as error:
        raise NotCompiled(f"{error.cmd[0]} failed: {error.stderr.strip()}") from error
    except OSError as error:
        raise NotCompiled(str(error)) from error


def _built(folder: Path) -> Path:
    """The compiled file: from the cache, or made in `folder` and put there if it can be written to."""
    text = SOURCE.read_bytes() + " ".join((*FLAGS, platform.system(), platform.machine())).encode()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "ascent"
    kept = cache / f"compiled-{hashlib.sha256(text).hexdigest()[:16]}.so"
    if kept.exists():
        return kept
    new = folder / kept.name
    command = [*_compiler(), *FLAGS, "-o", str(new), str(SOURCE), "-lm"]
    subprocess.run(command, check=True, capture_output=True, text=True)
    if not cache.is_absolute():  # nobody's home
        return new
    try:
        cache.mkdir(parents=True, exist_ok=True)
        beside = Path(shutil.copy(new, cache / f"{kept.name}.{os.getpid()}"))
        return beside.replace(kept)  # at once: others may be doing the same
    except OSError:
        return new


def _compiler() -> list[str]:
    """The one that CC names, perhaps with options of its own, or the first that is found."""
    named = [shlex.split(os.environ["CC"])] if os.environ.get("CC") else [[name] for name in COMPILERS]
    for command in named:
        if shutil.which(command[0]):
            return command
    raise FileNotFoundError(f"no C compiler was found ({', '.join(command[0] for command in named)})")
