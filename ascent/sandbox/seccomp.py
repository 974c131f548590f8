"""The system-call filter of sandboxed programs, as BPF for bubblewrap.

Namespaces already isolate the network, other processes and the disk. The filter covers the rest: socket families that
ignore network namespaces (AF_VSOCK reaches a virtual machine's host), the kernel's key rings, calls that are frequent
targets of privilege escalation, and memory outside of any process, which process limits do not count. It is a deny
list, so any interpreter version runs; a denied call gets EPERM and the program goes on. Newer calls and options than
this list get ENOSYS or EINVAL: libc and the interpreter have fallbacks.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

# name: (x86_64, aarch64); None if the machine has no such call.
REFUSED: dict[str, tuple[int | None, int | None]] = {
    **{
        "ptrace": (101, 117),
        "process_vm_readv": (310, 270),
        "process_vm_writev": (311, 271),
        "kcmp": (312, 272),
    },
    **{
        "personality": (135, 92),
        "userfaultfd": (323, 282),
        "bpf": (321, 280),
        "seccomp": (317, 277),
    },
    **{
        "perf_event_open": (298, 241),
        "add_key": (248, 217),
        "request_key": (249, 218),
        "keyctl": (250, 219),
    },
    **{
        "mount": (165, 40),
        "umount2": (166, 39),
        "pivot_root": (155, 41),
        "chroot": (161, 51),
        "unshare": (272, 97),
    },
    **{"setns": (308, 268), "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265)},
    **{
        "kexec_load": (246, 104),
        "kexec_file_load": (320, 294),
        "init_module": (175, 105),
        "delete_module": (176, 106),
    },
    **{
        "finit_module": (313, 273),
        "reboot": (169, 142),
        "swapon": (167, 224),
        "swapoff": (168, 225),
    },
    **{
        "settimeofday": (164, 170),
        "clock_settime": (227, 112),
        "adjtimex": (159, 171),
        "clock_adjtime": (305, 266),
    },
    **{
        "sethostname": (170, 161),
        "setdomainname": (171, 162),
        "acct": (163, 89),
        "quotactl": (179, 60),
    },
    **{
        "syslog": (103, 116),
        "vhangup": (153, 58),
        "lookup_dcookie": (212, 18),
        "nfsservctl": (180, 42),
    },
    **{"iopl": (172, None), "ioperm": (173, None), "modify_ldt": (154, None)},
    # Memory outside of any process: System V and POSIX messages, semaphores and segments, anonymous files.
    **{"semget": (64, 190), "semop": (65, 193), "semctl": (66, 191), "semtimedop": (220, 192)},
    **{"shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "shmdt": (67, 197)},
    **{
        "msgget": (68, 186),
        "msgsnd": (69, 189),
        "msgrcv": (70, 188),
        "msgctl": (71, 187),
        "mq_open": (240, 180),
    },
    **{"memfd_create": (319, 279), "io_setup": (206, 0), "timer_create": (222, 107)},
    # A pipe or a socket that keeps pages, even huge ones, which their process has freed.
    **{"vmsplice": (278, 75), "splice": (275, 76), "tee": (276, 77), "sendfile": (40, 71)},
    # Queues and tables of any length. Without epoll, Python's selectors use poll.
    **{"epoll_create": (213, None), "epoll_create1": (291, 20), "fanotify_init": (300, 262)},
    **{"inotify_init": (253, None), "inotify_init1": (294, 26)},
    # A file's access list takes 128 kB, a mapping's memory policy 300 bytes, and neither is counted.
    **{"setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7)},
    **{
        "mbind": (237, 235),
        "set_mempolicy": (238, 237),
        "migrate_pages": (256, 238),
        "move_pages": (279, 239),
    },
}
# From here on, only NEW is allowed. Not clone3, whose flags a filter cannot read; libc falls back to clone.
FIRST_NEW = (335, 295)
NEW = {"close_range": 436, "faccessat2": 439, "fchmodat2": 452}
SOCKET, SOCKETPAIR, CLONE, IOCTL = (41, 198), (53, 199), (56, 220), (16, 29)
MMAP, FCNTL, SETSOCKOPT, PRCTL = (9, 222), (72, 25), (54, 208), (157, 167)
NEW_NAMESPACES = 0x7E020000
AF_UNIX = 1
TIOCSTI, TIOCLINUX = 0x5412, 0x541C  # write to our terminal's input
# Pages that outlive their processes; pages that no process's size includes.
SHARED, ANONYMOUS, HUGE = 0x01, 0x20, 0x40000
# Larger pipes; locks on file ranges, which the kernel does not limit.
FCNTL_REFUSED = {
    "F_SETPIPE_SZ": 1031,
    "F_SETLK": 6,
    "F_SETLKW": 7,
    "F_OFD_SETLK": 37,
    "F_OFD_SETLKW": 38,
}
# Larger sockets; socket filters.
SETSOCKOPT_REFUSED = {
    "SO_SNDBUF": 7,
    "SO_SNDBUFFORCE": 32,
    "SO_ATTACH_FILTER": 26,
    "SO_ATTACH_BPF": 50,
}
# Others could take a gigabyte for futexes (PR_FUTEX_HASH) or hide from our measurement (PR_SET_DUMPABLE).
PRCTL_ALLOWED = {
    **{
        "PR_SET_PDEATHSIG": 1,
        "PR_GET_PDEATHSIG": 2,
        "PR_GET_DUMPABLE": 3,
        "PR_SET_NAME": 15,
        "PR_GET_NAME": 16,
    },
    **{"PR_CAPBSET_READ": 23, "PR_SET_NO_NEW_PRIVS": 38, "PR_GET_NO_NEW_PRIVS": 39},
}
X32 = 0x40000000  # a second numbering of the same calls on x86_64

ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
REFUSE = ERRNO | errno.EPERM
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
NUMBER, ARCH, ARGUMENT = 0, 4, 16


@dataclass(frozen=True)
class Machine:
    name: str
    audit: int
    column: int


MACHINES = {
    "x86_64": Machine("x86_64", 0xC000003E, 0),
    "aarch64": Machine("aarch64", 0xC00000B7, 1),
}

Instruction = tuple[int, int, int, int]


def instructions(machine: Machine) -> list[Instruction]:
    """The filter as (code, jump if true, jump if false, operand)."""
    column = machine.column
    found: list[Instruction] = [
        (LOAD, 0, 0, ARCH),
        (EQUAL, 1, 0, machine.audit),
        (RETURN, 0, 0, KILL),
    ]
    found.append((LOAD, 0, 0, NUMBER))
    if machine.name == "x86_64":
        found += [(AT_LEAST, 0, 1, X32), (RETURN, 0, 0, KILL)]
    new = [*_any(NEW.values(), ALLOW), (RETURN, 0, 0, ERRNO | errno.ENOSYS)]
    found += [(AT_LEAST, 0, len(new), FIRST_NEW[column]), *new]
    found += _any([pair[column] for pair in REFUSED.values()], REFUSE)
    found += _when(CLONE[column], 0, [(ANY_BIT, 0, 1, NEW_NAMESPACES), (RETURN, 0, 0, REFUSE)])
    for number in (SOCKET[column], SOCKETPAIR[column]):
        found += _when(
            number, 0, [(EQUAL, 1, 0, AF_UNIX), (RETURN, 0, 0, ERRNO | errno.EAFNOSUPPORT)]
        )
    found += _when(IOCTL[column], 1, _any([TIOCSTI, TIOCLINUX], REFUSE))
    found += _when(FCNTL[column], 1, _any(FCNTL_REFUSED.values(), REFUSE))
    found += _when(SETSOCKOPT[column], 2, _any(SETSOCKOPT_REFUSED.values(), REFUSE))
    shared = [(ANY_BIT, 0, 2, ANONYMOUS), (ANY_BIT, 0, 1, SHARED), (RETURN, 0, 0, REFUSE)]
    found += _when(MMAP[column], 3, [*shared, (ANY_BIT, 0, 1, HUGE), (RETURN, 0, 0, REFUSE)])
    unknown = (RETURN, 0, 0, ERRNO | errno.EINVAL)
    found += _when(PRCTL[column], 0, [*_any(PRCTL_ALLOWED.values(), ALLOW), unknown])
    return [*found, (RETURN, 0, 0, ALLOW)]


def _any(operands: Iterable[int | None], answer: int) -> Iterator[Instruction]:
    """Return `answer` for each of these operands; others continue."""
    for operand in operands:
        if operand is not None:
            yield (EQUAL, 0, 1, operand)
            yield (RETURN, 0, 0, answer)


def _when(number: int, argument: int, rules: Iterable[Instruction]) -> Iterator[Instruction]:
    """Apply `rules` to the argument's low half; then the call is allowed."""
    body = list(rules)
    yield (EQUAL, 0, len(body) + 2, number)
    yield (LOAD, 0, 0, ARGUMENT + 8 * argument)  # both machines are little-endian
    yield from body
    yield (RETURN, 0, 0, ALLOW)


def program(machine: str) -> bytes:
    """The filter in the kernel's layout, for `bwrap --seccomp`."""
    if machine not in MACHINES:
        raise ValueError(
            f"no system-call filter for {machine!r}; there is one for {' and '.join(MACHINES)}"
        )
    return b"".join(struct.pack("<HBBI", *each) for each in instructions(MACHINES[machine]))
