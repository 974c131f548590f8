"""The filter, run by a small interpreter of its own for both machines: what is refused, what passes, what kills."""

import errno
import json
import platform
import struct
import subprocess
import sys

import pytest

from ascent.sandbox import seccomp
from ascent.sandbox.seccomp import ALLOW, ERRNO, KILL, MACHINES, REFUSED, program

EPERM, NO_FAMILY, UNKNOWN = ERRNO | errno.EPERM, ERRNO | errno.EAFNOSUPPORT, ERRNO | errno.ENOSYS


def run(machine, number, *arguments, audit=None):
    """What the kernel would answer to a call."""
    data = (
        struct.pack("<II", number, MACHINES[machine].audit if audit is None else audit) + b"\0" * 8
    )
    data += struct.pack("<6Q", *arguments, *[0] * (6 - len(arguments)))
    code = program(machine)
    lines = [struct.unpack_from("<HBBI", code, 8 * n) for n in range(len(code) // 8)]
    loaded, place = 0, 0
    while True:
        kind, true, false, operand = lines[place]
        place += 1
        if kind == seccomp.LOAD:
            (loaded,) = struct.unpack_from("<I", data, operand)
        elif kind == seccomp.RETURN:
            return operand
        else:
            test = {
                seccomp.EQUAL: loaded == operand,
                seccomp.AT_LEAST: loaded >= operand,
                seccomp.ANY_BIT: bool(loaded & operand),
            }[kind]
            place += true if test else false


@pytest.mark.parametrize("machine", MACHINES)
class TestFilter:
    def test_every_name_is_refused(self, machine):
        numbers = [pair[MACHINES[machine].column] for pair in REFUSED.values()]
        assert all(run(machine, number) == EPERM for number in numbers if number is not None)
        assert len([n for n in numbers if n is not None]) > 50

    def test_what_interpreters_need_passes(self, machine):
        # read, write, mmap, exit_group, getpid, wait4, execve, futex: (x86_64, aarch64)
        needed = [(0, 63), (1, 64), (9, 222), (231, 94), (39, 172), (61, 260), (59, 221), (202, 98)]
        assert all(run(machine, pair[MACHINES[machine].column]) == ALLOW for pair in needed)

    def test_only_local_sockets(self, machine):
        column = MACHINES[machine].column
        for call in (seccomp.SOCKET[column], seccomp.SOCKETPAIR[column]):
            assert run(machine, call, 1) == ALLOW
            assert {run(machine, call, family) for family in (2, 10, 16, 17, 38, 40)} == {NO_FAMILY}

    def test_forks_pass_and_namespaces_do_not(self, machine):
        call = seccomp.CLONE[MACHINES[machine].column]
        assert run(machine, call, 0x01200011) == ALLOW  # what fork asks for
        assert run(machine, call, 0x003D0F00) == ALLOW  # what a new thread asks for
        for flag in (
            0x00020000,
            0x02000000,
            0x04000000,
            0x08000000,
            0x10000000,
            0x20000000,
            0x40000000,
        ):
            assert run(machine, call, flag | 17) == EPERM
        assert run(machine, 435) == UNKNOWN  # clone3, whose flags cannot be seen

    def test_what_is_younger_than_the_list_is_unknown(self, machine):
        first = seccomp.FIRST_NEW[MACHINES[machine].column]
        known = {
            number
            for pair in REFUSED.values()
            if (number := pair[MACHINES[machine].column]) is not None
        }
        assert max(known) < first
        # pidfd_open, io_uring_setup, open_tree, landlock_create_ruleset, memfd_secret, and what nobody has thought of
        assert {
            run(machine, number) for number in (first, 434, 425, 428, 444, 447, 480, 1 << 20)
        } == {UNKNOWN}
        assert {run(machine, number) for number in (436, 439, 452)} == {
            ALLOW
        }  # what libc calls first

    def test_shared_and_huge_memory_without_a_file(self, machine):
        call = seccomp.MMAP[MACHINES[machine].column]

        def mapped(flags):
            return run(machine, call, 0, 4096, 3, flags)

        assert (
            mapped(0x22) == mapped(0x20022) == ALLOW
        )  # private: what an allocator asks for, and a thread's stack
        assert (
            mapped(0x01) == mapped(0x02) == mapped(0x812) == ALLOW
        )  # a file, shared or private; a library
        assert mapped(0x21) == mapped(0x8021) == mapped(0x23) == EPERM
        assert mapped(0x40022) == mapped(0x40002) == EPERM

    def test_larger_pipes_and_sockets_and_locks_on_ranges(self, machine):
        fcntl, setsockopt = (
            calls[MACHINES[machine].column] for calls in (seccomp.FCNTL, seccomp.SETSOCKOPT)
        )
        assert {run(machine, fcntl, 3, number) for number in (1031, 6, 7, 37, 38)} == {EPERM}
        # F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_GETLK, F_DUPFD_CLOEXEC, F_GETPIPE_SZ
        assert {run(machine, fcntl, 3, number) for number in (0, 1, 2, 3, 4, 5, 1030, 1032)} == {
            ALLOW
        }
        assert {run(machine, setsockopt, 3, 1, number) for number in (7, 32, 26, 50)} == {EPERM}
        assert {run(machine, setsockopt, 3, 1, number) for number in (2, 16, 20)} == {
            ALLOW
        }  # SO_REUSEADDR and others

    def test_options_of_a_process_are_a_short_list(self, machine):
        call = seccomp.PRCTL[MACHINES[machine].column]
        assert {run(machine, call, number) for number in (1, 15, 16, 38)} == {ALLOW}
        unknown = {
            run(machine, call, number) for number in (4, 22, 35, 41, 67, 78, 0x53564D41, 1000)
        }
        assert unknown == {ERRNO | errno.EINVAL}

    def test_nobody_types_into_the_terminal(self, machine):
        call = seccomp.IOCTL[MACHINES[machine].column]
        assert run(machine, call, 0, 0x5412) == run(machine, call, 0, 0x541C) == EPERM
        assert run(machine, call, 0, 0x5413) == ALLOW

    def test_another_machines_calls_kill(self, machine):
        assert run(machine, 39, audit=0x40000003) == KILL  # 32-bit calls have other numbers


def test_the_second_numbering_of_x86_kills():
    assert run("x86_64", 0x40000000 | 101) == KILL


def test_no_filter_for_an_unknown_machine():
    with pytest.raises(ValueError, match="no system-call filter for 'riscv64'"):
        program("riscv64")


UNDER_THE_FILTER = """
import ctypes, errno, json, os, socket, struct, subprocess, sys, threading
code = bytes.fromhex(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
buffer = ctypes.create_string_buffer(code)
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.byref(Program(len(code) // 8, ctypes.addressof(buffer))), 0, 0) == 0
found = {}
import fcntl, mmap, tempfile
def refused(name, call):
    try:
        found[name] = call()
    except OSError as error:
        found[name] = errno.errorcode[error.errno]
def raw(*words):
    done = libc.syscall(*words)
    return errno.errorcode[ctypes.get_errno()] if done < 0 else "allowed"
for family in (2, 10, 16, 40):
    refused(f"socket {family}", lambda: socket.socket(family).close() or "allowed")
for name, number in json.loads(sys.argv[2]).items():
    # Arguments that no kernel accepts: EPERM can only come from the filter.
    found[name] = raw(number, -1, -1, -1, -1, -1, -1)
with tempfile.TemporaryFile() as file:
    refused("lock", lambda: fcntl.lockf(file, fcntl.LOCK_EX, 1, 0) or "allowed")
    refused("whole lock", lambda: fcntl.flock(file, fcntl.LOCK_EX) or "allowed")
    file.write(bytes(4096))
    file.flush()
    refused("shared file", lambda: mmap.mmap(file.fileno(), 4096).close() or "allowed")
refused("shared", lambda: mmap.mmap(-1, 4096).close() or "allowed")
refused("private", lambda: mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close() or "allowed")
refused("pipe", lambda: fcntl.fcntl(os.pipe()[0], 1031, 1 << 20))
refused("socket size", lambda: socket.socketpair()[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20))
found["futexes"] = raw(json.loads(sys.argv[3]), 78, 1, 16, 0, 0)
thread = threading.Thread(target=lambda: found.update(thread="ran"))
thread.start()
thread.join()
a, b = socket.socketpair()
a.send(b"x")
found["socketpair"] = b.recv(1).decode()
found["fork"] = os.waitpid(os.posix_spawn(sys.executable, [sys.executable, "-c", ""], {}), 0)[1]
print(json.dumps(found))
"""


@pytest.mark.skipif(
    platform.machine() not in MACHINES or sys.platform != "linux",
    reason="no filter for this machine",
)
def test_the_kernel_takes_the_filter_and_the_interpreter_lives_with_it():
    column = MACHINES[platform.machine()].column
    calls = {name: pair[column] for name, pair in REFUSED.items() if pair[column] is not None}
    code, prctl = program(platform.machine()).hex(), seccomp.PRCTL[column]
    words = [sys.executable, "-c", UNDER_THE_FILTER, code, json.dumps(calls), json.dumps(prctl)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {found.pop(f"socket {family}") for family in (2, 10, 16, 40)} == {"EAFNOSUPPORT"}
    assert (found.pop("thread"), found.pop("socketpair"), found.pop("fork")) == ("ran", "x", 0)
    assert {found.pop(name) for name in ("private", "shared file", "whole lock")} == {"allowed"}
    assert found.pop("futexes") == "EINVAL"
    assert {"shared", "lock", "pipe", "socket size", "semget", "vmsplice"} < found.keys()
    assert {name for name, answer in found.items() if answer != "EPERM"} == set()
