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
    data = struct.pack("<II", number, MACHINES[machine].audit if audit is None else audit) + b"\0" * 8
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
        for flag in (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
            assert run(machine, call, flag | 17) == EPERM
        assert run(machine, 435) == UNKNOWN  # clone3, whose flags cannot be seen

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
thread = threading.Thread(target=lambda: found.update(thread="ran"))
thread.start()
thread.join()
a, b = socket.socketpair()
a.send(b"x")
found["socketpair"] = b.recv(1).decode()
found["fork"] = os.waitpid(os.posix_spawn(sys.executable, [sys.executable, "-c", ""], {}), 0)[1]
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() not in MACHINES or sys.platform != "linux", reason="no filter for this machine")
def test_the_kernel_takes_the_filter_and_the_interpreter_lives_with_it():
    column = MACHINES[platform.machine()].column
    calls = {name: pair[column] for name, pair in REFUSED.items() if pair[column] is not None}
    words = [sys.executable, "-c", UNDER_THE_FILTER, program(platform.machine()).hex(), json.dumps(calls)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {found.pop(f"socket {family}") for family in (2, 10, 16, 40)} == {"EAFNOSUPPORT"}
    assert (found.pop("thread"), found.pop("socketpair"), found.pop("fork")) == ("ran", "x", 0)
    assert {name for name, answer in found.items() if answer != "EPERM"} == set()
