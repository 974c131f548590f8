"""One sandboxed process: what it holds is looked at from its start to its end, whoever listens."""

import time

import pytest

from ascent.sandbox import session as sessions
from ascent.sandbox.isolation import Interpreter
from ascent.sandbox.limits import Limits
from ascent.sandbox.session import ProgramEnded, SandboxError, Session, driver_source
from tests.sandbox.processes import alive
from tests.wall_clock import wall_clock

CHILDREN = """
import os, time
for _ in range(3):
    if os.fork() == 0:
        time.sleep(0.3)
        block = bytearray(b"x") * (60 << 20)
        time.sleep(60)
        os._exit(0)
def solve():
    return 1
"""


@pytest.fixture
def session():
    interpreter, limits = Interpreter.current(), Limits(memory_mb=128)
    session = Session(
        "program", limits, mode="none", bwrap="", interpreter=interpreter, source=driver_source()
    )
    yield session
    session.close()


@wall_clock
def test_a_program_is_ended_while_nobody_waits_for_it(session):
    message = {"op": "load", "source": CHILDREN, "prelude": "", "define": True}
    assert "value" in session.ask(message, 10)
    root, until = session._process.pid, time.monotonic() + 20
    while (
        alive(root) and time.monotonic() < until
    ):  # its answer is read meanwhile, by somebody who does not listen
        time.sleep(0.01)
    assert not alive(root)
    with pytest.raises(ProgramEnded, match="MB in all, more than 128") as ended:
        session.ask({"op": "name", "name": "solve"}, 10)
    assert ended.value.kind == "memory"


def test_a_program_whose_memory_cannot_be_looked_at_does_not_run_on(session, monkeypatch):
    def unreadable(*_: object) -> int:
        raise OSError("no /proc")

    monkeypatch.setattr(sessions.memory, "used_bytes", unreadable)
    with pytest.raises(SandboxError, match=r"could not be measured.*no /proc"):
        session.receive(10)
    assert session._process.wait(10) == -9
