"""What a program holds is counted, wherever it lies; what cannot be counted is refused."""

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ascent.sandbox.limits import Limits
from ascent.sandbox.programs import Sandbox, Suite
from tests.sandbox.hostile import programs_in
from tests.sandbox.processes import descendants

LIMITS = Limits(wall_seconds=12.0, test_seconds=10.0, cpu_seconds=20, memory_mb=256)
HOARDS = programs_in("hoards.txt")
PRELUDE = HOARDS.pop("prelude")
MEGABYTE = 1 << 20

needs_bubblewrap = pytest.mark.skipif(
    shutil.which("bwrap") is None and os.environ.get("CI") != "true",
    reason="the package bubblewrap is not installed (with CI=true this is a failure)",
)


@pytest.fixture(scope="module")
def sandbox():
    sandbox = Sandbox(workers=1, limits=LIMITS)
    yield sandbox
    sandbox.close()


@needs_bubblewrap
@pytest.mark.parametrize("name", HOARDS)
def test_no_program_holds_more_than_its_limit_anywhere(name, sandbox):
    output = sandbox.run(PRELUDE + HOARDS[name])
    assert "ESCAPED" not in output.stdout
    assert output.error in (None, "memory"), output


@needs_bubblewrap
def test_children_that_grow_while_the_answer_is_read_are_counted(sandbox):
    """The answer takes seconds to read, since its numbers collide; meanwhile nobody waits for the program."""
    source = """
import os, time
class Colliding(set):
    def __iter__(self):
        return iter([k * (2 ** 61 - 1) for k in range(1, 12_000)])
def solve(n):
    for _ in range(5):
        if os.fork() == 0:
            time.sleep(0.3)
            block = bytearray(b"x") * (150 << 20)
            time.sleep(30)
            os._exit(0)
    return Colliding([1])
"""
    most, done = 0, threading.Event()

    def look():
        nonlocal most
        while not done.wait(0.02):
            most = max(most, sum(resident(pid) for pid in descendants(os.getpid())))

    before = sum(resident(pid) for pid in descendants(os.getpid()))
    looking = threading.Thread(target=look)
    looking.start()
    (verdict,) = sandbox.grade([(source, Suite.calls("solve", [((1,), 2)]))])
    done.set()
    looking.join()
    assert verdict.fraction == 0
    assert most - before < 2 * LIMITS.memory_mb * MEGABYTE


def resident(pid):
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def held_by(source):
    """Bytes counted of a Python process that ran `source` and now waits, less those of one that ran nothing."""
    from ascent.sandbox.memory import used_bytes

    def measured(text):
        words = [
            sys.executable,
            "-I",
            "-S",
            "-c",
            f"import os, time\n{text}\nos.write(1, b'x')\ntime.sleep(60)",
        ]
        with subprocess.Popen(words, stdout=subprocess.PIPE, bufsize=0) as process:
            try:
                assert process.stdout is not None and process.stdout.read(1) == b"x"
                return used_bytes(process.pid, None, ())
            finally:
                for pid in descendants(process.pid):
                    os.kill(pid, 9)

    return (measured(source) - measured("")) / MEGABYTE


@pytest.mark.parametrize(
    ("source", "least", "most"),
    [
        ("block = bytearray(b'x') * (50 << 20)", 50, 53),
        # A child's copy counts again, and so do a child's child and the process itself.
        (
            "block = bytearray(b'x') * (20 << 20)\nif os.fork() == 0: time.sleep(60)\ntime.sleep(0.2)",
            40,
            60,
        ),
        (
            "held = [os.pipe() for _ in range(40)]",
            80 * 16 * os.sysconf("SC_PAGE_SIZE") / MEGABYTE,
            10,
        ),
        # A page in each gigabyte: a page of tables and one of the next level.
        (
            "import mmap, ctypes\nm = ctypes.CDLL(None).mmap\nm.restype = ctypes.c_void_p\n"
            "m.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]\n"
            "for n in range(2000):\n"
            "    ctypes.string_at(m((16 << 40) + (n << 30), os.sysconf('SC_PAGE_SIZE'), 3, 0x100022, -1, 0), 1)",
            2000 * (2 * os.sysconf("SC_PAGE_SIZE") + 1024) / MEGABYTE,
            2000 * (3 * os.sysconf("SC_PAGE_SIZE") + 1024) / MEGABYTE + 3,
        ),
    ],
    ids=["pages", "children", "pipes", "tables"],
)
def test_what_is_counted(source, least, most):
    assert (
        least - 0.5 <= held_by(source) <= most + 0.5
    )  # two processes differ by a few pages anyway


def test_a_process_that_is_gone_holds_nothing():
    from ascent.sandbox.memory import process_tree, used_bytes

    process = subprocess.Popen([sys.executable, "-c", "pass"])
    process.wait()
    assert process_tree(process.pid) == [process.pid]
    assert used_bytes(process.pid, process.pid, ("/tmp",)) == 0


def test_a_process_whose_first_thread_has_left_is_still_counted():
    leave = "ctypes.CDLL(None).syscall(60 if os.uname().machine == 'x86_64' else 93, 0)"
    source = (
        "import ctypes, threading\ndef hoard():\n    global block\n    block = bytearray(b'x') * (40 << 20)\n"
        "    time.sleep(0.3)\n    os.write(1, b'x')\n    time.sleep(60)\n"
        f"threading.Thread(target=hoard).start()\n{leave}"
    )
    assert held_by(source) > 40


@needs_bubblewrap
def test_honest_programs_keep_what_they_need(sandbox):
    """Each of these uses something that lies near what is refused."""
    source = """
import asyncio, concurrent.futures, multiprocessing, os, shutil, socket, sqlite3, subprocess, sys, tempfile, threading
from multiprocessing import shared_memory
assert asyncio.run(asyncio.sleep(0.01, 5)) == 5
with concurrent.futures.ProcessPoolExecutor(2) as pool:
    assert list(pool.map(abs, [-1, -2])) == [1, 2]
with multiprocessing.Manager() as manager:
    assert dict(manager.dict(a=1)) == {"a": 1}
queue, value = multiprocessing.Queue(), multiprocessing.Value("i", 3)
queue.put(value.value)
assert queue.get() == 3
block = shared_memory.SharedMemory(create=True, size=1000)
block.close()
block.unlink()
assert subprocess.run([sys.executable, "-c", "print(7)"], capture_output=True).stdout == b"7\\n"
assert sqlite3.connect(":memory:").execute("select 1").fetchall() == [(1,)]
with tempfile.NamedTemporaryFile() as file:
    file.write(b"x" * 100_000)
    file.flush()
    shutil.copy(file.name, "copy")
assert os.path.getsize("copy") == 100_000
ends = socket.socketpair()
ends[0].sendall(b"x")
assert ends[1].recv(1) == b"x"
assert len(os.urandom(8)) == 8 and open("/dev/null").read() == ""
together = threading.Barrier(5)  # five threads at a time
threads = [threading.Thread(target=together.wait) for _ in range(4)]
[thread.start() for thread in threads], together.wait(), [thread.join() for thread in threads]
held = [bytearray(130_000) for _ in range(800)]
del held[::2]
print("well")
"""
    output = sandbox.run(source)
    assert output.stdout == "well\n", output
