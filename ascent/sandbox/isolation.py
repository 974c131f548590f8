"""Isolation of a program: bubblewrap's command line, the visible interpreter, and the user."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ascent.sandbox.limits import MEGABYTE, Limits

PACKAGE = "bubblewrap"
MIN_VERSION = (0, 7)  # the first with --size, without which a tmpfs may take half of the memory
# User ids without accounts: the process limit does not apply to root, not even in a user namespace, so root's workers
# each become one of these first. Each worker has its own id, and thus its own process count.
FIRST_UID, UIDS = 61184, 4096
FOLDERS = ("/tmp", "/dev/shm")  # the only writable ones

_MOUNT_POINTS = (Path("/mnt"), Path("/srv"), Path("/media"), Path(tempfile.gettempdir()))
_NEW_MOUNTS, _BIND, _RECURSIVE, _PRIVATE = 0x00020000, 4096, 16384, 1 << 18


# Run by the interpreter in its later environment: lists its modules, and the libraries it loads for them. Ending a
# thread needs libgcc, which nothing names. GUI, terminal and NIS modules are left out: each library costs every program
# 0.1 ms.
_LIST_FILES = """
import ctypes, glob, json, os, sys
modules = [path for path in sys.path if os.path.isdir(path)]
for name in [file for path in modules for file in glob.glob(path + "/*.so")] + ["libgcc_s.so.1"]:
    try:
        if os.path.basename(name).partition(".")[0] not in ("_tkinter", "_curses", "_curses_panel", "readline", "nis"):
            ctypes.CDLL(name)
    except OSError:
        pass
class Loaded(ctypes.Structure):
    _fields_ = [("address", ctypes.c_void_p), ("name", ctypes.c_char_p)]
names = []
@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Loaded), ctypes.c_size_t, ctypes.c_void_p)
def visit(info, size, data):
    names.append(os.fsdecode(info[0].name or b""))
    return 0
ctypes.CDLL(None).dl_iterate_phdr(visit, None)
print(json.dumps([modules, [name for name in names if name.startswith("/")]]))
"""


@dataclass(frozen=True)
class Interpreter:
    """The Python that programs run on: the virtual environment's base, without its packages."""

    executable: Path
    prefix: Path
    mounted_at: (
        Path  # where the worker sees the prefix; differs if its user cannot read the real path
    )
    modules: tuple[Path, ...] = ()  # the standard library
    packages: tuple[Path, ...] = ()  # folders in there that are hidden
    libraries: tuple[
        tuple[Path, Path], ...
    ] = ()  # (file, name it is loaded by), outside the modules

    @classmethod
    def current(cls) -> Interpreter:
        prefix = Path(sys.base_prefix).resolve()
        name = f"python{sys.version_info.major}.{sys.version_info.minor}"
        executable = prefix / "bin" / name
        if not executable.exists():
            raise ValueError(
                f"there is no {executable}; the sandbox runs programs on the interpreter of {prefix}"
            )
        words, there = [str(executable), "-I", "-S", "-B", "-c", _LIST_FILES], environment("/")
        result = subprocess.run(words, capture_output=True, text=True, check=False, env=there)
        if result.returncode != 0:
            raise ValueError(
                f"{executable} could not list its modules: {result.stderr.strip()[-500:]}"
            )
        found, loaded = (
            [Path(os.path.normpath(name)) for name in names] for names in json.loads(result.stdout)
        )
        modules = [path for path in found if not any(other in path.parents for other in found)]
        inside = [path / name for path in modules for name in ("site-packages", "dist-packages")]
        libraries = [
            (name.resolve(), name)
            for name in loaded
            if not any(path in name.parents for path in modules)
        ]
        packages = [path for path in inside if path.is_dir()]
        return cls(executable, prefix, prefix, tuple(modules), tuple(packages), tuple(libraries))

    def visible_path(self, path: Path) -> str:
        """The path at which the worker sees a file."""
        return str(
            self.mounted_at / path.relative_to(self.prefix)
            if path.is_relative_to(self.prefix)
            else path
        )


def require_bubblewrap() -> str:
    """The path of bwrap; ValueError if it is missing or too old."""
    found = shutil.which("bwrap")
    if found is None:
        raise ValueError(
            f"the sandbox needs {PACKAGE}, and there is no bwrap on the PATH; install the package {PACKAGE} "
            f"(Debian, Ubuntu: apt-get install {PACKAGE}; Fedora: dnf install {PACKAGE}), or say `sandbox: none` to "
            "run model-written programs with this user's rights"
        )
    text = subprocess.run([found, "--version"], capture_output=True, text=True, check=False).stdout
    version = tuple(int(number) for number in re.findall(r"\d+", text)[:2])
    if version < MIN_VERSION:
        raise ValueError(
            f"{text.strip() or found} is too old for the sandbox; install {PACKAGE} 0.7 or newer"
        )
    return found


def become_nobody(slot: int, interpreter: Interpreter) -> Interpreter:
    """As root, become an unprivileged user that can still read the interpreter; no change for other users."""
    if os.geteuid() != 0:
        return interpreter
    uid = FIRST_UID + slot % UIDS
    if not _can_read(interpreter.executable, uid):
        interpreter = _mount_readable(interpreter)
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    return interpreter


def _can_read(path: Path, uid: int) -> bool:
    """May a user who owns nothing read that file?"""
    walk = all(parent.stat().st_mode & 0o001 for parent in path.parents)
    return walk and bool(path.stat().st_mode & 0o004)


def _mount_readable(interpreter: Interpreter) -> Interpreter:
    """The same prefix, mounted where every user can read it, in a mount namespace of this process only."""
    libc = ctypes.CDLL(None, use_errno=True)
    # Covered for this process only, so nothing is left behind.
    place = next(
        folder for folder in _MOUNT_POINTS if folder.is_dir() and folder.stat().st_mode & 0o001
    )
    for done in (
        libc.unshare(_NEW_MOUNTS),
        libc.mount(b"none", b"/", None, ctypes.c_ulong(_RECURSIVE | _PRIVATE), None),
        libc.mount(bytes(interpreter.prefix), bytes(place), None, ctypes.c_ulong(_BIND), None),
    ):
        if done != 0:
            code = ctypes.get_errno()
            raise ValueError(
                f"{interpreter.prefix} is closed to other users and could not be mounted for the sandbox's user "
                f"({os.strerror(code)}); install Python where every user may read it"
            )
    return replace(interpreter, mounted_at=place)


def bwrap_command(
    bwrap: str,
    interpreter: Interpreter,
    limits: Limits,
    *,
    descriptors: Mapping[str, int],
    inner: list[str],
) -> list[str]:
    """bubblewrap's command line: an almost empty read-only root, no network, no other processes. `descriptors` are for
    its options of those names (seccomp, info-fd)."""
    temp = str(int(limits.temp_mb * MEGABYTE))
    words = [
        bwrap,
        "--die-with-parent",
        "--new-session",
        "--clearenv",
        "--cap-drop",
        "ALL",
        "--hostname",
        "sandbox",
    ]
    words += ["--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"]
    words += ["--unshare-cgroup-try"]
    for option, number in descriptors.items():
        words += [f"--{option}", str(number)]
    words += _files(interpreter)
    # Not /dev/zero, which gives shared memory outside of any process, nor terminals.
    for device in ("null", "random", "urandom"):
        words += ["--dev-bind", f"/dev/{device}", f"/dev/{device}"]
    for folder in FOLDERS:
        words += ["--size", temp, "--tmpfs", folder]
    words += ["--remount-ro", "/", "--chdir", "/tmp"]
    for name, value in environment("/tmp").items():
        words += ["--setenv", name, value]
    return [*words, "--", str(interpreter.executable), *inner]


def environment(home: str) -> dict[str, str]:
    """The whole environment of a program: nothing of ours."""
    return {
        **{
            "HOME": home,
            "TMPDIR": home,
            "PATH": "/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "PYTHONHASHSEED": "0",
        },
        "MALLOC_ARENA_MAX": "1",  # else every thread reserves 64 MB of the address space, which is limited
    }


def _files(interpreter: Interpreter) -> list[str]:
    """Bind the interpreter, its modules and their libraries: no packages, no shell, no set-user-id program."""
    bound = [(interpreter.executable, interpreter.executable), *interpreter.libraries]
    bound += [(path, path) for path in interpreter.modules]
    words = [
        word
        for file, name in bound
        for word in ("--ro-bind", interpreter.visible_path(file), str(name))
    ]
    for path in interpreter.packages:
        words += ["--tmpfs", str(path), "--remount-ro", str(path)]
    return [*words, "--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"]
