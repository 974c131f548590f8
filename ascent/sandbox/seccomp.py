"""The system calls a sandboxed program may not make, as a BPF filter that bubblewrap installs.

Namespaces already take away the network, other processes and the disk. The filter takes away what namespaces do not
cover: socket families that ignore network namespaces (AF_VSOCK reaches a virtual machine's host), the kernel's key
rings, and the calls in which local privilege escalations keep being found. It is a list of what is refused, not of
what is allowed, so that any interpreter version runs; a refused call gets EPERM and the program goes on.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

# name: (x86_64, aarch64); None where the machine has no such call.
REFUSED: dict[str, tuple[int | None, int | None]] = {
    **{"ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272)},
    **{"pidfd_getfd": (438, 438), "personality": (135, 92), "userfaultfd": (323, 282), "bpf": (321, 280)},
    **{"perf_event_open": (298, 241), "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219)},
    **{"io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427)},
    **{"mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "unshare": (272, 97)},
    **{"setns": (308, 268), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430)},
    **{"fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442)},
    **{"open_tree_attr": (467, 467)},
    **{"name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "fanotify_init": (300, 262)},
    **{"kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105), "delete_module": (176, 106)},
    **{"finit_module": (313, 273), "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225)},
    **{"settimeofday": (164, 170), "clock_settime": (227, 112), "adjtimex": (159, 171), "clock_adjtime": (305, 266)},
    **{"sethostname": (170, 161), "setdomainname": (171, 162), "acct": (163, 89), "quotactl": (179, 60)},
    **{"syslog": (103, 116), "vhangup": (153, 58), "lookup_dcookie": (212, 18), "nfsservctl": (180, 42)},
    # Memory that belongs to no process, so that no limit on processes would see it.
    **{"memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194), "msgget": (68, 186)},
    **{"move_pages": (279, 239), "iopl": (172, None), "ioperm": (173, None), "modify_ldt": (154, None)},
}
SOCKET, SOCKETPAIR, CLONE, IOCTL = (41, 198), (53, 199), (56, 220), (16, 29)
CLONE3 = 435  # its flags lie in memory, out of a filter's sight: refused as unknown, so that libc falls back to clone
NEW_NAMESPACES = 0x7E020000
AF_UNIX = 1
TIOCSTI, TIOCLINUX = 0x5412, 0x541C  # type into the terminal of whoever started us
X32 = 0x40000000  # a second numbering of the same calls on x86_64

ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
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
    found: list[Instruction] = [(LOAD, 0, 0, ARCH), (EQUAL, 1, 0, machine.audit), (RETURN, 0, 0, KILL)]
    found.append((LOAD, 0, 0, NUMBER))
    if machine.name == "x86_64":
        found += [(AT_LEAST, 0, 1, X32), (RETURN, 0, 0, KILL)]
    found += [(EQUAL, 0, 1, CLONE3), (RETURN, 0, 0, ERRNO | errno.ENOSYS)]
    for numbers in REFUSED.values():
        number = numbers[column]
        if number is not None:
            found += [(EQUAL, 0, 1, number), (RETURN, 0, 0, ERRNO | errno.EPERM)]
    found += _when(CLONE[column], 0, [(ANY_BIT, 0, 1, NEW_NAMESPACES), (RETURN, 0, 0, ERRNO | errno.EPERM)])
    for number in (SOCKET[column], SOCKETPAIR[column]):
        found += _when(number, 0, [(EQUAL, 1, 0, AF_UNIX), (RETURN, 0, 0, ERRNO | errno.EAFNOSUPPORT)])
    typed = [(EQUAL, 1, 0, TIOCSTI), (EQUAL, 0, 1, TIOCLINUX), (RETURN, 0, 0, ERRNO | errno.EPERM)]
    found += _when(IOCTL[column], 1, typed)
    return [*found, (RETURN, 0, 0, ALLOW)]


def _when(number: int, argument: int, body: Sequence[Instruction]) -> Iterator[Instruction]:
    """`body` sees the argument's low half; afterwards the call is allowed, as every rule on it has been read."""
    yield (EQUAL, 0, len(body) + 2, number)
    yield (LOAD, 0, 0, ARGUMENT + 8 * argument)  # both machines are little-endian
    yield from body
    yield (RETURN, 0, 0, ALLOW)


def program(machine: str) -> bytes:
    """The filter in the kernel's own layout, for `bwrap --seccomp`."""
    if machine not in MACHINES:
        raise ValueError(f"no system-call filter for {machine!r}; there is one for {' and '.join(MACHINES)}")
    return b"".join(struct.pack("<HBBI", *each) for each in instructions(MACHINES[machine]))
