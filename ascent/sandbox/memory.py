"""The memory of a program, measured from outside: all its processes and what they left behind.

A control group counts exactly, where there is one (cgroups.py). This works everywhere, and errs upwards: pages shared
by two processes count twice, and kernel memory without a readable size (pipes, sockets, mappings, inodes) counts at its
maximum. What cannot be measured is refused (seccomp.py).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_PIPE_BYTES = 16 * _PAGE_BYTES  # larger ones are refused by the filter
_INODE_BYTES = 1536  # an empty file: its inode, name and directory entry
# A mapping of one page, in a program of 14 processes, each the child of the one before, costs 885 bytes.
_MAPPING_BYTES, _MAX_MAPPINGS = 1024, 8192
_DATAGRAM = "0002"
_DATAGRAM_SENDERS = 11  # buffers of senders per datagram socket; a stream has one


def process_tree(root: int) -> list[int]:
    """A process and its descendants."""
    found, pending = [], [root]
    while pending:
        pid = pending.pop()
        found.append(pid)
        try:
            for task in os.listdir(f"/proc/{pid}/task"):
                pending += [
                    int(child)
                    for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split()
                ]
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def used_bytes(root: int, init: int | None, folders: Iterable[str]) -> int:
    """Bytes of a process tree; with `init`, the first process of its namespaces, also of their sockets and folders."""
    found = sum(_process(pid) for pid in process_tree(root))
    if init is not None:
        found += _sockets(init) + sum(_folder(f"/proc/{init}/root{folder}") for folder in folders)
    return found


def _process(pid: int) -> int:
    """The first thread may have ended and show no memory; each thread may have its own descriptors."""
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
            continue  # it has ended
    return size + descriptors * _PIPE_BYTES


def _memory(folder: str) -> int:
    lines = (line.split() for line in Path(folder, "status").read_text().splitlines())
    kilobytes = {words[0]: int(words[1]) for words in lines if len(words) == 3 and words[2] == "kB"}
    if "VmRSS:" not in kilobytes:
        return 0
    size = sum(kilobytes.get(name, 0) for name in ("VmRSS:", "VmSwap:", "VmPTE:")) * 1024
    return size + _mappings(folder, kilobytes["VmSize:"] * 1024 // _PAGE_BYTES) * _MAPPING_BYTES


def _mappings(folder: str, limit: int) -> int:
    """Their number; `limit` if there are too many to count."""
    count = 0
    with open(f"{folder}/maps", "rb", buffering=0) as file:
        while chunk := file.read(1 << 16):
            count += chunk.count(b"\n")
            if count > _MAX_MAPPINGS:
                return limit
    return count


def _sockets(init: int) -> int:
    """Also those not accepted yet, or in transit to another process."""
    try:
        kinds = [
            line.split()[4] for line in Path(f"/proc/{init}/net/unix").read_text().splitlines()[1:]
        ]
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return (len(kinds) + (_DATAGRAM_SENDERS - 1) * kinds.count(_DATAGRAM)) * _socket_size()


def _socket_size() -> int:
    """The last write may exceed the buffer size; programs may not change it."""
    try:
        return int(Path("/proc/sys/net/core/wmem_default").read_text()) * 3 // 2
    except FileNotFoundError:
        return 212992 * 3 // 2


def _folder(path: str) -> int:
    try:
        size = os.statvfs(path)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return 0
    return (size.f_blocks - size.f_bfree) * size.f_frsize + (
        size.f_files - size.f_ffree
    ) * _INODE_BYTES
