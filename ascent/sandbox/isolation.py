"""What stands around a program: bubblewrap's command line, the interpreter it may see, and the user it runs as."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ascent.sandbox.limits import MEGABYTE, Limits

PACKAGE = "bubblewrap"
OLDEST = (0, 7)  # the first with --size: a temporary folder without it may take half of the machine's memory
# Users that no account has: the process limit does not bind root, not even inside a user namespace, so root's workers
# each become one of these before they start anything. Each worker has its own, so their process counts stay apart.
FIRST_UID, UIDS = 61184, 4096

_COVERED = (Path("/mnt"), Path("/srv"), Path("/media"), Path(tempfile.gettempdir()))
_NEW_MOUNTS, _BIND, _RECURSIVE, _PRIVATE = 0x00020000, 4096, 16384, 1 << 18


@dataclass(frozen=True)
class Interpreter:
    """The Python that programs run on: the one behind the virtual environment, without its packages."""

    executable: Path
    prefix: Path
    seen_at: Path  # where the worker reaches the prefix; differs where its user may not walk the real path

    @classmethod
    def mine(cls) -> Interpreter:
        prefix = Path(sys.base_prefix).resolve()
        name = f"python{sys.version_info.major}.{sys.version_info.minor}"
        executable = prefix / "bin" / name
        if not executable.exists():
            raise ValueError(f"there is no {executable}; the sandbox runs programs on the interpreter of {prefix}")
        return cls(executable, prefix, prefix)


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
    return Interpreter(interpreter.executable, interpreter.prefix, place)


def command(
    bwrap: str, interpreter: Interpreter, limits: Limits, *, filter_fd: int, info_fd: int, inner: list[str]
) -> list[str]:
    """bubblewrap's whole command line: an almost empty read-only root, no network, no other processes, no names."""
    temp = str(int(limits.temp_mb * MEGABYTE))
    words = [bwrap, "--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL", "--hostname", "sandbox"]
    words += ["--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"]
    words += ["--unshare-cgroup-try", "--seccomp", str(filter_fd), "--info-fd", str(info_fd)]
    words += _libraries()
    words += _interpreter(interpreter)
    words += ["--dev", "/dev", "--remount-ro", "/dev", "--size", temp, "--tmpfs", "/dev/shm"]
    words += ["--size", temp, "--tmpfs", "/tmp", "--remount-ro", "/", "--chdir", "/tmp"]
    for name, value in environment("/tmp").items():
        words += ["--setenv", name, value]
    return [*words, "--", str(interpreter.executable), *inner]


def environment(home: str) -> dict[str, str]:
    """All that a program finds in its environment: nothing of ours."""
    return {"HOME": home, "TMPDIR": home, "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}


def _libraries() -> list[str]:
    """The shared libraries an interpreter loads: no shell, no tools, no set-user-id programs."""
    words = []
    for name in ("lib", "lib64", "lib32"):
        if Path("/usr", name).is_dir():
            words += ["--ro-bind", f"/usr/{name}", f"/usr/{name}"]
        top = Path("/", name)
        if top.is_symlink():
            words += ["--symlink", os.readlink(top), str(top)]
        elif top.is_dir():
            words += ["--ro-bind", str(top), str(top)]
    return [*words, "--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"]


def _interpreter(interpreter: Interpreter) -> list[str]:
    real, prefix = interpreter.seen_at, interpreter.prefix
    words = ["--ro-bind", str(real / interpreter.executable.relative_to(prefix)), str(interpreter.executable)]
    if prefix != Path("/usr"):  # its libraries are bound already
        words += ["--ro-bind", str(real / "lib"), str(prefix / "lib")]
    return words
