"""A process that grades programs, one JSON line in, one out. Started by the pool; as root it first becomes nobody."""

from __future__ import annotations

import functools
import json
import sys
from dataclasses import replace
from typing import Any

# Everything is imported before root is dropped: afterwards the interpreter's own folder may be out of reach.
from ascent.sandbox import cgroups
from ascent.sandbox.grade import BadTests, grade, run_once
from ascent.sandbox.isolation import Interpreter, become_nobody, require_bubblewrap
from ascent.sandbox.limits import Limits
from ascent.sandbox.pool import ready
from ascent.sandbox.session import Broken, Session, driver_source

OF_TESTS_KB = 64 * 1024


def answer(job: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    limits = Limits(**job["limits"])
    start = functools.partial(_start, limits=limits, settings=settings)
    try:
        return run_once(job, limits, start) if job["style"] == "run" else grade(job, limits, start)
    except BadTests as error:
        return {"unscored": "bad_tests", "detail": str(error)}
    except Broken as error:
        return {"unscored": "sandbox", "detail": str(error)}


def _start(side: Any, *, limits: Limits, settings: dict[str, Any]) -> Session:
    if side == "tests":  # what they hand to the program is theirs to choose; only answers are bounded
        limits = replace(limits, output_kb=max(limits.output_kb, OF_TESTS_KB))
    return Session(side, limits, **settings)


def main() -> None:
    mode, slot = sys.argv[1], int(sys.argv[2])
    bwrap = require_bubblewrap() if mode == "bubblewrap" else ""
    settings: dict[str, Any] = {"mode": mode, "bwrap": bwrap, "source": driver_source()}
    interpreter = Interpreter.mine()
    if mode == "bubblewrap":
        settings["groups"] = {side: cgroups.make(side) for side in ("program", "tests")}  # as root, where we are
        interpreter = become_nobody(slot, interpreter)
    settings["interpreter"] = interpreter
    ready()
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line), settings)), flush=True)


if __name__ == "__main__":
    main()
