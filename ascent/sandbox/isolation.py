"""What stands around a program: bubblewrap's command line, the interpreter it may see, and the user it runs as."""

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
OLDEST = (0, 7)  # the first with --size: a temporary folder without it may take half of the machine's memory
# Users that no account has: the process limit does not bind root, not even inside a user namespace, so root's workers
# each become one of these before they start anything. Each worker has its own, so their process counts stay apart.
FIRST_UID, UIDS = 61184, 4096
FOLDERS = ("/tmp", "/dev/shm")  # the only ones that a program may write into

_COVERED = (Path("/mnt"), Path("/srv"), Path("/media"), Path(tempfile.gettempdir()))
_NEW_MOUNTS, _BIND, _RECURSIVE, _PRIVATE = 0x00020000, 4096, 16384, 1 << 18


# Told by the interpreter itself, in the environment that it will have: its modules, and the files it loads for them.
# A thread's end wants libgcc, which nothing names. Windows, terminals and yellow pages are of no use in there, and each
# library costs every program 0.1 ms at its start.
_NEEDS = """
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
    """The Python that programs run on: the one behind the virtual environment, without its packages."""

    executable: Path
    prefix: Path
    seen_at: Path  # where the worker reaches the prefix; differs where its user may not walk the real path
    modules: tuple[Path, ...] = ()  # the standard library
    packages: tuple[Path, ...] = ()  # folders in there that hold something else
    libraries: tuple[tuple[Path, Path], ...] = ()  # (the file, the name it is loaded by), outside the modules

    @classmethod
    def mine(cls) -> Interpreter:
        prefix = Path(sys.base_prefix).resolve()
        name = f"python{sys.version_info.major}.{sys.version_info.minor}"
        executable = prefix / "bin" / name
        if not executable.exists():
            raise ValueError(f"there is no {executable}; the sandbox runs programs on the interpreter of {prefix}")
        words, there = [str(executable), "-I", "-S", "-B", "-c", _NEEDS], environment("/")
        asked = subprocess.run(words, capture_output=True, text=True, check=False, env=there)
        if asked.returncode != 0:
            raise ValueError(f"{executable} did not say what it loads: {asked.stderr.strip()[-500:]}")
        found, loaded = ([Path(os.path.normpath(name)) for name in names] for names in json.loads(asked.stdout))
        modules = [path for path in found if not any(other in path.parents for other in found)]
        inside = [path / name for path in modules for name in ("site-packages", "dist-packages")]
        libraries = [(name.resolve(), name) for name in loaded if not any(path in name.parents for path in modules)]
        packages = [path for path in inside if path.is_dir()]
        return cls(executable, prefix, prefix, tuple(modules), tuple(packages), tuple(libraries))

    def reached(self, path: Path) -> str:
        """Where the worker finds a file of the prefix, or any other."""
        return str(self.seen_at / path.relative_to(self.prefix) if path.is_relative_to(self.prefix) else path)


def require_bubblewrap() -> str:
    """Its path; ValueError with what to install, or with what keeps it from working here."""
    found = shutil.which("bwrap")
    if found is None:
        raise ValueError(
            f"the sandbox needs {PACKAGE}, and there is no bwrap on the PATH; install the package {PACKAGE} "
            f"(Debian, Ubuntu: apt-get install {PACKAGE}; Fedora: dnf install {PACKAGE}), or say `sandbox: none` to "
            "run model-written programs with this user's rights"
        )
    text = subprocess.run([found, "--version"], capture_output=True, text=True, check=False).stdout
    version = tuple(int(number) for number in re.findall(r"\d+", text)[:2])
    if version < OLDEST:
        raise ValueError(f"{text.strip() or found} is too old for the sandbox; install {PACKAGE} 0.7 or newer")
    return found


def become_nobody(slot: int, interpreter: Interpreter) -> Interpreter:
    """Drop root for a user of our own, and keep the interpreter in reach of it; nothing changes for other users."""
    if os.geteuid() != 0:
        return interpreter
    uid = FIRST_UID + slot % UIDS
    if not _reaches(interpreter.executable, uid):
        interpreter = _exposed(interpreter)
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    return interpreter


def _reaches(path: Path, uid: int) -> bool:
    """May this user, owner of nothing, walk to and read that file?"""
    walk = all(parent.stat().st_mode & 0o001 for parent in path.parents)
    return walk and bool(path.stat().st_mode & 0o004)


def _exposed(interpreter: Interpreter) -> Interpreter:
    """The same prefix, mounted where every user can walk, in a mount namespace that only this process has."""
    libc = ctypes.CDLL(None, use_errno=True)
    # Hidden for this process alone, which needs nothing there; so nothing is left behind.
    place = next(folder for folder in _COVERED if folder.is_dir() and folder.stat().st_mode & 0o001)
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
    return replace(interpreter, seen_at=place)


def command(
    bwrap: str, interpreter: Interpreter, limits: Limits, *, descriptors: Mapping[str, int], inner: list[str]
) -> list[str]:
    """bubblewrap's whole command line: an almost empty read-only root, no network, no other processes, no names.
    `descriptors` are for its options of those names (seccomp, info-fd)."""
    temp = str(int(limits.temp_mb * MEGABYTE))
    words = [bwrap, "--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL", "--hostname", "sandbox"]
    words += ["--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"]
    words += ["--unshare-cgroup-try"]
    for option, number in descriptors.items():
        words += [f"--{option}", str(number)]
    words += _files(interpreter)
    # Not /dev/zero, which gives shared memory that belongs to no process, nor terminals.
    for device in ("null", "random", "urandom"):
        words += ["--dev-bind", f"/dev/{device}", f"/dev/{device}"]
    for folder in FOLDERS:
        words += ["--size", temp, "--tmpfs", folder]
    words += ["--remount-ro", "/", "--chdir", "/tmp"]
    for name, value in environment("/tmp").items():
        words += ["--setenv", name, value]
    return [*words, "--", str(interpreter.executable), *inner]


def environment(home: str) -> dict[str, str]:
    """All that a program finds in its environment: nothing of ours."""
    return {"HOME": home, "TMPDIR": home, "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}


def _files(interpreter: Interpreter) -> list[str]:
    """The interpreter, its modules and the libraries they load: no package, no shell, no set-user-id program."""
    bound = [(interpreter.executable, interpreter.executable), *interpreter.libraries]
    bound += [(path, path) for path in interpreter.modules]
    words = [word for file, name in bound for word in ("--ro-bind", interpreter.reached(file), str(name))]
    for path in interpreter.packages:
        words += ["--tmpfs", str(path), "--remount-ro", str(path)]
    return [*words, "--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"]
