"""A worker process that grades programs, one JSON line in, one out. As root it first drops its rights."""

from __future__ import annotations

import functools
import json
import sys
from dataclasses import replace
from typing import Any

# Imported before root is dropped: afterwards the interpreter's folder may be unreadable.
from ascent.sandbox import cgroups
from ascent.sandbox.grade import BadTests, grade, run_once
from ascent.sandbox.isolation import Interpreter, become_nobody, require_bubblewrap
from ascent.sandbox.limits import Limits
from ascent.sandbox.pool import signal_ready
from ascent.sandbox.session import SandboxError, Session, driver_source

TESTS_OUTPUT_KB = 64 * 1024


def handle_job(job: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    limits = Limits(**job["limits"])
    start = functools.partial(_start, limits=limits, settings=settings)
    try:
        return run_once(job, limits, start) if job["style"] == "run" else grade(job, limits, start)
    except BadTests as error:
        return {"unscored": "bad_tests", "detail": str(error)}
    except SandboxError as error:
        return {"unscored": "sandbox", "detail": str(error)}


def _start(side: Any, *, limits: Limits, settings: dict[str, Any]) -> Session:
    if side == "tests":  # tests may send large inputs; only replies are limited
        limits = replace(limits, output_kb=max(limits.output_kb, TESTS_OUTPUT_KB))
    return Session(side, limits, **settings)


def main() -> None:
    mode, slot = sys.argv[1], int(sys.argv[2])
    bwrap = require_bubblewrap() if mode == "bubblewrap" else ""
    settings: dict[str, Any] = {"mode": mode, "bwrap": bwrap, "source": driver_source()}
    interpreter = Interpreter.current()
    if mode == "bubblewrap":
        settings["groups"] = {
            side: cgroups.create(side) for side in ("program", "tests")
        }  # while still root
        interpreter = become_nobody(slot, interpreter)
    settings["interpreter"] = interpreter
    signal_ready()
    for line in sys.stdin:
        print(json.dumps(handle_job(json.loads(line), settings)), flush=True)


if __name__ == "__main__":
    main()
