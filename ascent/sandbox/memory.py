"""How much of the machine's memory a program holds, as seen from outside: all its processes and what they left behind.

A control group counts exactly, where there is one (cgroups.py). This works everywhere, and errs upwards: pages that two
processes share count twice, and what the kernel keeps for a program without a size to read (the contents of pipes and
sockets, mappings, file nodes) counts at the most it can be. What cannot be seen at all is refused (seccomp.py).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

_PAGE = os.sysconf("SC_PAGE_SIZE")
_PIPE = 16 * _PAGE  # larger ones are refused
_NODE = 1536  # a file of no size: its node, its name, its place in the folder
# A mapping of one page, in a program of 14 processes, each the child of the one before, costs 885 bytes.
_MAPPING, _MOST_MAPPINGS = 1024, 8192
_DATAGRAM = "0002"
_DATAGRAMS = 11  # that a socket takes from others; a stream takes from one


def tree(root: int) -> list[int]:
    """A process and all that descend from it."""
    found, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        try:
            for task in os.listdir(f"/proc/{pid}/task"):
                waiting += [int(child) for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split()]
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def held(root: int, init: int | None, folders: Iterable[str]) -> int:
    """Bytes of a tree; with `init`, the first process of its namespaces, also of their sockets and these folders."""
    found = sum(_process(pid) for pid in tree(root))
    if init is not None:
        found += _sockets(init) + sum(_folder(f"/proc/{init}/root{folder}") for folder in folders)
    return found


def _process(pid: int) -> int:
    """Its first thread may have left and show nothing of what the others hold; each may have descriptors of its own."""
    size, descriptors = 0, 0
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except (FileNotFoundError, ProcessLookupError):
        return 0
    for task in tasks:
        try:
            size = size or _memory(f"/proc/{pid}/task/{task}")
            descriptors += len(os.listdir(f"/proc/{pid}/task/{task}/fd"))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # nobody may read one that has ended
    return size + descriptors * _PIPE


def _memory(place: str) -> int:
    lines = (line.split() for line in Path(place, "status").read_text().splitlines())
    kilobytes = {words[0]: int(words[1]) for words in lines if len(words) == 3 and words[2] == "kB"}
    if "VmRSS:" not in kilobytes:
        return 0
    size = sum(kilobytes.get(name, 0) for name in ("VmRSS:", "VmSwap:", "VmPTE:")) * 1024
    return size + _mappings(place, kilobytes["VmSize:"] * 1024 // _PAGE) * _MAPPING


def _mappings(place: str, most: int) -> int:
    """How many, or `most` where counting on would keep us from looking at the rest."""
    count = 0
    with open(f"{place}/maps", "rb", buffering=0) as file:
        while piece := file.read(1 << 16):
            count += piece.count(b"\n")
            if count > _MOST_MAPPINGS:
                return most
    return count


def _sockets(init: int) -> int:
    """Those that nobody has opened yet, or that are under way to another process, are in this list, too."""
    try:
        kinds = [line.split()[4] for line in Path(f"/proc/{init}/net/unix").read_text().splitlines()[1:]]
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return (len(kinds) + (_DATAGRAMS - 1) * kinds.count(_DATAGRAM)) * _socket_size()


def _socket_size() -> int:
    """The kernel lets the last write go over the size; programs may not change it."""
    try:
        return int(Path("/proc/sys/net/core/wmem_default").read_text()) * 3 // 2
    except FileNotFoundError:
        return 212992 * 3 // 2


def _folder(path: str) -> int:
    try:
        size = os.statvfs(path)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return 0
    return (size.f_blocks - size.f_bfree) * size.f_frsize + (size.f_files - size.f_ffree) * _NODE
